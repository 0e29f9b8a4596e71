"""One case: what somebody had, what diag says of it, and what it must say.

A module with cases has a mapping `CASES` and one test:

    @pytest.mark.parametrize("name", CASES)
    def test_the_person_is_told(name: str) -> None:
        CASES[name].check()
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """`rows` are those of the page's table of troubles. `had` and `command` are what the page says of the case.
    `said` gives all that diag says, one text a line; `told` must be within a line each, and the first stands in the
    page. `silent` must be in none. `chinese` is what the page has of `said_in_chinese`.
    `right` says what is not right with what diag says: a case that is not ended yet."""

    rows: tuple[int, ...]
    had: str
    command: str
    said: Callable[[], list[str]]
    told: tuple[str, ...]
    silent: tuple[str, ...] = ()
    chinese: str = ""
    right: str = "yes"
    said_in_chinese: Callable[[], list[str]] = list

    def check(self) -> None:
        lines = self.said()
        for text in self.told:
            assert any(text in line for line in lines), f"not told: {text}\n" + "\n".join(lines)
        for text in self.silent:
            assert not any(text in line for line in lines), f"told: {text}\n" + "\n".join(lines)
        if self.chinese:
            assert any(self.chinese in line for line in self.said_in_chinese()), self.chinese
