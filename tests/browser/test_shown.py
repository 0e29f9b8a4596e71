"""What the page makes of a recorded hang: numbers, rows, bars, flames, a word on the desktop. Four ranks on H200s."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="needs playwright (make test installs it)")

from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import Opener
from tests.browser.pages import served
from tests.browser.parts import article, axe_issues, overflow, ready, region

pytestmark = [pytest.mark.xdist_group("browser-recorded"), pytest.mark.timeout(120)]

CAPTURES = Path(__file__).parents[1] / "captures"
HANG = re.compile(r"^warning: held-up")
SENTENCE = "The job is held-up"


@pytest.fixture
def page(opener: Opener, recorded_hang: str) -> Page:
    page = opener(recorded_hang).open()
    ready(page, SENTENCE)
    return page


def tile(page: Page, name: str) -> Locator:
    return page.locator(".tile").filter(has=page.get_by_text(name, exact=True))


def test_job_is_told_in_numbers(page: Page) -> None:
    expect(tile(page, "Iteration")).to_contain_text("5 / 1,000,000")
    expect(tile(page, "Iteration").get_by_role("progressbar")).to_be_visible()
    expect(tile(page, "Step time")).to_contain_text("0.64 s")
    expect(tile(page, "Ranks")).to_contain_text("4 / 4")
    expect(tile(page, "Ranks")).to_contain_text("1 delaying, 3 stalled")
    expect(tile(page, "GPUs, mean")).to_contain_text("lowest 0 %, rank 2")
    expect(tile(page, "Open findings")).to_contain_text("1 warning")
    # a job that stands does not come to its end at the pace it had
    expect(tile(page, "Iteration")).not_to_contain_text("left")


def test_few_ranks_are_coloured_by_a_number_and_say_it(page: Page) -> None:
    ranks = region(page, "Ranks")
    ranks.get_by_role("combobox", name="Colour by").select_option(label="GPU utilisation")

    for rank, said, level in ((2, "GPU utilisation: 0 %", "h0"), (3, "GPU utilisation: 100 %", "h8")):
        one = ranks.locator(f'[data-rank="{rank}"]')
        expect(one.locator("small").first).to_have_attribute("data-said", said)
        expect(one).to_have_class(re.compile(rf"\b{level}\b"))
    expect(ranks.get_by_role("list", name="Unlike the others")).to_contain_text(
        "rank 2: GPU utilisation 0 %, median 100 %"
    )
    assert axe_issues(page) == []
    ranks.get_by_role("combobox", name="Colour by").select_option("state")
    expect(ranks.locator('[data-rank="2"]')).to_have_class(re.compile("s-delaying"))


def test_job_that_goes_on_says_when_it_will_be_through(page: Page) -> None:
    page.evaluate("""async () => { const { store, stir } = await import("./assets/store.js");
      Object.assign(store.report.job, {state: "running", total_iterations: 105, iteration: 5});
      store.report.job.steps.seconds_now = 2; stir("report"); }""")

    expect(tile(page, "Iteration")).to_contain_text("4.8 %, about 3 min 20 s left")


def test_finding_is_a_claim_and_rows(page: Page) -> None:
    finding = article(page, HANG)

    expect(finding.locator(".summary")).to_have_text(
        "rank 2 has waited for a batch from DataLoader worker pid 3053, which is blocked in _read_shard "
        "(/opt/diag/diag/job/faults/in_worker.py:67)"
    )
    rows = dict(
        zip(finding.locator("dt").all_inner_texts(), finding.locator("dd").all_inner_texts(), strict=True)
    )
    assert (rows["stands for"], rows["when"], rows["seen"]) == (
        "22 s",
        "after iteration 5/1000000",
        "4 of 4 ranks seen",
    )
    assert "rank 3 waits in Event.synchronize" in rows["waits for it"]


def test_run_that_has_ended_is_told_in_short_and_has_no_stacks_to_show(opener: Opener) -> None:
    with served(CAPTURES / "h200-live" / "healthy") as url:
        page = opener(url).open()
        ready(page, "The job finished (exit 0);")
        short = region(page, "The run in short")

        expect(short).to_contain_text("median 0.7 s, 95th percentile 0.77 s, of 29 steps")
        expect(short).to_contain_text("at most 7.08 GiB of 140 GiB")
        expect(region(page, "Stacks")).to_contain_text("The job has ended: no process is left to look at.")
        expect(tile(page, "Lasted")).to_contain_text("1 min 9 s")
        assert axe_issues(page) == [] and overflow(page) == []


def test_flame_graph_is_searched_and_enlarged_and_the_culprit_has_its_own_colour(page: Page) -> None:
    page.get_by_role("button", name="Flame graph of all ranks").click()
    dialog = page.get_by_role("dialog", name="Flame graph of all ranks")
    waits = dialog.get_by_role("button", name=re.compile("^Queue.get"))
    expect(waits).to_have_class(re.compile("culprit"))
    expect(dialog.get_by_role("button", name=re.compile("^MoELayer.dispatch"))).to_have_class(
        re.compile("victim")
    )

    dialog.get_by_role("searchbox", name="Search frames").fill("Queue.get")
    expect(dialog.get_by_role("status").first).to_have_text("25 % of all matches")
    expect(waits).to_have_class(re.compile("hit"))
    waits.click()
    expect(dialog.get_by_role("button", name=re.compile("^MoELayer.dispatch"))).to_have_count(0)
    assert axe_issues(page) == []
    dialog.get_by_role("button", name="Reset zoom").click()
    expect(dialog.get_by_role("button", name=re.compile("^MoELayer.dispatch"))).to_be_visible()


def test_finding_is_a_bar_from_its_begin_to_its_end_and_quiet_charts_are_folded(page: Page) -> None:
    line = region(page, "Time line")
    bar, band = line.locator(".stretch").bounding_box(), line.locator(".marks").bounding_box()

    assert bar is not None and band is not None
    assert 0.15 < bar["width"] / band["width"] < 0.4, "21 of 82 seconds"
    assert bar["x"] + bar["width"] == pytest.approx(band["x"] + band["width"], abs=1.5), (
        "it was open at the end"
    )
    charts = line.get_by_role("img").count()
    line.get_by_text("Quiet charts (2): /dev/shm, Network").click()
    expect(line.get_by_role("img")).to_have_count(charts + 2)


def test_two_culprits_have_a_colour_and_a_sign_each(page: Page) -> None:
    page.evaluate("""async () => { const { store, stir } = await import("./assets/store.js");
      store.report = {...store.report, findings: store.report.findings.map((one) => ({...one, ranks: [1, 2]}))}; stir("report"); }""")
    line = region(page, "Time line")
    charts = line.locator("figure").filter(has_text="CPU of the ranks")

    expect(charts.locator(".hit1")).to_contain_text("rank 1")
    expect(charts.locator(".hit2")).to_contain_text("rank 2")
    dots = charts.locator(".hit .dot").evaluate_all(
        "all => all.map((one) => [getComputedStyle(one).backgroundColor, getComputedStyle(one).borderRadius].join())"
    )
    assert len(set(dots)) == 2


def test_new_critical_finding_is_told_on_the_desktop_once_a_person_asked_for_it(
    opener: Opener, recorded_hang: str
) -> None:
    page = opener(recorded_hang, permissions=["notifications"]).page
    page.add_init_script("""window.__told = []; window.Notification = class {
      constructor(title, more) { window.__told.push([title, more.body]); }
      static permission = "granted"; static async requestPermission() { return "granted"; } };""")
    page.goto(recorded_hang, wait_until="domcontentloaded")
    ready(page, SENTENCE)
    assert page.get_by_role("button", name="Notify me").count() == 0, "nothing new comes of recorded evidence"
    come = """async ([id, severity]) => { const { store, stir } = await import("./assets/store.js");
      store.head = {...store.head, recorded: ""}; stir("head");
      const one = {...store.report.findings[0], id, severity, opened_at: 1};
      store.report = {...store.report, findings: [one, ...store.report.findings]}; stir("report");
      await new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go))); return window.__told; }"""
    assert page.evaluate(come, ["hang", "critical"]) == [], "nobody has asked for it"

    page.get_by_role("button", name="Notify me").click()
    expect(page.get_by_role("button", name="Notify me")).to_have_attribute("aria-pressed", "true")
    assert page.evaluate(come, ["oom", "warning"]) == []
    told = page.evaluate(come, ["rank-died", "critical"])
    assert len(told) == 1 and told[0][0].startswith("rank-died (data_loading) - ")
    assert len(page.evaluate(come, ["rank-died", "critical"])) == 1, "it was told"


def test_wide_screen_is_used(page: Page) -> None:
    page.set_viewport_size({"width": 1920, "height": 1080})
    boxes = [region(page, name).bounding_box() for name in ("Findings", "Ranks", "Time line")]

    findings, ranks, line = boxes
    assert findings and ranks and line
    assert findings["x"] < 40 and line["x"] + line["width"] > 1880
    assert ranks["x"] > findings["x"] + findings["width"] and abs(ranks["y"] - findings["y"]) < 2
