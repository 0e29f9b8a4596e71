"""docs/evidence/mission.md has what the tests hold."""

from __future__ import annotations

import re

from tests.mission.table import PAGE, all_cases, written


def test_the_page_has_the_cases_of_the_tests() -> None:
    text = PAGE.read_text()

    assert text == written(text), "python -m tests.mission.table"


def test_every_trouble_has_a_row_and_a_case() -> None:
    rows = [
        int(number)
        for number in re.findall(r"^\| (\d+) \|", PAGE.read_text().partition("## Cases")[0], re.MULTILINE)
    ]

    assert rows == list(range(1, 20))
    assert {row for _, case in all_cases() for row in case.rows} == set(rows)
