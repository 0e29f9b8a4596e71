"""A dashboard in Chinese: the same document with other words (chinese.po), a uid of its own, and links among its own kind.

Names of labels and findings stay as queries and `diag explain` have them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from diag.outputs.chinese.po import read
from tests.dashboards.panels import STATES

__all__ = ["SUFFIX", "in_chinese", "said", "texts", "words"]

SUFFIX = "-zh"  # of uids and tags: both languages may be in one Grafana
_SHOWN = ("title", "description", "label", "legendFormat", "text")
_MORE = re.compile(r"(.*?) ?More: `diag explain ([\w-]+)`\.", re.DOTALL)
# Of the columns of tables; the words are those of the terminal and the page.
_VALUES = {
    "state": [word for word, _ in STATES],
    "severity": ["critical", "warning", "info"],
}


@cache
def words() -> dict[str, str]:
    return dict(read((Path(__file__).parent / "chinese.po").read_text(encoding="utf-8")))


def in_chinese(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = _with_words(document, said)
    found["uid"] += SUFFIX
    found["tags"] = [tag + SUFFIX for tag in found["tags"]]
    for link in found["links"]:
        link["tags"] = [tag + SUFFIX for tag in link["tags"]]
    for panel in found["panels"]:
        if panel["type"] == "table":
            _name_values(panel)
        for override in panel.get("fieldConfig", {}).get("overrides", ()):
            name = words()[override["matcher"]["options"]]
            override["properties"].append({"id": "displayName", "value": name})
    return found


def texts(document: dict[str, Any]) -> Iterator[str]:
    """What a person reads of a dashboard."""
    found: list[str] = []

    def keep(text: str) -> str:
        found.append(text)
        return text

    _with_words(document, keep)
    for panel in document["panels"]:
        for override in panel.get("fieldConfig", {}).get("overrides", ()):
            found.append(override["matcher"]["options"])
    return iter(found)


def _with_words(value: Any, say: Callable[[str], str], key: str = "") -> Any:
    if isinstance(value, list):
        return [_with_words(one, say, key) for one in value]
    if isinstance(value, dict):
        return {name: _with_words(one, say, name) for name, one in value.items()}
    if isinstance(value, str) and key == "url":
        return re.sub(r"^/d/([\w-]+)", rf"/d/\g<1>{SUFFIX}", value) if say is said else value
    return say(value) if isinstance(value, str) and key in _SHOWN else value


def said(text: str) -> str:
    if more := _MORE.fullmatch(text):
        return f"{said(more[1])}详见 `diag explain {more[2]} --lang zh`。"
    return words().get(text, text)


def _name_values(panel: dict[str, Any]) -> None:
    """In a table of states or severities their names are shown as elsewhere; the fields keep theirs, links use them."""
    asked = " ".join(target["expr"] for target in panel["targets"])
    named = [word for label, values in _VALUES.items() if label in asked for word in values]
    if named:
        options = {word: {"index": index, "text": words()[word]} for index, word in enumerate(named)}
        panel["fieldConfig"]["defaults"]["mappings"] = [{"type": "value", "options": options}]
