"""The table of cases in docs/evidence/mission.md, from the modules here: `python -m tests.mission.table` writes it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

from tests.mission.cases import Case

FOLDER = Path(__file__).parent
PAGE = FOLDER.parents[1] / "docs" / "evidence" / "mission.md"
BEGIN, END = "<!-- cases: python -m tests.mission.table -->", "<!-- end of the cases -->"


def all_cases() -> Iterator[tuple[str, Case]]:
    """Of every module here that has some, with the module's name."""
    for path in sorted(FOLDER.glob("test_*.py")):
        module = importlib.import_module(f"tests.mission.{path.stem}")
        yield from ((path.stem, case) for case in getattr(module, "CASES", {}).values())


def table() -> str:
    heads = (
        "troubles",
        "what they had",
        "command",
        "what diag says first of it",
        "in Chinese",
        "right",
        "not shown",
        "test",
    )
    rows = [heads, ("---",) * len(heads)]
    for module, case in sorted(all_cases(), key=lambda pair: pair[1].rows):
        numbers = ", ".join(str(row) for row in case.rows)
        cells = (
            numbers,
            case.had,
            f"`{case.command}`",
            case.english,
            case.chinese or "-",
            case.right,
            case.unproven or "-",
        )
        rows.append((*map(_cell, cells), f"`{module}`"))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(text: str) -> str:
    """
    >>> _cell("a | b of <locals>")
    'a \\\\| b of &lt;locals>'
    """
    return text.replace("\\|", "|").replace("|", "\\|").replace("<", "&lt;")


def written(text: str) -> str:
    """The page with the table in its place."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
