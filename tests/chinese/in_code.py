"""What the code says that no catalogue has a word of: parts of its sentences that are between the places of values.

Goldens only show what some capture makes diag say; this also sees what none does."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from diag.outputs import chinese
from diag.outputs.chinese import po

DIAG = Path(__file__).parents[2] / "diag"
LEFT = Path(__file__).parent / "left_in_code.txt"
# What detectors find is said there. Not shown: mistakes in rule files are errors; why one finding comes before another.
FOLDERS = ("detectors", "engine", "state")
_NOT = ("detectors/rules/", "detectors/precedence.py")
_PROSE = re.compile(r"[a-z']{2,}(?:[ ,]+[a-z'(]{2,}){2,}")  # three words in a row
_PLACE = re.compile(r"\{[^{}]*\}")
_NOT_SHOWN = ("compile", "debug", "info", "warning")  # calls whose texts nobody reads as diag's


@cache
def _english() -> str:
    folder = Path(chinese.__file__).parent
    texts = (path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.po")))
    return "\n".join(_PLACE.sub("{}", english) for text in texts for english, _ in po.read(text)).lower()


def without_entry() -> list[str]:
    """ "file: words", each once."""
    found = dict.fromkeys(
        f"{path.relative_to(DIAG)}: {text.strip()}"
        for folder in FOLDERS
        for path in sorted((DIAG / folder).rglob("*.py"))
        if not str(path.relative_to(DIAG)).startswith(_NOT)
        for text in shown(path.read_text(encoding="utf-8"))
        if any(words.strip(" ,(").lower() not in _english() for words in _PROSE.findall(text))
    )
    return list(found)


def shown(code: str) -> Iterator[str]:
    """Texts of a module, but docstrings, regular expressions, logging and what is raised.

    >>> list(shown('x = f"{n} went to sea"; y = re.compile("a b"); raise ValueError("no")'))
    [' went to sea']
    """
    tree = ast.parse(code)
    left_out: set[int] = set()
    for node in ast.walk(tree):
        called = getattr(node, "func", None)
        if (
            isinstance(node, ast.Raise)
            or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
            or (isinstance(node, ast.Call) and getattr(called, "attr", "") in _NOT_SHOWN)
        ):
            left_out.update(id(one) for one in ast.walk(node))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out:
            yield node.value


if __name__ == "__main__":
    found = without_entry()
    print(*found, sep="\n")
    LEFT.write_text(f"{len(found)}\n")
