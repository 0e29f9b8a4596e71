"""What of the texts of `tests/goldens` has no Chinese yet. `python -m tests.chinese` prints it, most frequent first,
and writes how many they are (`left.txt`)."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from diag.outputs.chinese import in_chinese, of_finding, whole
from tests.goldens import KEPT, kept

LEFT = Path(__file__).parent / "left.txt"
_CHINESE = re.compile("[\u4e00-\u9fff]")
_ENGLISH = re.compile(r"(?:\b[a-z]{2,}\b[ ,]+){4}")
# What a sentence quotes stays as it is.
_QUOTED = re.compile(r'`[^`]*`|".*"|\([^()]*\)|（[^（）]*）')


@cache
def texts() -> tuple[tuple[str, str, str], ...]:
    """(field, English, as shown), each once for each time that a capture has it."""
    shown: dict[tuple[str, str], str] = {}
    found = []
    for field, english, finding in _all():
        if (field, english) not in shown:
            shown[field, english] = of_finding(finding, field) if finding else in_chinese(english)
        found.append((field, english, shown[field, english]))
    return tuple(found)


def _all() -> Iterator[tuple[str, str, Mapping[str, Any] | None]]:
    for document in _documents():
        yield "sentence", document["sentence"], None
        for finding in (*document["findings"], *document.get("past", ())):
            yield "summary", finding["summary"], finding
            yield "advice", finding["advice"], finding
        for line in document["not_checked"]:
            yield from ((field, line[field], None) for field in ("what", "reason", "remedy"))


def _documents() -> Iterator[dict[str, Any]]:
    for path in sorted(KEPT.glob("*.txt")):
        for text in kept(path.stem).values():
            _, brace, document = text.partition("\n{\n")
            if brace:
                yield json.loads(brace + document)


def left() -> Counter[str]:
    """English texts without Chinese, or with English sentences left in it. Texts that differ in numbers, quoted
    lines and paths are one."""
    found: Counter[str] = Counter()
    for (_, english, shown), times in Counter(texts()).items():
        if (
            whole(english) is None
            and " " in english
            and (not _CHINESE.search(shown) or _ENGLISH.search(_QUOTED.sub("", shown)))
        ):
            found[_shape(english)] += times
    return found


def _shape(text: str) -> str:
    return re.sub(r"/[\w./-]+", "/PATH", re.sub(r"\d[\d,.:-]*", "N", re.sub(r'".*"', '"..."', text)))
