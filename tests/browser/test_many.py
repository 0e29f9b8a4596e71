"""A thousand ranks on the page: usable at once, and no more in it than a person sees."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="needs playwright (make test installs it)")

from playwright.sync_api import Page, expect

from tests.browser.bigjob import many_ranks
from tests.browser.conftest import Opener
from tests.browser.pages import PHONE, served
from tests.browser.parts import article, axe_issues, cell, overflow, panel, ready, region

pytestmark = [pytest.mark.xdist_group("browser-many"), pytest.mark.timeout(240)]

CULPRIT = 517
GOAL_SECONDS = 2.0
_MOST_NODES = 4096  # of them most are the stacks of the opened rank


@pytest.fixture(scope="module")
def thousand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(many_ranks(tmp_path_factory.mktemp("many") / "1024", 128, CULPRIT)) as url:
        yield url


def seconds_to_details(page: Page, url: str, culprit: int) -> tuple[float, float]:
    """From the start of the navigation, by the browser's clock: until the culprit's cell is there, and until
    a click on it has opened its details."""
    page.goto(url, wait_until="commit")
    cell(page, culprit, "delaying").wait_for()
    there = page.evaluate("performance.now()")
    cell(page, culprit, "delaying").click()
    panel(page, culprit).get_by_role("heading").first.wait_for()
    return there / 1000, page.evaluate("performance.now()") / 1000


def test_culprit_among_a_thousand_ranks_is_opened_within_two_seconds(thousand: str, opener: Opener) -> None:
    tries = []
    for _ in range(3):
        page = opener(thousand).page
        tries.append(seconds_to_details(page, thousand, CULPRIT))
        nodes = page.evaluate("document.querySelectorAll('*').length")
        page.close()
    print(
        "1,024 ranks: "
        + "; ".join(f"cell after {there:.2f} s, details after {open_:.2f} s" for there, open_ in tries)
    )
    print(f"1,024 ranks: {nodes} elements")

    # Where more wants to run than there are processors, all takes that much longer.
    crowd = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    assert sorted(open_ for _, open_ in tries)[1] < GOAL_SECONDS * crowd, (tries, crowd)
    assert nodes < _MOST_NODES


def test_page_of_a_thousand_ranks_names_one_and_keeps_the_rest_short(thousand: str, opener: Opener) -> None:
    page = opener(thousand).open()
    ready(page, "The job is held-up")

    picture = page.get_by_role("grid", name="Ranks by node")
    expect(picture).to_have_attribute("aria-rowcount", "8")
    expect(picture).to_have_attribute("aria-colcount", "128")
    assert picture.get_by_role("gridcell").count() < 70, "what a person is pointed to is an element, no more"
    box = picture.bounding_box()
    assert box is not None and box["height"] < 0.5 * 900, "all ranks are on one screen"
    finding = article(page, "warning: held-up (data_loading)")
    expect(
        finding.get_by_role("group", name="Culprit ranks").get_by_role("button", name=f"rank {CULPRIT}")
    ).to_be_visible()
    box = finding.bounding_box()
    assert box is not None and box["height"] < 700, "the waiting ranks fill the screen"
    assert finding.get_by_role("group", name="Waiting ranks").get_by_role("button").count() < 20
    assert len(region(page, "Stacks").inner_text()) < 10_000
    page.get_by_role("searchbox", name="Search ranks").fill("512-519")
    expect(region(page, "Ranks").get_by_role("status").first).to_contain_text("8 ranks of 1024")
    assert overflow(page) == []
    page.set_viewport_size(PHONE)
    assert overflow(page) == []


def pixel(page: Page, rank: int) -> list[int]:
    """The colour of a rank's cell in the picture."""
    found: list[int] = page.evaluate(
        """rank => { const canvas = document.querySelector(".heat canvas");
      const cells = [...document.querySelectorAll(".heat [data-rank]")];
      const cell = cells.find((one) => Number(one.dataset.rank) === rank);
      const [x, y] = [parseFloat(cell.style.left) + 3, parseFloat(cell.style.top) + 3].map((at) => at * devicePixelRatio);
      const copy = Object.assign(document.createElement("canvas"), {width: 1, height: 1}).getContext("2d");
      copy.drawImage(canvas, x, y, 1, 1, 0, 0, 1, 1);
      return [...copy.getImageData(0, 0, 1, 1).data].slice(0, 3); }""",
        rank,
    )
    return found


def test_number_colours_the_ranks_and_who_is_unlike_the_others_is_told(thousand: str, opener: Opener) -> None:
    page = opener(thousand).open()
    ready(page, "The job is held-up")
    ranks = region(page, "Ranks")
    odd = ranks.get_by_role("list", name="Unlike the others")
    expect(odd).to_contain_text("share of a step: data 100 %, median 0 %")
    page.get_by_role("searchbox", name="Search ranks").fill("516-518")
    page.get_by_role("searchbox", name="Search ranks").press("Enter")  # selected: each is an element
    page.get_by_role("searchbox", name="Search ranks").fill("")

    ranks.get_by_role("combobox", name="Colour by").select_option(label="share of a step: data")

    expect(ranks.locator(".scale")).to_contain_text("100 %")
    assert pixel(page, 516) == pixel(page, 518) != pixel(page, CULPRIT)
    odd.get_by_role("button", name=f"rank {CULPRIT}").first.click()
    expect(cell(page, CULPRIT)).to_have_attribute("aria-selected", "true")


def test_picture_is_one_stop_of_tab_and_any_rank_is_reached_by_arrows_and_by_mouse(
    thousand: str, opener: Opener
) -> None:
    page = opener(thousand).open()
    ready(page, "The job is held-up")
    cell(page, CULPRIT).focus()
    for key, rank in (("ArrowDown", 518), ("ArrowRight", 526), ("ArrowUp", 525), ("Home", 0), ("End", 1023)):
        page.keyboard.press(key)
        expect(cell(page, rank)).to_be_focused()
    assert page.locator('[role="gridcell"][tabindex="0"]').count() == 1
    page.keyboard.press("Enter")
    expect(panel(page, 1023)).to_be_visible()
    page.keyboard.press("Escape")

    box = cell(page, 1023).bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 3, box["y"] - box["height"])  # the one above, which has no element
    expect(panel(page, 1022)).to_be_visible()


def test_axe_finds_nothing_among_a_thousand_ranks(thousand: str, opener: Opener) -> None:
    page = opener(thousand).open()
    ready(page, "The job is held-up")

    assert axe_issues(page) == []


@pytest.mark.skipif("PICTURES" not in os.environ, reason="a figure, no limit: make screenshots takes it")
def test_four_thousand_ranks(tmp_path: Path, opener: Opener) -> None:
    with served(many_ranks(tmp_path / "4096", 512, CULPRIT)) as url:
        page = opener(url).page
        there, open_ = seconds_to_details(page, url, CULPRIT)
        nodes = page.evaluate("document.querySelectorAll('*').length")
        print(f"4,096 ranks: cell after {there:.2f} s, details after {open_:.2f} s; {nodes} elements")
        page.close()
