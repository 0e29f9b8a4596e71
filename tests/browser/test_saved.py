"""The page as one file, opened from disk: it shows what the served page shows, and asks nobody."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="needs playwright (make test installs it)")

from playwright.sync_api import Page, expect

from tests.browser.bigjob import RECORDED, many_ranks
from tests.browser.conftest import Opener
from tests.browser.parts import article, axe_issues, cell, panel, ready, region
from tests.browser.test_odd_text import MARKUP
from tests.liverun import DIAG

pytestmark = [pytest.mark.xdist_group("browser-recorded"), pytest.mark.timeout(180)]

HANG = re.compile(r"^warning: held-up")


def written(evidence: Path, file: Path) -> Path:
    command = [*DIAG, "report", str(evidence), "-o", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert file.stat().st_size < 2_000_000
    return file


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(RECORDED, tmp_path_factory.mktemp("saved") / "report.html")


@pytest.fixture
def asked() -> Iterator[list[str]]:
    """What the page asked for over any network; the fixture `page` fills it."""
    found: list[str] = []
    yield found
    assert found == []


@pytest.fixture
def page(opener: Opener, report: Path, asked: list[str]) -> Page:
    watched = opener("file://")
    watched.page.on(
        "request",
        lambda request: (
            asked.append(request.url) if not request.url.startswith(("data:", f"file://{report}")) else None
        ),
    )
    page = watched.open(str(report))
    ready(page, "The job is held-up")
    return page


def test_it_has_findings_ranks_stacks_and_time_line_from_disk(page: Page) -> None:
    finding = article(page, HANG)
    expect(finding).to_contain_text("rank 2 has waited for a batch from DataLoader worker pid 3053")
    finding.get_by_text(re.compile(r"^Evidence \(\d+\)$")).click()
    expect(finding.get_by_text("AllGather launched 521").first).to_be_visible()
    expect(region(page, "Stacks")).to_contain_text("_try_get_data")
    expect(region(page, "Time line").get_by_role("img").first).to_be_visible()
    expect(page.get_by_text("A report that was saved as a file:")).to_be_visible()

    cell(page, 2).click()
    expect(panel(page, 2).get_by_role("region", name="Stacks of rank 2")).to_contain_text("_try_get_data")
    expect(
        panel(page, 2).get_by_role("region", name="Time line of rank 2").get_by_role("img").first
    ).to_be_visible()


def test_it_has_manual_pages_and_chinese_and_nothing_that_needs_diag(page: Page) -> None:
    for name in ("Dump now", "Report", "Record", "Flame graph of all ranks"):
        expect(page.get_by_text(name, exact=True)).to_have_count(0)
    article(page, HANG).get_by_role("button", name="Explain held-up").click()
    manual = page.get_by_role("dialog")
    expect(manual).to_contain_text("False alarms")
    manual.get_by_role("button", name="中文").click()
    expect(manual).to_contain_text("误报")
    page.keyboard.press("Escape")

    page.get_by_role("button", name="Language: English; 中文").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("任务被拖住")
    expect(page.get_by_role("region", name="结论").get_by_role("article").first).to_contain_text(
        "DataLoader worker（pid 3053）"
    )


def test_it_can_be_read_by_all(page: Page) -> None:
    assert axe_issues(page) == []


def test_what_a_large_job_has_too_much_is_named(opener: Opener, tmp_path: Path) -> None:
    file = written(many_ranks(tmp_path / "many", 128, 517), tmp_path / "many.html")

    page = opener("file://").open(str(file))
    ready(page, "The job is held-up")
    expect(page.get_by_role("note")).to_have_text(re.compile(r"^Cut to keep the file small: .*of ranks \d"))
    expect(cell(page, 517)).to_be_visible()
    cell(page, 517).click()
    expect(panel(page, 517).get_by_role("region", name="Stacks of rank 517")).to_contain_text("_try_get_data")
    page.get_by_role("searchbox").fill("1020")


def test_text_of_the_job_is_text_in_it(opener: Opener, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    lines = [f"RuntimeError: {MARKUP}", f'  File "/app/{MARKUP}.py", line 3, in <module>']
    log.write_text("Traceback (most recent call last):\n" + "\n".join(reversed(lines)) + "\n")

    page = opener("file://").open(str(written(log, tmp_path / "odd.html")))

    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(region(page, "Findings")).to_contain_text("<script>alert(1)")
    assert page.evaluate("window.__hit") is None


def test_button_of_a_served_page_gives_the_file(opener: Opener, recorded_hang: str, tmp_path: Path) -> None:
    page = opener(recorded_hang).open()
    ready(page, "The job is held-up")

    with page.expect_download() as waiting:
        page.get_by_role("link", name="Report", exact=True).click()
    file = tmp_path / waiting.value.suggested_filename
    waiting.value.save_as(file)

    assert re.fullmatch(r"diag-report-[\w.-]+\.html", file.name)
    ready(opener("file://").open(str(file)), "The job is held-up")
