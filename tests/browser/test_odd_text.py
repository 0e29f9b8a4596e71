"""Text of a job is text: whatever stands in its lines, names and frames, nothing of it runs, asks, or turns
the page around.

Journals are recorded ones with words of theirs replaced, and go to the page by the whole way: journal,
parsers, findings, HTTP.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright", reason="needs playwright (make test installs it)")

from playwright.sync_api import Page, expect

from tests.browser.bigjob import RECORDED, records_of
from tests.browser.conftest import Opener
from tests.browser.pages import PHONE, served
from tests.browser.parts import axe_issues, cell, overflow, panel, region

pytestmark = [pytest.mark.xdist_group("browser-odd"), pytest.mark.timeout(120)]

# Each would make itself known: by a dialog, a request, a variable, an element, or an error in the console.
MARKUP = (
    "<script>alert(1);window.__hit=1</script>"
    '<img src=x onerror="alert(2);window.__hit=2">'
    "<svg/onload=alert(3)><svg><animate onbegin=alert(4) attributeName=x dur=1s>"
    '"\'><iframe src="javascript:alert(5)"></iframe>'
    "</title></textarea></style></script><style>*{display:none}</style><base href=//elsewhere.example/>"
    '<a href="javascript:alert(6)">javascript:alert(6)</a><meta http-equiv=refresh content="0;url=//elsewhere.example">'
    "{{constructor.constructor('alert(7)')()}}${alert(8)}<link rel=stylesheet href=//elsewhere.example/x.css>"
)
TURNED = "\u202egpj.exe\u202c\u2066right\u2069\u200f\u200b\ufeff"
BROKEN = (
    "nul\x00bell\x07escape\x1b[31mred\x1b]0;title\x07\x9b31m half\ud800 lines\u2028\u2029\x85 tag\U000e0041"
)
LONG = "long" * 25_000
ODD = MARKUP + TURNED + BROKEN
NEVER_SHOWN = "\u202e\u202c\u2066\u2069\u200f\u200b\ufeff\x00\x07\x1b\x9b\u2028\u2029\U000e0041"


def written(
    folder: Path, source: Path, change: Callable[[dict[str, Any]], None], more: Callable[[float], list[Any]]
) -> Path:
    """The journal of `source` with each record changed, and more records of its last moment."""
    folder.mkdir()
    with gzip.open(folder / "journal-000001.jsonl.gz", "wt", encoding="ascii") as file:
        file.write('{"schema":"diag.journal/1","segment":1}\n')
        at = 0.0
        for record in records_of(source):
            change(record)
            at = record["at"]
            file.write(json.dumps(record) + "\n")
        file.writelines(json.dumps(record) + "\n" for record in more(at))
    return folder


def of_hang(record: dict[str, Any]) -> None:
    """Odd names of host, command, threads, functions and files."""
    payload = record["payload"]
    record["host"] = "host" + MARKUP
    if record["source"] == "run" and "argv" in payload:
        payload["argv"] += [ODD, "javascript:alert(9)"]
    if record["source"] == "run" and "placement" in payload:
        payload["placement"]["host"] = "host" + MARKUP + TURNED
        payload["command"] += " " + ODD
    if record["source"] == "remote_stack" and "codes" in payload:
        for code in payload["codes"]:
            if code[0] in ("_read_shard", "MegatronDPOTrainer.forward_step"):
                code[0] += ODD
                code[1] = code[1].replace("in_worker", "in_worker" + MARKUP + TURNED)
            if code[0] == "BaseMegatronTrainer.cyclic_iter":
                code[0] += LONG
        for thread in payload["threads"]:
            thread["name"] += ODD
    if record["source"] == "nvml":
        for gpu in payload["gpus"]:
            gpu["name"] += MARKUP
    if record["source"] == "output":
        payload["lines"] += [[ODD, 0], [LONG, 0]]


def line(at: float, text: str) -> dict[str, Any]:
    return {
        "at": at,
        "source": "output",
        "payload": {"stream": "both", "lines": [[text, 0]]},
        "host": "gpu-node-0",
    }


def of_nccl(at: float) -> list[dict[str, Any]]:
    """Lines of NCCL and of a dying rank with odd text in them, as the end of a log."""
    name = MARKUP.replace(" ", "")
    return [
        line(at, f"{name}:1317:1686 [1] NCCL INFO NET/IB : No device found. {ODD}"),
        line(
            at,
            f"gpu-node-0:1317:1686 [1] misc/socket.cc:57 NCCL WARN socketProgress: Connection closed by remote peer {ODD}",
        ),
        line(at, f"[rank1]: RuntimeError: {ODD}"),
        line(at, f"[rank1]: torch.OutOfMemoryError: CUDA out of memory. {ODD} {LONG}"),
        line(at, LONG + ODD),
    ]


DRILLS = RECORDED.parent


@pytest.fixture(scope="module")
def odd_hang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(
        written(tmp_path_factory.mktemp("odd") / ("run" + "<b>x"), RECORDED, of_hang, lambda at: [])
    ) as url:
        yield url


@pytest.fixture(scope="module")
def odd_lines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(
        written(tmp_path_factory.mktemp("odd") / "run", DRILLS / "shm-full", of_hang, of_nccl)
    ) as url:
        yield url


def nothing_of_it_is_markup(page: Page) -> None:
    told = page.evaluate("""() => ({
      hit: window.__hit ?? null,
      made: [...document.querySelectorAll(`main img, iframe:not([src^="flame"]):not([src^="ranks/"]), object, embed, base,
        body script, body style, body link, meta[http-equiv], animate, a[href^="javascript" i]`)]
        .map((one) => one.outerHTML.slice(0, 200)),
      handlers: [...document.querySelectorAll("*")]
        .flatMap((one) => one.getAttributeNames().filter((name) => name.startsWith("on"))),
      text: document.body.innerText,
      names: [...document.querySelectorAll("[title], [aria-label], [aria-description]")]
        .flatMap((one) => ["title", "aria-label", "aria-description"].map((name) => one.getAttribute(name) ?? "")).join(" "),
      address: location.pathname, title: document.title,
    })""")
    assert told["hit"] is None and told["made"] == [] and told["handlers"] == []
    assert told["address"] == "/"
    for where in ("text", "names", "title"):
        shown = [f"U+{ord(char):04X}" for char in NEVER_SHOWN if char in told[where]]
        assert shown == [], f"{where} has {shown}"
        assert not any(0xD800 <= ord(char) < 0xE000 for char in told[where])


def everything_open(page: Page) -> None:
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    for more in page.get_by_role("button", name=re.compile("outer frame"), expanded=False).element_handles():
        more.click()


def test_odd_names_of_a_hang_stay_text(odd_hang: str, opener: Opener) -> None:
    page = opener(odd_hang).open()
    expect(region(page, "Findings").get_by_role("article").first).to_contain_text("_read_shard")
    expect(region(page, "Findings").get_by_role("article").first).to_contain_text("<script>alert(1)")
    everything_open(page)
    assert "longlong" in page.locator("body").inner_text()
    assert len(page.locator("body").inner_text()) < 80_000
    nothing_of_it_is_markup(page)
    assert overflow(page) == []

    cell(page, 2).click()
    expect(panel(page, 2).get_by_role("region", name="Stacks of rank 2")).to_contain_text("<script>alert(1)")
    everything_open(page)

    nothing_of_it_is_markup(page)
    assert "\\u202e" in page.locator("body").inner_text(), "what turns text around is told by its number"
    assert axe_issues(page) == []
    page.set_viewport_size(PHONE)
    assert overflow(page) == []


def test_odd_lines_of_a_log_stay_text_and_long_ones_do_not_fill_the_page(
    odd_lines: str, opener: Opener
) -> None:
    page = opener(odd_lines).open()
    articles = region(page, "Findings").get_by_role("article")
    expect(articles.first).to_be_visible()
    everything_open(page)

    text = page.locator("body").inner_text()
    assert "<script>alert(1)" in text
    assert len(text) < 200_000
    nothing_of_it_is_markup(page)
    assert overflow(page) == []
    assert axe_issues(page) == []


def test_copies_of_odd_text_are_what_was_written(odd_hang: str, opener: Opener) -> None:
    page = opener(odd_hang).open()
    region(page, "Findings").get_by_role("button", name="Copy for a ticket").first.click()
    expect(region(page, "Findings").get_by_text("copied", exact=True).first).to_be_visible()

    text = page.evaluate("navigator.clipboard.readText()")

    assert "<script>alert(1)" in text and "&lt;" not in text
    assert not set(NEVER_SHOWN) & set(text)


def test_flame_graph_of_odd_names_runs_nothing(odd_hang: str, opener: Opener) -> None:
    page = opener(odd_hang).open()
    page.get_by_role("button", name="Flame graph of all ranks").click()
    dialog = page.get_by_role("dialog", name="Flame graph of all ranks")

    expect(dialog.get_by_role("button", name="MegatronDPOTrainer.forward_step").first).to_be_visible(
        timeout=20_000
    )
    nothing_of_it_is_markup(page)
    assert overflow(page) == []
