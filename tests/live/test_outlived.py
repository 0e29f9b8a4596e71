"""A real shell whose ranks have ended, and that waits for its own `tail` of their logs; and one that still works."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.liverun import live_run

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

LAUNCH = """#!/bin/bash
export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29871
: > rank.log
tail -q -F rank.log &
HELPER=$!
for RANK in 0 1; do
  RANK=$RANK LOCAL_RANK=$RANK PYTHON -c 'import time; time.sleep(9); print("trained")' >> rank.log &
  PIDS="$PIDS $!"
done
"""
WAITS = "wait\n"
WORKS = """wait $PIDS
for PART in 1 2 3 4 5 6; do
  sleep 15
  head -c 300000 /dev/zero > part
done
kill $HELPER
echo uploaded
"""


def command(path: Path, then: str) -> list[str]:
    script = path / "nightly.sh"
    script.write_text(f"cd {path}\n{LAUNCH}{then}".replace("PYTHON", sys.executable))
    return ["bash", str(script)]


def test_shell_that_waits_for_its_own_tail_is_named_with_it(tmp_path: Path) -> None:
    with live_run(tmp_path, command(tmp_path, WAITS)) as run:
        found = run.until(run.hang, 200)["finding"]

    assert (found["id"], found["cause"], found["ranks"]) == ("held-up", "command_outlives_ranks", [])
    assert found["summary"].startswith("all 2 ranks have ended, and the command (pid ")
    assert "it waits for child pid " in found["summary"] and "(`tail -q -F rank.log`)" in found["summary"]


def test_shell_that_uploads_what_its_ranks_made_is_left_alone(tmp_path: Path) -> None:
    with live_run(tmp_path, command(tmp_path, WORKS)) as run:
        assert run.wait(200) == 0, run.text[-2000:]

        assert "uploaded" in run.text and not run.changes()
