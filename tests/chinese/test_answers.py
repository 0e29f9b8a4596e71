"""Whole answers in Chinese: to the lines that people paste most, and the advice of every rule."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from diag.detectors.rules.load import packaged
from diag.model import what_holds
from diag.outputs.chinese.values import lost
from tests.chinese.commands import english_in
from tests.mission.cases import replayed

PAGE = Path(__file__).parents[2] / "docs/howto/pasted-lines.md"
PASTED = [
    line.replace("\\|", "|")
    for line in re.findall(r"^\| `+ ?(.*?) ?`+ \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
]


@pytest.mark.parametrize("line", PASTED)
def test_line_that_people_paste_is_answered_in_chinese(line: str) -> None:
    said = [text for text in replayed(f"{line}\n")["zh"] if not text.strip().startswith("[")]

    assert [text for text in said if english_in(text)] == []


def test_chinese_of_a_rule_has_each_command_number_and_option_of_its_english() -> None:
    """Else its English is shown."""
    missing = {
        rule.id: gone
        for rule in packaged().rules
        for english, chinese in ((rule.summary, rule.zh.summary), (rule.advice, rule.zh.advice))
        if (gone := lost(_plain(english), _plain(chinese)))
    }

    assert missing == {}


def _plain(text: str) -> str:
    return what_holds(" ".join(text.split()), over=False)
