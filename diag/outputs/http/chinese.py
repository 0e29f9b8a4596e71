"""The Chinese of what a stream of events says: beside its parts, which are English always. For the page alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from diag.outputs.chinese import in_chinese, of_finding

_LONGEST = 4000  # characters; a longer text is a quotation


def chinese_of(parts: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """{part: {English: Chinese}} of the sentences of each part that has any.

    >>> chinese_of({"report": {"sentence": "Nothing found.", "findings": [], "not_checked": []}, "now": {"at": 1.0}})
    {'report': {'Nothing found.': '未发现问题。'}}
    """
    found = {part: dict(_sentences(part, value)) for part, value in parts.items()}
    return {part: texts for part, texts in found.items() if texts}


def _sentences(part: str, value: Any) -> Iterator[tuple[str, str]]:
    if part == "report" and isinstance(value, Mapping):
        texts = [value.get("sentence", "")]
        for finding in (*value.get("findings", ()), *value.get("past", ())):
            for field in ("summary", "advice"):
                yield from _both(finding[field], of_finding(finding, field))
        for line in value.get("not_checked", ()):
            texts += [line["what"], line["reason"], line["remedy"]]
    elif part == "stacks":
        texts = [one["reason"] for one in value or ()]
    elif part == "ranks":
        rows = value.get("rows", ())
        texts = [text for row in rows for text in (row.get("no_stack"), (row.get("exit") or {}).get("text"))]
    else:
        return
    for text in texts:
        if isinstance(text, str) and 0 < len(text) <= _LONGEST:
            yield from _both(text, in_chinese(text))


def _both(english: str, shown: str) -> Iterator[tuple[str, str]]:
    if shown != english:
        yield english, shown
