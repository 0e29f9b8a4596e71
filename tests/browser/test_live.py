"""The page of jobs that run under `diag run`: it tells a hang in time, outlives diag, and what was recorded
reads the same."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("playwright", reason="needs playwright (make test installs it)")

from playwright.sync_api import expect

from tests.browser.conftest import Opener
from tests.browser.pages import served
from tests.browser.parts import (
    article,
    axe_issues,
    cell,
    connection,
    overflow,
    panel,
    ready,
    region,
    state_of,
    told,
)
from tests.liverun import DIAG, LiveRun, live_run

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("browser-live"), pytest.mark.timeout(180)]

JOB = [sys.executable, str(Path(__file__).parent / "stuck_ranks.py")]
CULPRIT = 3
HANG = re.compile(r"^critical: hang \(stopped\)")


@dataclass
class Stuck:
    """A run whose last rank will be stopped by a signal after some seconds of steps."""

    run: LiveRun
    url: str
    port: int
    left: list[psutil.Process] = field(default_factory=list)  # of the job, once nothing of diag is above them

    def hung(self) -> None:
        self.run.until(self.run.hang, 90)


def a_free_port() -> int:
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        return int(some.getsockname()[1])


@pytest.fixture(scope="module")
def stuck() -> Iterator[Stuck]:
    port = a_free_port()
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        live_run(Path(folder), [*JOB, "4", "40"], "--port", str(port)) as run,
    ):
        made = Stuck(run, run.until(lambda: run.run_json().get("url"), 60), port)
        try:
            yield made
        finally:
            for process in made.left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(made.left, timeout=10)


# --- a hang


def test_hang_is_on_the_open_page_five_seconds_after_it_was_found(stuck: Stuck, opener: Opener) -> None:
    page = opener(stuck.url).open()
    expect(connection(page)).to_contain_text("live")
    expect(region(page, "Findings").get_by_role("article")).to_have_count(0)

    expect(article(page, HANG)).to_be_visible(timeout=90_000)
    seen = time.time()

    change = stuck.run.hang()
    assert change is not None
    print(f"hang on the page {seen - change['opened_at']:.1f} s after it was found")
    assert seen - change["opened_at"] < 5.0
    assert page.title().startswith("!") or "hang" in page.title().lower() or "hung" in page.title().lower(), (
        page.title()
    )
    ready(page, "The job is hung")
    culprits = article(page, HANG).get_by_role("group", name="Culprit ranks")
    expect(culprits.get_by_role("button", name=f"rank {CULPRIT}", exact=True)).to_be_visible()
    expect(cell(page, CULPRIT, "hung")).to_be_visible()
    for rank in range(CULPRIT):
        expect(cell(page, rank, "stalled")).to_be_visible()
    cell(page, 0, "stalled").click()
    expect(panel(page, 0).get_by_role("region", name="Stacks of rank 0")).to_contain_text(
        "waits_for_the_others"
    )


def test_time_line_of_a_live_job_has_its_steps_and_the_mark_of_the_hang(stuck: Stuck, opener: Opener) -> None:
    stuck.hung()
    page = opener(stuck.url).open()

    line = region(page, "Time line")
    expect(line.get_by_role("button", name=re.compile("hang")).first).to_be_visible(timeout=20_000)
    said = " ".join(
        line.get_by_role("img").evaluate_all("all => all.map((one) => one.getAttribute('aria-label') || '')")
    )
    assert "steady" in said + line.inner_text()


def test_flame_graph_of_a_living_rank_is_recorded_when_asked(stuck: Stuck, opener: Opener) -> None:
    stuck.hung()
    page = opener(stuck.url).open()
    cell(page, 0).click()
    flame = panel(page, 0).get_by_role("region", name="Flame graph of rank 0")

    flame.get_by_role("spinbutton", name="Seconds").fill("1")
    flame.get_by_role("button", name="Record").click()

    expect(flame.locator("iframe").content_frame.get_by_text("waits_for_the_others").first).to_be_attached(
        timeout=40_000
    )


def test_dump_is_made_with_the_keyboard_alone_and_can_be_copied(stuck: Stuck, opener: Opener) -> None:
    stuck.hung()
    page = opener(stuck.url).open()
    ready(page, "The job is hung")
    dump = page.get_by_role("button", name="Dump now")
    for _ in range(30):
        page.keyboard.press("Tab")
        if dump.evaluate("one => one === document.activeElement"):
            break
    page.keyboard.press("Enter")

    copy = region(page, "Dump").get_by_role("button", name="Copy dump")
    expect(copy).to_be_visible(timeout=30_000)
    expect(region(page, "Dump")).to_contain_text("waits_for_the_others")
    copy.click()
    expect(region(page, "Dump").get_by_text("copied", exact=True)).to_be_visible()
    assert "waits_for_the_others" in page.evaluate("navigator.clipboard.readText()")
    assert stuck.run.run_dir is not None
    with page.expect_download() as taken:
        region(page, "Dump").get_by_role("link", name="Download the bundle").click()
    bundle = stuck.run.run_dir / "dumps" / taken.value.suggested_filename
    assert Path(taken.value.path()).read_bytes() == bundle.read_bytes()
    assert axe_issues(page) == [] and overflow(page) == []


# --- what was recorded


def test_bundle_of_a_dump_and_run_directory_read_like_the_live_page(
    stuck: Stuck, opener: Opener, tmp_path: Path
) -> None:
    stuck.hung()
    live = opener(stuck.url).open()
    ready(live, "The job is hung")
    expect(live.get_by_role("gridcell")).to_have_count(4)
    expect(region(live, "Stacks")).to_contain_text("waits_for_the_others")
    bundle = tmp_path / "bundle.tar.gz"
    words = ["dump", "--run-dir", str(stuck.run.run_dir), "-o", str(bundle)]
    subprocess.run([*DIAG, *words], check=False, capture_output=True, timeout=60)
    state = facts(state_of(stuck.url))

    assert stuck.run.run_dir is not None
    for evidence in (bundle, stuck.run.run_dir):
        with served(evidence) as url:
            page = opener(url).open()
            ready(page, "The job is hung")
            expect(page.get_by_role("gridcell")).to_have_count(4)
            again = told(page)
            end = time.monotonic() + 15
            # the open page hears of a look with its next event
            while told(live) != again and time.monotonic() < end:
                live.wait_for_timeout(200)
            assert told(live) == again
            assert facts(state_of(url)) == state
            page.close()


def facts(state: dict[str, Any]) -> dict[str, Any]:
    """What does not go by how the page came by it: a record that ends while the job goes on says so."""
    report = state["report"]
    return {
        "findings": [
            (one["id"], one["class"], one["cause"], one["ranks"], one["advice"]) for one in report["findings"]
        ],
        "not checked": [one for one in report["not_checked"] if one["what"] != "how the run ended"],
        "ranks": [(one["rank"], one["state"], one["where"], one["pid"]) for one in state["ranks"]],
        "stacks": [(one["kind"], one["ranks"], one["frames"]) for one in state["stacks"]],
    }


# --- diag ends


def test_page_outlives_the_end_of_its_job_and_says_so(opener: Opener, tmp_path: Path) -> None:
    enough = tmp_path / "enough"
    with live_run(tmp_path, [*JOB, "2", "0"], env={"UNTIL": str(enough)}) as run:
        watched = opener(run.until(lambda: run.run_json().get("url"), 60))
        page = watched.open()
        expect(page.get_by_role("gridcell")).to_have_count(2, timeout=20_000)
        enough.touch()
        assert run.wait(60) == 0

        expect(connection(page)).to_contain_text(re.compile("ended|does not answer"), timeout=15_000)
        expect(page.get_by_role("gridcell")).to_have_count(2)
        expect(page.get_by_role("heading", level=1)).to_have_text(re.compile("^The job"))
    watched.forgive("ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_CONNECTION_RESET")


def test_page_says_that_a_killed_diag_does_not_answer_and_comes_back_with_the_next_one(
    stuck: Stuck, opener: Opener
) -> None:
    stuck.hung()
    watched = opener(stuck.url)
    page = watched.open()
    ready(page, "The job is hung")
    before = told(page)["findings"]
    family = [stuck.run.process, *stuck.run.process.children(recursive=True)]
    # a rank is `python -u stuck_ranks.py ...`
    stuck.left += [process for process in family if JOB[1] in process.cmdline()[1:3]]
    for process in family:
        if process not in stuck.left:
            process.kill()

    expect(connection(page)).to_contain_text("does not answer", timeout=10_000)
    assert told(page)["findings"] == before
    words = [
        *DIAG,
        "watch",
        "--run-dir",
        str(stuck.run.run_dir),
        "--port",
        str(stuck.port),
        "--run-root",
        str(stuck.run.root),
    ]
    again = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        expect(connection(page)).to_contain_text("live", timeout=40_000)
        expect(page.get_by_role("gridcell")).to_have_count(4, timeout=20_000)
        expect(cell(page, 0)).to_be_visible()
    finally:
        page.close()  # it would ask again and again, also after what it met is forgiven
        again.send_signal(signal.SIGTERM)
        again.wait(20)
        watched.forgive("ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_CONNECTION_RESET")
    assert json.loads((stuck.run.run_dir or Path()).joinpath("run.json").read_text())
