"""One run of three ranks for all tests of this folder that look at a live one: seconds of real start-up."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from tests.liverun import DIAG, LiveRun, live_run
from tests.security.secretrun import IN_ENVIRONMENT, IN_WORDS, RANKS, TOKEN, get


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveRun]:
    """A run with secrets all over, dumped once, still alive."""
    tmp_path = tmp_path_factory.mktemp("secrets")
    with live_run(
        tmp_path, [*RANKS, "work", "wait", "wait", *IN_WORDS], env={**IN_ENVIRONMENT, "DIAG_TOKEN": TOKEN}
    ) as live:
        live.until(lambda: live.run_json().get("url"), 60)
        live.until(lambda: b'"stack_at":1' in get(live, "/ranks"), 60)
        env = {**os.environ, "DIAG_RUN_ROOT": str(live.root)}
        dumped = subprocess.run(
            [*DIAG, "dump"], capture_output=True, text=True, check=False, timeout=60, env=env
        )
        assert "dumps/" in dumped.stdout, dumped.stderr
        (tmp_path / "dump.txt").write_text(dumped.stdout)
        yield live
