"""The page of a job of two nodes: what it says of the other one while it is heard, and when it falls silent."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="needs playwright (make test installs it)")

from playwright.sync_api import expect

from tests.browser.conftest import Opener
from tests.browser.parts import article, axe_issues, cell, overflow, region
from tests.browser.test_live import a_free_port
from tests.liverun import live_run

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("browser-nodes"), pytest.mark.timeout(240)]

JOB = [sys.executable, str(Path(__file__).parent / "stuck_ranks.py"), "2", "0"]
TOKEN = "the-word-of-both-nodes"


def test_nodes_of_a_job_are_told_and_one_that_falls_silent_stands_first(
    opener: Opener, tmp_path: Path
) -> None:
    ports = [a_free_port(), a_free_port()]
    for node in "01":
        (tmp_path / node).mkdir()
    env = {"DIAG_TOKEN": TOKEN, "DIAG_NODES": ",".join(f"127.0.0.1:{port}" for port in ports), "NNODES": "2",
           "UNTIL": str(tmp_path / "over")}  # fmt: skip
    with (
        live_run(tmp_path / "0", JOB, "--port", str(ports[0]), env={**env, "NODE_RANK": "0"}) as first,
        live_run(tmp_path / "1", JOB, "--port", str(ports[1]), env={**env, "NODE_RANK": "1"}) as second,
    ):
        url = first.until(lambda: first.run_json().get("url"), 60)
        first.until(lambda: _states(url) == ["heard", "heard"], 90)
        page = opener(url, http_credentials={"username": "diag", "password": TOKEN}).open()
        nodes = region(page, "Nodes").get_by_role("row")

        expect(nodes).to_have_count(3)  # and the head of the table
        expect(nodes.nth(1)).to_contain_text(re.compile("heard.*0-1"))
        expect(nodes.nth(2)).to_contain_text(re.compile("heard.*2-3"))
        expect(cell(page, 3, "running")).to_be_visible(timeout=30_000)
        assert overflow(page) == [] and axe_issues(page) == []
        region(page, "Nodes").get_by_role("button", name="ranks 2-3").click()
        for rank in range(4):
            expect(cell(page, rank)).to_have_attribute("aria-selected", "true" if rank > 1 else "false")

        hub = int(second.run_json()["hub_pid"])
        os.kill(hub, signal.SIGSTOP)
        try:
            expect(nodes.nth(1)).to_contain_text(re.compile(r"^1.*silent"), timeout=60_000)
            expect(nodes.nth(1)).to_contain_text("ago")
            # its ranks go on: only its hub stands
            expect(article(page, re.compile("node-failure"))).to_have_count(0)
        finally:
            os.kill(hub, signal.SIGCONT)
        expect(nodes.nth(2)).to_contain_text(re.compile("^1.*heard"), timeout=60_000)
        page.close()
        Path(env["UNTIL"]).touch()
        assert first.process.wait(60) == 0 and second.process.wait(60) == 0


def _states(url: str) -> list[str]:
    request = urllib.request.Request(f"{url}/nodes", headers={"Authorization": f"Bearer {TOKEN}"})
    with (
        contextlib.suppress(OSError),  # it has just opened its port to the other node
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as answer,
    ):
        return [row["state"] for row in json.load(answer)["nodes"]]
    return []
