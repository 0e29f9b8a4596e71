"""`diag mcp` beside a run that lives."""

from __future__ import annotations

import contextlib
import json
import sys
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("mcp.server.mcpserver")

from mcp import Client

from tests.agents.test_mcp import asked, text
from tests.liverun import LiveRun, live_run

pytestmark = pytest.mark.live
_WAITS = "import threading\ndef waits_here():\n    threading.Event().wait()\nwaits_here()"


def _ranks(run: LiveRun) -> object:
    with (
        contextlib.suppress(OSError, ValueError),
        urllib.request.urlopen(f"{run.run_json()['url']}/ranks", timeout=5) as answer,
    ):
        return json.load(answer)
    return None


def test_newest_live_run_is_asked_and_dumped(tmp_path: Path) -> None:
    async def work(client: Client) -> tuple[str, str, str]:
        return (
            await text(client, "state"),
            await text(client, "dump"),
            await text(client, "stacks", rank=0),
        )

    with live_run(tmp_path, [sys.executable, "-c", _WAITS], env={"RANK": "0", "WORLD_SIZE": "1"}) as run:
        run.until(lambda: "waits_here" in str(_ranks(run)), 60)
        state, dump, stacks = asked(["--run-dir", str(run.run_dir)], work)
        bundles = list((run.run_dir or tmp_path).rglob("*.tgz")) + list(
            (run.run_dir or tmp_path).rglob("*.gz")
        )
        assert run.process.poll() is None

    assert "LIVE" in state
    assert "waits_here" in dump and "bundle: " in dump and bundles
    assert "waits_here" in stacks
