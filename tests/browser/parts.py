"""The parts of the page by role and name, as diag/outputs/web/README.md lists them."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page, expect

__all__ = [
    "article",
    "axe_issues",
    "cell",
    "connection",
    "overflow",
    "panel",
    "ready",
    "region",
    "state_of",
    "told",
]

AXE = Path(__file__).parent / "vendor" / "axe.min.js"
# told of moments of another day, and of recorded ones
_DAY = re.compile(r"\b\d{4}-\d\d-\d\d (?=\d\d:\d\d:\d\d\b)")
_AGES = re.compile(r"\b\d+(?:\.\d+)?(?: (?:d|h|min|s|ms))+\b(?: \d+ (?:h|min|s))*")


def region(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name=name, exact=True)


def article(page: Page, name: str | re.Pattern[str]) -> Locator:
    return region(page, "Findings").get_by_role("article", name=name)


def cell(page: Page, rank: int, state: str | None = None) -> Locator:
    """That of a rank in the grid; in a state if one is given."""
    name: str | re.Pattern[str] = f"rank {rank}, {state}" if state else re.compile(rf"^rank {rank}, ")
    return (
        page.get_by_role("gridcell", name=name, exact=True)
        if state
        else page.get_by_role("gridcell", name=name)
    )


def panel(page: Page, rank: int) -> Locator:
    return page.get_by_role("complementary", name=f"Rank {rank}", exact=True)


def connection(page: Page) -> Locator:
    return page.get_by_role("status", name="Connection")


def ready(page: Page, sentence: str) -> None:
    """Wait until the page tells the job in one sentence that begins so."""
    expect(page.get_by_role("heading", level=1)).to_have_text(re.compile("^" + re.escape(sentence)))


def state_of(url: str) -> dict[str, Any]:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
        f"{url}/state", timeout=15
    ) as answer:
        document: dict[str, Any] = json.load(answer)
    return document


def told(page: Page) -> dict[str, Any]:
    """What the page says of the job, without ages: sentence, findings, states of the ranks, stacks."""
    findings = region(page, "Findings")
    return {
        "sentence": re.sub(r"; \d+ not checked", "", page.get_by_role("heading", level=1).inner_text()),
        "findings": [_without_ages(one) for one in findings.get_by_role("article").all_inner_texts()],
        "ranks": page.get_by_role("gridcell").evaluate_all(
            "cells => cells.map((one) => one.getAttribute('aria-label'))"
        ),
        "stacks": _without_ages(region(page, "Stacks").inner_text()),
    }


def _without_ages(text: str) -> str:
    text = _AGES.sub("SOME TIME", _DAY.sub("", text))
    return re.sub(r"SOME TIME (?:ago|before its end)", "SOME TIME AGO", text)


def overflow(page: Page) -> list[str]:
    """What makes the page scroll sideways; empty where nothing does."""
    found: list[str] = page.evaluate("""() => {
      const wide = document.documentElement.clientWidth;
      if (document.documentElement.scrollWidth <= wide) return [];
      return [...document.querySelectorAll("body *")].filter((one) => one.getBoundingClientRect().right > wide + 1)
        .slice(0, 8).map((one) => `${one.tagName} ${one.className} ${Math.round(one.getBoundingClientRect().right)} > ${wide}`);
    }""")
    return found or (
        ["something"]
        if page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
        else []
    )


def axe_issues(page: Page) -> list[str]:
    """What axe finds, each as one line: impact, rule, where."""
    if not page.evaluate("typeof window.axe === 'object'"):
        page.evaluate(AXE.read_text(encoding="utf-8"))
    document = page.evaluate(
        "async () => (await axe.run(document, {resultTypes: ['violations']})).violations"
    )
    return [
        f"{issue['impact']} {issue['id']}: {issue['help']}: {node['target']} {node['html'][:160]}"
        for issue in document
        for node in issue["nodes"][:5]
    ]
