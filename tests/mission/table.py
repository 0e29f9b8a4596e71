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
    rows = [
        "| troubles | what they had | command | what diag says, in part | in Chinese | right | test |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for module, case in all_cases():
        said = case.told[0].replace("|", "\\|")
        numbers = ", ".join(str(row) for row in case.rows)
        rows.append(
            f"| {numbers} | {case.had} | `{case.command}` | {said} | {case.chinese or '-'} | {case.right} | `{module}` |"
        )
    return "\n".join(rows)


def written(text: str) -> str:
    """The page with the table in its place."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
