"""What a person does with the page: by mouse, by keyboard alone, on a phone. Over the recorded hang of four
ranks on H200s."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

pytest.importorskip("playwright", reason="needs playwright (make test installs it)")

from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import Opener
from tests.browser.pages import PHONE, served
from tests.browser.parts import article, axe_issues, cell, overflow, panel, ready, region, state_of

pytestmark = [pytest.mark.xdist_group("browser-recorded"), pytest.mark.timeout(120)]

CAPTURES = Path(__file__).parents[1] / "captures"
CULPRIT = 2
HANG = re.compile(r"^warning: held-up")
SENTENCE = "The job is held-up"


@pytest.fixture
def page(opener: Opener, recorded_hang: str) -> Page:
    page = opener(recorded_hang).open()
    ready(page, SENTENCE)
    return page


def clipboard(page: Page) -> str:
    text: str = page.evaluate("navigator.clipboard.readText()")
    return text


# --- what it says


def test_hang_is_told_with_its_culprit_its_evidence_and_its_advice(page: Page) -> None:
    finding = article(page, HANG)

    expect(finding).to_contain_text("rank 2 has waited for a batch from DataLoader worker pid 3053")
    expect(
        finding.get_by_role("group", name="Culprit ranks").get_by_role("button", name="rank 2", exact=True)
    ).to_be_visible()
    expect(
        finding.get_by_role("group", name="Waiting ranks").get_by_role("button", name="ranks 0-1", exact=True)
    ).to_be_visible()
    expect(finding).to_contain_text("--dataloader_num_workers 0")
    finding.get_by_text(re.compile(r"^Evidence \(\d+\)$")).click()
    expect(finding.get_by_text("AllGather launched 521").first).to_be_visible()


def test_hang_that_is_over_is_shown_open_in_grey_and_the_head_is_not_green(opener: Opener) -> None:
    with served(CAPTURES / "over" / "hang-released") as url:
        page = opener(url).open()
        ready(page, "The job finished (exit 0);")
        told = state_of(url)["report"]
        sentence = page.get_by_role("heading", level=1).inner_text()

        assert " ".join(sentence.split()) == told["sentence"]
        assert "nothing open; 1 over: held-up (data_loading), rank 1, " in sentence
        expect(page.locator(".state")).to_have_text(re.compile(r"finished, with 1 trouble$"))
        expect(page.locator(".state")).to_have_class(re.compile("warning"))
        expect(region(page, "Findings")).not_to_contain_text("Nothing found")
        finding = article(page, "over, was warning: held-up (data_loading)")
        expect(finding).to_be_visible()
        expect(finding).to_contain_text(re.compile(r"\d to .*\d, 24 s"))
        expect(finding).not_to_contain_text("/proc/")
        expect(region(page, "Findings").get_by_role("article")).to_have_count(1)
        assert axe_issues(page) == [] and overflow(page) == []


def test_times_of_the_sentence_are_of_the_zone_of_who_reads(opener: Opener) -> None:
    with served(CAPTURES / "over" / "hang-released") as url:
        page = opener(url, timezone_id="Asia/Shanghai").open()
        ready(page, "The job finished (exit 0);")
        over = state_of(url)["report"]["past"][0]
        begun = datetime.fromtimestamp(over["since"], ZoneInfo("Asia/Shanghai")).strftime("%H:%M:%S")

        expect(page.get_by_role("heading", level=1)).to_contain_text(f"rank 1, {begun}-")
        expect(article(page, "over, was warning: held-up (data_loading)")).to_be_visible()


def test_job_that_failed_while_it_hung_says_when_it_failed_and_not_when_the_hang_began(
    opener: Opener,
) -> None:
    with served(CAPTURES / "h200-live" / "data-hang") as url:
        page = opener(url).open()
        ready(page, "The job failed (exit 247) at ")
        told = state_of(url)["report"]
        [hang] = [one for one in told["findings"] if one["id"] == "held-up"]
        since = page.locator(".since time").first
        expect(article(page, HANG)).to_contain_text(", open when the job ended")

        expect(page.get_by_role("heading", level=1)).to_contain_text(", after being held up for 34 s;")
        assert (
            abs(
                datetime.fromisoformat(str(since.get_attribute("datetime"))).timestamp()
                - told["job"]["ended_at"]
            )
            < 1.0
        )
        assert told["job"]["ended_at"] - hang["since"] > 30


def test_page_that_is_read_from_disk_says_so_and_has_nobody_to_ask(page: Page) -> None:
    expect(page.get_by_role("status", name="Connection")).to_contain_text("recorded")

    dump = page.get_by_role("button", name="Dump now")

    expect(dump).to_have_attribute("aria-disabled", "true")


def test_policy_lets_the_page_load_from_diag_alone(opener: Opener, recorded_hang: str) -> None:
    watched = opener(recorded_hang)
    answer = watched.page.goto(recorded_hang)

    assert answer is not None
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert (
        policy["default-src"] == "'none'"
        and policy["script-src"] == "'self'"
        and policy["frame-ancestors"] == "'none'"
    )
    refused = watched.page.evaluate("""() => new Promise((say) => {
      document.addEventListener("securitypolicyviolation", (event) => say(event.violatedDirective));
      const script = document.createElement("script"); script.textContent = "window.__ran = true"; document.body.append(script);
    })""")
    assert refused.startswith("script-src") and watched.page.evaluate("window.__ran") is None
    assert watched.forgive("Content Security Policy")
    watched.page.evaluate("window.__violations = []")


def test_cell_of_a_rank_opens_its_stacks(page: Page) -> None:
    cell(page, CULPRIT, "delaying").click()

    expect(panel(page, CULPRIT).get_by_role("heading", name="Rank 2: delaying")).to_be_visible()
    stacks = panel(page, CULPRIT).get_by_role("region", name="Stacks of rank 2")
    expect(stacks).to_contain_text("_MultiProcessingDataLoaderIter._try_get_data")
    panel(page, CULPRIT).get_by_role("button", name="Close").click()
    expect(panel(page, CULPRIT)).to_have_count(0)


def test_ranks_that_wait_are_marked_in_the_grid_from_the_finding(page: Page) -> None:
    article(page, HANG).get_by_role("group", name="Waiting ranks").get_by_role(
        "button", name="ranks 0-1", exact=True
    ).click()

    expect(cell(page, 0)).to_have_attribute("aria-selected", "true")
    expect(cell(page, 1)).to_have_attribute("aria-selected", "true")
    expect(cell(page, CULPRIT)).to_have_attribute("aria-selected", "false")


def test_filter_and_search_of_ranks_say_how_many_match(page: Page) -> None:
    ranks = region(page, "Ranks")
    ranks.get_by_role("button", name=re.compile(r"delaying 1$")).click()
    expect(ranks.get_by_role("status").first).to_contain_text("1 rank of 4")
    ranks.get_by_role("button", name=re.compile(r"delaying 1$")).click()
    page.get_by_role("searchbox", name="Search ranks").fill("0-1")
    expect(ranks.get_by_role("status").first).to_contain_text("2 ranks of 4")


def test_merged_stacks_show_the_outlier_first(page: Page) -> None:
    text = region(page, "Stacks").inner_text()

    assert 0 < text.index("_BaseDataLoaderIter.__next__") < text.index("P2PCommunicator"), text[:3000]


# --- flame graphs, time line, copies


def test_flame_graph_of_a_recorded_rank_and_of_all(page: Page) -> None:
    cell(page, CULPRIT, "delaying").click()
    flame = panel(page, CULPRIT).get_by_role("region", name="Flame graph of rank 2")
    flame.get_by_role("button").first.click()
    expect(flame.get_by_role("button", name=re.compile("^_BaseDataLoaderIter.__next__"))).to_be_visible(
        timeout=20_000
    )
    panel(page, CULPRIT).get_by_role("button", name="Close").click()

    page.get_by_role("button", name="Flame graph of all ranks").click()
    dialog = page.get_by_role("dialog", name="Flame graph of all ranks")
    expect(dialog.get_by_role("button", name=re.compile("^BaseMegatronTrainer.train ")).first).to_be_visible(
        timeout=20_000
    )


def test_flame_graph_has_a_sandbox_in_which_it_reaches_nothing_of_ours(
    page: Page, recorded_hang: str
) -> None:
    policy = page.request.get(f"{recorded_hang}/flame").headers["content-security-policy"]

    assert (
        policy.startswith("sandbox") and "allow-same-origin" not in policy and "default-src 'none'" in policy
    )


def test_time_line_shows_the_phases_and_where_the_hang_began(page: Page) -> None:
    line = region(page, "Time line")

    expect(line.get_by_role("img").first).to_be_visible()
    said = " ".join(
        line.get_by_role("img").evaluate_all("all => all.map((one) => one.getAttribute('aria-label') || '')")
    )
    assert "steady" in said or "steady" in line.inner_text()
    expect(line.get_by_role("button", name=re.compile("held-up")).first).to_be_visible()


@pytest.mark.parametrize(
    ("button", "words"),
    [
        ("Copy advice", "Look at what the worker reads"),
        ("Copy for a ticket", "rank 2 has waited for a batch"),
        ("Copy evidence", "Condition.wait (threading.py:359)"),
        ("Copy command: ls -l /proc/3053/fd", "ls -l /proc/3053/fd"),
    ],
)
def test_copies_are_what_their_names_say(page: Page, button: str, words: str) -> None:
    finding = article(page, HANG)
    if button == "Copy evidence":
        finding.get_by_text(re.compile(r"^Evidence \(\d+\)$")).click()
    copy = finding.get_by_role("button", name=button, exact=True)
    copy.click()

    expect(finding.get_by_text("copied", exact=True).first).to_be_visible()
    assert words in clipboard(page)


def test_manual_page_of_a_finding_in_both_languages(page: Page) -> None:
    article(page, HANG).get_by_role("button", name="Explain held-up").click()
    manual = page.get_by_role("dialog", name="Manual: held-up")

    expect(manual.get_by_role("heading", name="Meaning")).to_be_visible()
    manual.get_by_role("button", name="中文").click()
    expect(manual.get_by_role("heading", name="含义")).to_be_visible()


def test_page_is_in_the_language_of_the_browser_or_the_one_chosen(page: Page) -> None:
    page.get_by_role("button", name="Language: English; 中文", exact=True).click()

    ready(page, "任务被拖住")
    finding = region(page, "结论").get_by_role("article", name="警告: held-up (data_loading)")
    expect(finding).to_contain_text("rank 2 在等 DataLoader worker（pid 3053）给数据")
    expect(finding).to_contain_text("想绕过它：--dataloader_num_workers 0")
    page.get_by_role("gridcell", name="rank 2, 拖住别人", exact=True).click()
    page.get_by_role("complementary", name="Rank 2", exact=True).get_by_role(
        "button", name="重新读取"
    ).click()
    shown = page.evaluate("""() => {
      document.querySelectorAll("details").forEach((one) => { one.open = true; });
      const whole = document.body.cloneNode(true);
      whole.querySelectorAll("code, pre, svg, noscript").forEach((one) => one.remove());
      return [...whole.querySelectorAll("*")].map((one) => one.children.length ? "" : one.textContent);
    }""")
    assert [text for text in shown if re.search(r"(?:\b[a-z]{2,}\b[ ,]+){3}", text)] == []
    assert overflow(page) == []

    page.reload()
    ready(page, "任务被拖住")
    page.get_by_role("button", name="语言：中文；English", exact=True).click()
    ready(page, SENTENCE)


# --- keyboard alone


def has_focus(target: Locator) -> bool:
    return target.count() == 1 and bool(target.evaluate("one => one === document.activeElement"))


def tab_to(page: Page, target: Locator, most: int = 80) -> None:
    """Reach it with Tab alone; it must show there that it has the focus."""
    for _ in range(most):
        if has_focus(target):
            break
        page.keyboard.press("Tab")
    assert has_focus(target), f"not reached with {most} tabs: {target}"
    shown = target.evaluate("""one => { const style = getComputedStyle(one);
      return one.matches(":focus-visible") && (parseFloat(style.outlineWidth) >= 1 && style.outlineStyle !== "none"
        || style.boxShadow !== "none"); }""")
    assert shown, f"the focus does not show on {target}"


def test_keyboard_alone_reaches_the_culprits_stack_and_comes_back(page: Page) -> None:
    chip = (
        article(page, HANG)
        .get_by_role("group", name="Culprit ranks")
        .get_by_role("button", name="rank 2", exact=True)
    )
    tab_to(page, chip)
    page.keyboard.press("Enter")

    stacks = panel(page, CULPRIT).get_by_role("region", name="Stacks of rank 2")
    expect(stacks).to_contain_text("_try_get_data")
    assert panel(page, CULPRIT).evaluate("one => one.contains(document.activeElement)"), (
        "the focus is not in what was opened"
    )
    page.keyboard.press("Escape")
    expect(panel(page, CULPRIT)).to_have_count(0)
    assert has_focus(chip)


def test_grid_is_one_stop_of_tab_and_arrows_go_from_rank_to_rank(page: Page) -> None:
    cells = page.get_by_role("gridcell")
    expect(cells).to_have_count(4)
    assert cells.evaluate_all("all => all.filter((one) => one.tabIndex === 0).length") == 1
    stop = page.locator('[role="gridcell"][tabindex="0"]')
    tab_to(page, stop)
    for _ in range(4):
        page.keyboard.press("ArrowLeft")
    for _ in range(CULPRIT):
        page.keyboard.press("ArrowRight")
    assert has_focus(cell(page, CULPRIT, "delaying"))
    page.keyboard.press("Enter")

    expect(panel(page, CULPRIT)).to_be_visible()


def test_keyboard_alone_opens_the_manual_and_the_focus_comes_back(page: Page) -> None:
    explain = article(page, HANG).get_by_role("button", name="Explain held-up")
    tab_to(page, explain)
    page.keyboard.press("Enter")
    manual = page.get_by_role("dialog", name="Manual: held-up")
    expect(manual.get_by_role("heading", name="Meaning")).to_be_visible()
    for _ in range(30):
        page.keyboard.press("Tab")
        assert page.evaluate(
            "document.activeElement === document.body || !!document.activeElement.closest('dialog')"
        )
    page.keyboard.press("Escape")

    expect(manual).to_have_count(0)
    assert has_focus(explain)


def test_keyboard_alone_copies_the_advice(page: Page) -> None:
    copy = article(page, HANG).get_by_role("button", name="Copy advice")
    tab_to(page, copy)
    page.keyboard.press("Enter")

    expect(article(page, HANG).get_by_text("copied", exact=True).first).to_be_visible()
    assert "Look at what the worker reads" in clipboard(page)
    assert has_focus(copy)


def test_keys_are_told_by_a_key(page: Page) -> None:
    page.keyboard.press("?")
    keys = page.get_by_role("dialog", name="Keys")
    expect(keys).to_be_visible()
    page.keyboard.press("Escape")
    expect(keys).to_have_count(0)


# --- phone, themes


def test_first_screen_of_a_phone_has_the_sentence_and_the_gravest_finding(
    opener: Opener, recorded_hang: str
) -> None:
    page = opener(recorded_hang, viewport=PHONE, device_scale_factor=2, has_touch=True, is_mobile=True).open()
    ready(page, SENTENCE)

    heading = page.get_by_role("heading", level=1).bounding_box()
    box = article(page, HANG).bounding_box()
    assert heading is not None and heading["y"] + heading["height"] < PHONE["height"]
    assert box is not None and box["y"] < PHONE["height"] * 0.75, f"the finding begins at {box['y']}"
    advice = article(page, HANG).locator(".advice p").bounding_box()
    assert advice is not None and advice["y"] + 60 < PHONE["height"], "what to do is on the first screen"
    assert overflow(page) == []
    cell(page, CULPRIT, "delaying").click()
    expect(panel(page, CULPRIT)).to_be_visible()
    assert overflow(page) == []
    panel(page, CULPRIT).get_by_role("button", name="Close").click()
    article(page, HANG).get_by_text(re.compile(r"^Evidence \(\d+\)$")).click()
    assert overflow(page) == []


@pytest.mark.parametrize("width", [320, 390, 768, 1280, 1920])
def test_page_never_scrolls_sideways(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")

    assert overflow(page) == []


def background(page: Page) -> int:
    """Sum of its three colours, 0 black to 765 white."""
    value: int = page.evaluate(
        """() => { let one = document.body; let colour = getComputedStyle(one).backgroundColor;
      if (/, 0\\)$/.test(colour)) colour = getComputedStyle(document.documentElement).backgroundColor;
      const canvas = document.createElement("canvas").getContext("2d"); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
      return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).reduce((sum, each) => sum + each, 0); }"""
    )
    return value


def test_theme_follows_the_system_until_a_person_chooses_and_is_kept(
    opener: Opener, recorded_hang: str
) -> None:
    page = opener(recorded_hang, color_scheme="dark").open()
    ready(page, SENTENCE)
    assert background(page) < 200
    theme = page.get_by_role("button", name=re.compile("^Theme"))
    for _ in range(3):
        before = theme.get_attribute("aria-label") or theme.inner_text()
        theme.click()
        expect(theme).not_to_have_accessible_name(before)
        if background(page) > 500:
            break
    assert background(page) > 500

    page.reload()
    ready(page, SENTENCE)

    assert background(page) > 500


# --- axe


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", ["wide", "phone"])
def test_axe_finds_nothing_that_keeps_people_out(
    opener: Opener, recorded_hang: str, scheme: str, size: str
) -> None:
    viewport = PHONE if size == "phone" else {"width": 1280, "height": 900}
    page = opener(recorded_hang, color_scheme=scheme, viewport=viewport).open()
    ready(page, SENTENCE)
    assert axe_issues(page) == []

    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    cell(page, CULPRIT, "delaying").click()
    expect(panel(page, CULPRIT).get_by_role("region", name="Stacks of rank 2")).to_contain_text(
        "_try_get_data"
    )
    assert axe_issues(page) == []

    panel(page, CULPRIT).get_by_role("button", name="Close").click()
    article(page, HANG).get_by_role("button", name="Explain held-up").click()
    expect(page.get_by_role("dialog").get_by_role("heading", name="Meaning")).to_be_visible()
    assert axe_issues(page) == []
