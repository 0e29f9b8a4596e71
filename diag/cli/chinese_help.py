"""`--help` in Chinese: the parser's texts by the catalogue, wrapped by the columns that a terminal gives them. Loaded
only where Chinese is asked for."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from diag.outputs import chinese
from diag.outputs.chinese.po import read
from diag.text.columns import columns, wrap_wide


@cache
def _texts() -> dict[str, str]:
    """Whole texts, by their English: no value stands in any."""
    try:
        return dict(read((Path(chinese.__file__).parent / "help/help.po").read_text(encoding="utf-8")))
    except OSError:  # it stays English
        return {}


def say(text: str | None) -> str | None:
    """The Chinese of a text of the parser; the text itself where there is none.

    >>> say("options"), say("no such option")
    ('选项', 'no such option')
    """
    if not text:
        return text
    sentence = text[0].lower() + text[1:].removesuffix(".")  # a verb's line in the list, made a sentence
    found = _texts().get(text) or _texts().get(sentence) or _texts().get(text.removesuffix("."))
    return found or text


class _Formatter(argparse.HelpFormatter):
    def add_usage(
        self,
        usage: str | None,
        actions: Iterable[argparse.Action],
        groups: Iterable[argparse._MutuallyExclusiveGroup],
        prefix: str | None = None,
    ) -> None:
        super().add_usage(usage, actions, groups, prefix or "用法：")

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap_wide(" ".join(text.split()), width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(
            row
            for line in text.split("\n")
            for row in ([line] if columns(line) <= width else wrap_wide(line, width, indent))
        )


def translate(parser: argparse.ArgumentParser) -> None:
    """What this parser shows as help, from now on in Chinese."""
    parser.formatter_class = _Formatter
    parser.description, parser.epilog = say(parser.description), say(parser.epilog)
    for group in parser._action_groups:
        group.title, group.description = say(group.title), say(group.description)
    for action in parser._actions:
        if action.help != argparse.SUPPRESS:
            action.help = say(action.help)
        if isinstance(action, argparse._SubParsersAction):
            for choice in action._choices_actions:
                choice.help = say(choice.help)
