"""What a person reads, in Chinese. diag judges, records and sends English; where a text is shown, its finished
sentences are matched back to the templates they were made of (`*.po` beside this file, and the `zh` of rules), and
the Chinese template is filled with the same values.

What has no entry stays English, a sentence at a time. Nothing here raises for a text, and no number, path, command or
quoted line of the English is missing in the Chinese.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from diag.knowledge.known_troubles import apart, troubles
from diag.model import what_holds
from diag.outputs.chinese.po import read
from diag.outputs.chinese.templates import Catalogue
from diag.outputs.chinese.values import lost

__all__ = ["by_line", "catalogue", "in_chinese", "of_finding", "whole"]


_CHINESE = re.compile("[\u4e00-\u9fff]")


@cache
def catalogue(of: str = "") -> Catalogue:
    """Read once: before a run that will be told of in Chinese, else where Chinese is shown first. Without a name that
    of findings and reports; `of` a folder here: of what one command says."""
    found = Catalogue(loose=True, beyond=catalogue()) if of else Catalogue()
    for path in sorted((Path(__file__).parent / of).glob("*.po")):
        with suppress(OSError):  # no file may be opened any more: it stays English
            for english, chinese in read(path.read_text(encoding="utf-8")):
                found.add(english, chinese)
    if of == "doctor":
        for one in troubles().values():
            for name in ("what", "needs"):
                found.add(one.text(name), one.text(name, "zh"))
            found.add(one.fix(), one.fix("zh"))
    return found


def _part(of: str) -> Catalogue:
    return catalogue(of) if of else catalogue()


def whole(text: str, of: str = "") -> str | None:
    """All of the text in Chinese; None where a part of it has no entry."""
    return _part(of).translate(text)


def in_chinese(text: str, of: str = "") -> str:
    """In Chinese as far as there is any."""
    return _part(of).translate(text) or _part(of).by_sentence(text)


def by_line(text: str, of: str) -> str:
    """The same of a text of several lines, such as a piece of a manifest: each by itself, as far in as it was. A line
    that would only get other marks stays as it is."""
    shown = []
    for line in text.split("\n"):
        bare = line.lstrip()
        chinese = in_chinese(bare, of)
        shown.append(line[: len(line) - len(bare)] + (chinese if _CHINESE.search(chinese) else bare))
    return "\n".join(shown)


def of_finding(finding: Mapping[str, Any], field: str) -> str:
    """The `summary` or the `advice` of a finding, as far as there is Chinese for it: its own sentences, those of the
    rule that found it, or the paragraph of the manual on its cause."""
    text, known = str(finding[field]), catalogue()
    if field == "advice" and (of_troubles := apart(text))[1]:
        return of_finding({**finding, field: of_troubles[0]}, field) + of_troubles[1]
    if finding.get("rule"):
        known = _of_rule(str(finding["rule"]))
    if (
        field == "advice"
        and finding["id"] in ("rank-died", "unrecognised-failure")
        and not finding.get("rule")
    ):
        own = _remedies().translate(text)
        if own:
            return own
    return (
        known.translate(text)
        or (_of_manual(str(finding["id"]), str(finding["cause"]), text) if field == "advice" else "")
        or known.by_sentence(text)
    )


@lru_cache(maxsize=512)
def _of_rule(rule: str) -> Catalogue:
    """What there is, and this rule's: its places may hold anything, and those of several would take in each other's text."""
    from diag.detectors.rules.load import Loaded, packaged_folder, read_rules

    if not rule.replace("-", "").isalnum():  # the id of a capture may be anything
        return catalogue()
    found = Catalogue()
    found.templates.update(catalogue().templates)
    with suppress(OSError):
        for one in read_rules(packaged_folder().glob(f"*/{rule}.yaml"), own=True):
            if isinstance(one, Loaded):
                found.add(one.rule.summary, one.rule.zh.summary, of_rule=True)
                for over in (False, True):
                    texts = (what_holds(text, over=over) for text in (one.rule.advice, one.rule.zh.advice))
                    found.add(*texts, of_rule=True)
    return found


@cache
def _remedies() -> Catalogue:
    """The advice by a failure's form, whose places hold what its lines say."""
    from diag.detectors.remedies import all_forms, hint

    found = Catalogue(beyond=catalogue())
    found.add(*hint("do"), *hint("zh"), of_rule=True)
    for form in all_forms():
        for english, chinese in zip(form.do, form.zh, strict=True):
            for one, other in zip(english, chinese, strict=True):
                found.add(one, other, of_rule=True)
    return found


def _of_manual(finding: str, cause: str, text: str) -> str:
    """What the manual says of this cause alone; "" where that lacks a value of the English."""
    from diag.outputs.manual import advice

    for item in advice(finding, "zh") if cause and text else ():
        if item.causes == (cause,):
            said = item.text.partition("：")[2]
            return said if said and not lost(text, said) else ""
    return ""
