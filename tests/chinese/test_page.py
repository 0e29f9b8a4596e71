"""The page takes all its strings from one table, `WORDS` in web/words.js."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from diag.outputs.chinese.values import lost

WEB = Path(__file__).parents[2] / "diag/outputs/web"
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ENTRY = re.compile(r'(?:"((?:[^"\\]|\\.)*)"|\b([A-Za-z]\w*)): "((?:[^"\\]|\\.)*)"')
_PLACE = re.compile(r"\{\w+\}")


def table() -> dict[str, str]:
    text = (WEB / "words.js").read_text(encoding="utf-8")
    body = text[text.index("WORDS = {") : text.index("\n};")]
    return {quoted or name: chinese for quoted, name, chinese in _ENTRY.findall(body)}


def asked() -> Iterator[str]:
    """The texts in the first argument of each say()."""
    for path in sorted(WEB.glob("*.js")):
        text = path.read_text(encoding="utf-8")
        for call in re.finditer(r"\bsay\(", text):
            end, depth = call.end(), 1
            while depth and not (depth == 1 and text.startswith(", {", end)):
                depth += (text[end] in "([{") - (text[end] in ")]}")
                end += 1
            choices = re.sub(r'=== "[^"]*"|\?\? "[^"]*"', "", text[call.end() : end])
            yield from (found for found in _QUOTED.findall(choices) if len(found) > 1)


def test_every_text_of_the_page_has_chinese() -> None:
    assert sorted(set(asked()) - set(table())) == []


def test_chinese_of_the_page_has_the_places_and_values_of_its_english() -> None:
    for english, chinese in table().items():
        assert sorted(_PLACE.findall(english)) == sorted(_PLACE.findall(chinese)), english
        assert lost(english, chinese) == []


def test_no_text_of_the_page_stands_outside_the_table() -> None:
    """Words between tags, and in what is read out or shown as a title."""
    bare = re.compile(
        r'(?:aria-label|title|label|placeholder)="([A-Za-z][^"$]*)"|>\s*([A-Z]?[a-z]+ [a-z ,.;]+)<'
    )
    found = {
        f"{path.name}: {first or second}"
        for path in WEB.glob("*.js")
        for first, second in bare.findall(path.read_text(encoding="utf-8"))
    }

    assert found == set()
