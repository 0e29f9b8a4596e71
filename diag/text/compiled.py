"""What stands in diag's own YAML and manual, as JSON that is made with the package: reading it takes a twentieth of the
time.

Each copy names the hash of its sources, and counts only as long as they are the same: who edits an installed table has
what is written there. A checkout has no copies unless `python -m diag.cli.compiling` made them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib.util import source_hash
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[1]
FOLDER = PACKAGE / "_data" / "compiled"
RULES = "rules"  # the copy of those that come with diag


def hash_of(sources: Iterable[bytes]) -> str:
    """As Python's own bytecode is held beside its source: against a change, not against a forger, who could write code."""
    return source_hash(b"\0".join(sources)).hex()


def compiled(name: str, sources: Iterable[bytes], folder: Path = FOLDER) -> Any:
    """What these sources held when the package was made; None where there is no copy of them."""
    try:
        copy = json.loads((folder / f"{name}.json").read_bytes())
        return copy["value"] if copy["of"] == hash_of(sources) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def name_of(table: Path) -> str:
    """The name of a table's copy; of a file that is not diag's own it leads to none.

    >>> name_of(PACKAGE / "detectors" / "findings.yaml")
    'detectors.findings.yaml'
    """
    return ".".join(table.relative_to(PACKAGE).parts) if table.is_relative_to(PACKAGE) else table.name


def rule_sources(folder: Path) -> list[bytes]:
    """The text of each rule below it, in the order of their names; b"" of a file that cannot be read."""
    return [_bytes_of(path) for path in sorted(folder.rglob("*.yaml"))]


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def survives(value: Any) -> bool:
    """Whether JSON gives the same back: it has no numbers as keys, and no dates."""
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError):
        return False


def write(folder: Path, name: str, sources: Iterable[bytes], value: Any) -> None:
    text = json.dumps({"of": hash_of(sources), "value": value}, ensure_ascii=False, separators=(",", ":"))
    (folder / f"{name}.json").write_text(text, encoding="utf-8")
