"""Links of README and the guides lead to files that are there, and to headings that these have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.guide.pages import PAGES, ROOT

LINKING = [*PAGES, ROOT / "docs/comparison.md"]


def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub makes them: lower case, words joined by `-`, punctuation left out."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    }


@pytest.mark.parametrize("page", LINKING, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"\w+://", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page

        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


def test_anchor_is_that_of_github() -> None:
    assert "megatrons-straggler-detection" in anchors(ROOT / "docs/comparison.md")
    assert "no-such-heading" not in anchors(ROOT / "docs/comparison.md")
