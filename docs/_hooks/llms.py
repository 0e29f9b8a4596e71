"""llms.txt at the site's root: what there is to read, for agents (https://llmstxt.org)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from repository import ROOT

_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_LEFT_OUT = (
    "zh/",
    "findings/",
    "decisions/",
    "project/",
    "deploy/",
)  # translations, and lists that an index has


def text(nav: list[Any], description: str) -> str:
    """Each page of the navigation with its first sentence."""
    lines = ["# diag", "", f"> {description}", ""]
    lines += [
        "An agent asks a run through `diag mcp` (howto/agents.md); `diag explain ID` is the page of a finding."
    ]
    for title, inside in ((name, one[name]) for one in nav if isinstance(one, dict) for name in one):
        pages = [page for page in _pages(inside) if not page.startswith(_LEFT_OUT)]
        if pages:
            lines += ["", f"## {title}", "", *map(_line, pages)]
    return "\n".join(lines) + "\n"


def _pages(nav: Any) -> Iterator[str]:
    """
    >>> list(_pages([{"a": "b.md"}, "c.md", {"d": ["e.md"]}]))
    ['b.md', 'c.md', 'e.md']
    """
    if isinstance(nav, str):
        yield nav
    for inner in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from _pages(inner)


def _line(page: str) -> str:
    source = ROOT / "docs" / page
    title, first = heading(source.read_text(encoding="utf-8")) if source.is_file() else (page, "")
    address = (
        page.removesuffix("README.md") + "index.html"
        if page.endswith("README.md")
        else f"{page.removesuffix('.md')}.html"
    )
    return f"- [{title or page}]({address})" + (f": {first}" if first else "")


def heading(markdown: str) -> tuple[str, str]:
    """Title, and the first sentence of the first paragraph.

    >>> heading("# T\\n\\nOne line\\nand another. More.\\n")
    ('T', 'One line and another.')
    """
    title, paragraph = "", ""
    for part in markdown.split("\n\n"):
        head, _, after = part.strip().partition("\n")
        is_title = head.startswith("# ") and not title
        title = head.removeprefix("# ") if is_title else title
        block = after.strip() if is_title else part.strip()
        if title and block and block[0] not in "#|`<!-":
            paragraph = _LINK.sub(r"\1", " ".join(block.split()))
            break
    return title, paragraph.partition(". ")[0].rstrip(".:") + "." if paragraph else ""
