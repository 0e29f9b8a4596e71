"""The error of a notebook's cell, as the .ipynb file keeps it: the exception's own words in place of their JSON.

nbformat 4 (Jupyter, VS Code, Colab, papermill) writes an error among a cell's outputs so, one string a line:

    "ename": "ValueError",
    "evalue": "no data in train.jsonl",
    "output_type": "error",
    "traceback": [
     "\\u001b[0;31mValueError\\u001b[0m                                Traceback (most recent call last)",
     "Cell \\u001b[0;32mIn[2], line 2\\u001b[0m\\n ...",
     "\\u001b[0;31mValueError\\u001b[0m: no data in train.jsonl"
    ]

No line is added or taken away: their numbers stay those of the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from diag.knowledge.log_prefix import message_of, without_outer

_STRING = r"(\"(?:[^\"\\]|\\.){0,20000}\")"
_NAME = re.compile(rf"\s{{0,40}}\"ename\": ?{_STRING},?\s*$")
_VALUE = re.compile(rf"\s{{0,40}}\"evalue\": ?{_STRING},?\s*$")
_ELEMENT = re.compile(rf"\s{{0,40}}{_STRING},?\s*$")
_OPENS = '"traceback": ['
_IDENTIFIER = re.compile(r"[A-Za-z_][\w.]{0,200}$")
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,20}m")
# IPython 7-9; Windows has a drive's letter:
#   File ~/lib/transformers/utils/hub.py:369, in cached_file(path_or_repo_id, ...)        Cell In[2], line 2
_FRAME = re.compile(r"File (\S.{0,400}?):(\d{1,7}), in (?:[\w.<>]{1,200}\.)?([\w<>]{1,200})")
_CELL = re.compile(r"(Cell In\[[ \d]{0,6}\]), line (\d{1,7})")
_LONGEST = 400  # strings of one traceback


class NotebookErrors:
    """Of one log, whose lines are given in order."""

    def __init__(self) -> None:
        self._name = ""  # of the exception whose value comes next
        self._left = 0  # strings that the traceback may still have

    def bare(self, items: Sequence[list[Any]]) -> Sequence[list[Any]]:
        """The same items: of each line (kind 0) of a cell's error what it says. `items`: [text, kind]."""
        return [item if item[1] else [self._line(item[0]), 0] for item in items]

    def _line(self, text: str) -> str:
        if not self._left and '"evalue"' not in text and '"ename"' not in text and _OPENS not in text:
            return text
        message = message_of(without_outer(text)).text
        said = self._said(message)
        return text if said is None else text[: len(text) - len(message)] + said

    def _said(self, message: str) -> str | None:
        if match := _NAME.match(message):
            self._name = _text(match[1])
        elif match := _VALUE.match(message):
            name, self._name = self._name, ""
            return _exception(name, _text(match[1]))
        elif _OPENS in message:
            self._left = _LONGEST
        elif self._left:
            match = _ELEMENT.match(message)
            self._left = self._left - 1 if match else 0
            return _traced(_text(match[1])) if match else None
        return None


def value_of(line: str) -> str:
    """What a line with the value of a cell's error says; "" for another.

    >>> value_of('     "evalue": "no data in \\\\"a\\\\"",')
    'no data in "a"'
    """
    match = _VALUE.match(line)
    return _text(match[1]) if match else ""


def _text(quoted: str) -> str:
    try:
        text = json.loads(quoted, strict=False)
    except ValueError:
        text = quoted.strip('"')
    return _COLOUR.sub("", text)


def _exception(name: str, value: str) -> str:
    value = " ".join(value.split("\n"))
    if not _IDENTIFIER.match(name):
        return value
    return f"{name}: {value}" if value else name


def _traced(text: str) -> str | None:
    """A frame as CPython writes it, or what fits one line; None leaves the line as it is."""
    if match := _FRAME.match(text):
        return f'  File "{match[1]}", line {match[2]}, in {match[3]}'
    if match := _CELL.match(text):
        return f'  File "{match[1]}", line {match[2]}'
    return text if text and "\n" not in text else None
