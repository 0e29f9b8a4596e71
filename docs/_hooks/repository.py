"""Documents of the repository that lie outside of docs/, as pages of the site, and links between all of them.

Links are written so that they work in the repository (../deploy/docker/README.md). In the site those to a document lead to its
page; those to other files of the repository become plain text.
"""

from __future__ import annotations

import posixpath
import re
from functools import cache
from pathlib import Path

__all__ = ["ROOT", "mounted", "with_site_links"]

ROOT = Path(__file__).resolve().parents[2]
_SINGLE = {
    "README.md": "project/overview.md",
    "README.zh.md": "zh/overview.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "dashboards/README.md": "dashboards/README.md",
    "rules/README.md": "rules/README.md",
    "tests/captures/README.md": "project/captures.md",
}
_INSTEAD = {"DECISIONS.md": "docs/decisions/index.md"}  # what only points to a page of docs/
_LINK = re.compile(r"(!?)\[((?:[^\[\]`]|`[^`]*`|!\[[^\]]*\]\([^)]*\))*)\]\(([^)\s]+)\)")


@cache
def mounted() -> dict[str, str]:
    """Path in the repository -> page of the site."""
    found = {name: page for name, page in _SINGLE.items() if (ROOT / name).exists()}
    readmes = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "deploy").rglob("README.md"))
    return {**found, **{name: name for name in readmes}}


def with_site_links(text: str, page: str) -> str:
    """The markdown of `page` (its path in the site) with links as the site has them."""
    home = {there: here for here, there in mounted().items()}.get(page, f"docs/{page}")

    def link(match: re.Match[str]) -> str:
        image, label, target = match.groups()
        path, hash_sign, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:|/", target):
            return match[0]
        place = posixpath.normpath(posixpath.join(posixpath.dirname(home), path))
        there = _page(place)
        if there is None:
            return str(label) if (ROOT / place).exists() else match[0]
        relative = posixpath.relpath(there, posixpath.dirname(page) or ".")
        return f"{image}[{label}]({relative}{hash_sign}{anchor})"

    lines, fence = text.split("\n"), ""
    for number, line in enumerate(lines):
        mark = re.match(r"\s*(`{3,}|~{3,})", line)
        if mark and (not fence or line.strip() == fence):
            fence = "" if fence else mark[1]
        elif not fence:
            lines[number] = _LINK.sub(link, line)
    return "\n".join(lines)


def _page(place: str) -> str | None:
    """The path in the site of what lies at `place` in the repository, or would; None for what the site has not."""
    for candidate in (place, f"{place}/README.md"):
        if candidate in mounted():
            return mounted()[candidate]
    place = _INSTEAD.get(place, place)
    if not place.startswith("docs/"):
        return None
    if not (ROOT / place).is_dir():
        return place.removeprefix("docs/")
    return f"{place.removeprefix('docs/')}/index.md" if (ROOT / place / "index.md").exists() else None
