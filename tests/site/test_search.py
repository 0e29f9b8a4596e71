"""The site opened from a disk in a browser: search answers in both languages, light and dark are there,
nothing is fetched."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("site")]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def test_search_finds_findings_from_a_disk_in_both_languages(site: Path) -> None:
    browser_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no chromium")
    with browser_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(color_scheme="dark")
        fetched: list[str] = []
        errors: list[str] = []
        page.on("request", lambda request: fetched.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto((site / "findings" / "hang.html").as_uri())

        for wanted, first in (
            ("rank-died", "rank-died"),
            ("显存", "cuda-oom"),
            ("NCCL_IB_DISABLE", "ib-fallback"),
        ):
            page.click("input.md-search__input")
            page.keyboard.type(wanted)
            page.keyboard.press("End")  # Chinese comes without a key
            page.wait_for_function(
                "first => [...document.querySelectorAll('.md-search-result__item h1')].some(one => one.innerText == first)",
                arg=first, timeout=20_000,
            )  # fmt: skip
            page.fill("input.md-search__input", "")

        assert page.evaluate("document.body.dataset.mdColorScheme") == "slate"
        assert [url for url in fetched if not url.startswith(("file:", "data:"))] == []
        assert errors == []
        browser.close()
