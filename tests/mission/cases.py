"""One case: what somebody had, what diag says of it, and what it must say.

A module with cases has a mapping `CASES` and one test:

    @pytest.mark.parametrize("name", CASES)
    def test_the_person_is_told(name: str) -> None:
        CASES[name].check()
"""

from __future__ import annotations

import functools
import io
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from diag.engine.replay import replay
from diag.outputs.chinese import by_line
from diag.outputs.report import report
from diag.outputs.terminal.text import report_text
from tests.chinese.commands import english_in

CAPTURES = Path(__file__).parents[1] / "captures"
_MOST = 220  # characters of the page's lines
_IN_CHINESE = re.compile(r"[\u4e00-\u9fff]{2}")
_NUMBER = re.compile(r"\d[\d,.]*")
_IN_ENGLISH = re.compile("[a-z]{2}")
_LABELS = ("说明", "处理", "原因", "在等", "未检查", "任务")


@dataclass(frozen=True)
class Case:
    """`rows` are those of the page's table of troubles. `had` and `command` are what the page says of the case.
    `said` gives all that diag says, one text a line; `told` must be within a line each, and the page shows the line of
    the first, and its Chinese: of doctor that of the line, else the first sentence in Chinese of what `said_in_chinese`
    gives (of an estimate the one with its numbers). `silent` must be in none.
    `right` says what is not right with what diag says: a case that is not ended yet. `unproven`: what the case
    does not show."""

    rows: tuple[int, ...]
    had: str
    command: str
    said: Callable[[], list[str]]
    told: tuple[str, ...]
    silent: tuple[str, ...] = ()
    right: str = "yes"
    unproven: str = ""
    said_in_chinese: Callable[[], list[str]] = list

    def check(self) -> None:
        lines = _once(self.said)
        for text in self.told:
            assert any(text in line for line in lines), f"not told: {text}\n" + "\n".join(lines)
        for text in self.silent:
            assert not any(text in line for line in lines), f"told: {text}\n" + "\n".join(lines)
        if _IN_ENGLISH.search(self.english):
            assert self.chinese, "\n".join(_once(self.said_in_chinese))
            assert not english_in(self.chinese), self.chinese

    @property
    def english(self) -> str:
        line = next((line for line in _once(self.said) if self.told[0] in line), "")
        return shortened(line.partition(" -> ")[0], self.told[0])

    @property
    def chinese(self) -> str:
        """ "" where diag has none."""
        if self.command.startswith("diag doctor"):
            line = next((line for line in _once(self.said) if self.told[0] in line), "")
            status, colon, said = line.partition(" -> ")[0].partition(": ")
            return shortened(f"{by_line(status, 'doctor')}：{by_line(said, 'doctor')}" if colon else "")
        sentences = (line.strip() for line in _once(self.said_in_chinese))
        of_person = (one for one in sentences if _IN_CHINESE.search(one) and not one.startswith(_LABELS))
        if self.command.startswith("diag estimate"):
            numbers = set(_NUMBER.findall(self.english))
            of_person = (one for one in of_person if numbers <= set(_NUMBER.findall(one)))
        return shortened(next(of_person, ""))


@functools.cache
def _once(said: Callable[[], list[str]]) -> list[str]:
    """A case is asked by its own test and for the page."""
    return said()


def shortened(line: str, key: str = "") -> str:
    """
    >>> shortened("  ok: all of it ", "all")
    'ok: all of it'
    """
    line = " ".join(line.split())
    if len(line) <= _MOST:
        return line
    start = max(0, min(line.find(key), len(line) - _MOST)) if line.find(key) + len(key) > _MOST else 0
    return ("... " if start else "") + line[start : start + _MOST].rpartition(" ")[0] + " ..."


@functools.cache
def replayed(*given: Path | str) -> dict[str, list[str]]:
    """What `diag replay` says of paths, or of text on stdin, by language: without the line of the job's state."""
    paths = [one if isinstance(one, Path) else Path("-") for one in given]
    pasted = "".join(one for one in given if isinstance(one, str))
    stdin = mock.Mock(buffer=io.BytesIO(pasted.encode()))
    with mock.patch.object(sys, "stdin", stdin):
        engine = replay(paths)[0]
    document = report(engine)
    return {
        lang: _sentences(report_text(document, width=100_000, lang=lang, colour=False))
        for lang in ("en", "zh")
    }


def _sentences(text: str) -> list[str]:
    """Without the line of the job, nor the heads of findings, which name the finding alone."""
    blocks = text.split("\n\n")
    return [line for block in blocks[1:] for line in block.splitlines()[1:]] or text.splitlines()


def of_replay(
    rows: tuple[int, ...],
    had: str,
    given: Path | str,
    told: tuple[str, ...],
    silent: tuple[str, ...] = (),
    *,
    command: str = "",
    unproven: str = "",
) -> Case:
    """`given`: evidence in the repository, or what is pasted."""
    default = (
        "diag replay -" if isinstance(given, str) else f"diag replay {'FOLDER' if given.is_dir() else 'LOG'}"
    )
    return Case(
        rows, had, command or default, lambda: replayed(given)["en"], told, silent, unproven=unproven,
        said_in_chinese=lambda: replayed(given)["zh"],
    )  # fmt: skip


def printed(*words: str, **environment: str) -> list[str]:
    """What a command of diag prints, the lines of each paragraph of its table as they are."""
    import contextlib

    from diag.cli.main import main

    out = io.StringIO()
    with mock.patch.dict(os.environ, environment), contextlib.redirect_stdout(out):
        main(list(words))
    return out.getvalue().splitlines()
