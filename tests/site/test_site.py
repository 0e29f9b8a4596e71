"""The built site: strict (no broken link or anchor, no page outside of nav), complete, and without anything
from a network."""

from __future__ import annotations

import html
import json
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from diag.detectors.rules.load import packaged
from diag.model import what_holds
from diag.outputs import manual
from diag.outputs.prometheus.prometheus import METRICS

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.xdist_group("site")


@cache
def words(page: Path) -> str:
    """The page's own text, as a reader sees it."""
    text = page.read_text(encoding="utf-8")
    article = re.search(r"<article.*?</article>", text, re.DOTALL)
    assert article is not None, page
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", article[0])).split())


def plain(text: str) -> str:
    return " ".join(text.replace("`", "").split())


@pytest.mark.parametrize(("lang", "folder"), [("en", "findings"), ("zh", "zh/findings")])
def test_every_finding_has_its_page_with_all_that_the_manual_says(site: Path, lang: str, folder: str) -> None:
    index = words(site / folder / "index.html")

    assert len(manual.ids()) > 50
    for finding in manual.ids():
        page = words(site / folder / f"{finding}.html")
        said = [
            line.removeprefix("- ")
            for text in manual.sections(finding, lang).values()
            for line in text.splitlines()
        ]
        assert [line for line in said if plain(line).lower() not in page.lower()] == [], finding
        assert plain(manual.meaning(finding, lang)).lower() in index.lower()
        assert set(manual.causes(finding, lang)) <= set(re.findall(r"\w+", page))
    assert {page.stem for page in (site / folder).glob("*.html")} == {*manual.ids(), "index"}


@pytest.mark.parametrize(("lang", "folder"), [("en", "findings"), ("zh", "zh/findings")])
def test_every_rule_is_on_the_page_of_its_finding_with_a_line_that_it_is_for(
    site: Path, lang: str, folder: str
) -> None:
    rules = [rule for rule in packaged().rules if rule.finding]
    assert len(rules) > 200

    for rule in rules:
        page = words(site / folder / f"{rule.finding}.html")
        told = rule.zh if lang == "zh" else rule
        assert f"{rule.id}: " in page and plain(what_holds(told.advice, over=False)) in page, rule.id
        lines = [
            line
            for line in rule.examples[0].text.splitlines()
            if any(one.literal in line for one in rule.match)
        ]
        assert any(
            plain(line.strip()[:200]) in plain(page) for line in lines or rule.examples[0].text.splitlines()
        ), rule.id
        assert all(versions in page for versions in rule.applies.values())


def test_every_alert_is_on_the_page_that_it_leads_to(site: Path) -> None:
    groups = yaml.safe_load((ROOT / "rules" / "alerts" / "diag.yaml").read_text())["groups"]
    alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    leading = [(rule["alert"], match[1]) for rule in alerts
               if (match := re.fullmatch(r"diag/outputs/manual/en/([a-z-]+)\.md", rule["annotations"]["runbook_url"]))]  # fmt: skip

    assert len(leading) > 10
    assert [
        alert for alert, finding in leading if alert not in words(site / "findings" / f"{finding}.html")
    ] == []
    # the alert for kinds of findings is told where its expression does not leave them out
    assert "DiagFinding" in words(site / "findings" / "fd-limit.html")
    assert "DiagFinding " not in words(site / "findings" / "hang.html")


def test_every_metric_and_every_path_of_the_api_has_its_place(site: Path) -> None:
    metrics, api = words(site / "reference" / "metrics.html"), words(site / "reference" / "http-api.html")
    described = json.loads((site / "reference" / "openapi.json").read_text())["paths"]

    assert [one.name for one in METRICS if plain(f"{one.name} {one.type}") not in metrics] == []
    assert {"/findings", "/ranks", "/dump", "/metrics"} <= set(described)
    assert [
        path
        for path, methods in described.items()
        for method in methods
        if f"{method.upper()} {path}" not in api
    ] == []


class Resources(HTMLParser):
    """What a browser fetches by itself when it opens a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "img", "iframe", "source", "audio", "video", "embed", "input", "object"):
            self.found += [given.get(name) or "" for name in ("src", "srcset", "data", "poster")]
        if tag == "link" and (given.get("rel") or "") not in ("prev", "next", "canonical"):
            self.found.append(given.get("href") or "")
        if tag == "base":
            self.found.append(given.get("href") or "")


def test_no_page_fetches_anything_from_a_network(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 150

    for page in pages:
        text = page.read_text(encoding="utf-8")
        resources = Resources()
        resources.feed(text)
        assert [one for one in resources.found if re.match(r"(https?:)?//", one)] == [], page
        assert 'class="mermaid"' not in text, f"{page}: mermaid is drawn by a script from a network"
        for source in filter(None, resources.found):
            if not source.startswith("data:"):
                # 404.html is served from anywhere
                place = site / source[1:] if source.startswith("/") else page.parent / source
                assert place.exists(), f"{page} wants {source}"
    for sheet in site.rglob("*.css"):
        fetched = re.findall(
            r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')]*)", sheet.read_text(encoding="utf-8")
        )
        assert fetched == [], sheet


def test_search_knows_every_page_and_takes_no_chinese_for_punctuation(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    pages = {page.relative_to(site).as_posix() for page in site.rglob("*.html")} - {"404.html"}

    assert pages - found == set()
    assert "trimmer" not in index["config"]["pipeline"]
    assert "\\u4e00" in index["config"]["separator"]


def test_llms_txt_leads_agents_to_pages_that_there_are(site: Path) -> None:
    text = (site / "llms.txt").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)]+)\)", text)

    assert text.startswith("# diag\n\n> ")
    assert len(links) > 40 and len(set(links)) == len(links)
    assert [link for link in links if not (site / link).is_file()] == []
    assert "howto/agents.html" in links
