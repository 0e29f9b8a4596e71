"""Real gloo ranks that wait for one that computes: it moves, and they do not get on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.liverun import live_run

pytest.importorskip("torch", reason="needs torch (make test installs it)")
pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

# Nothing is printed: whether the job gets on, only its calls and CPU can show.
PROGRAM = """
import re, sys, time, torch, torch.distributed as dist

def until(seconds):
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        number += 1
        number *= 3

def clean(text):
    return re.match(r"(a+)+$", text)

def unbalanced():
    for step in range(25):
        if dist.get_rank() == 1:
            until(2.0)
        dist.all_reduce(torch.ones(8))

dist.init_process_group("gloo")
for step in range(50):
    dist.all_reduce(torch.ones(8))
    time.sleep(0.05)
if sys.argv[1] == "unbalanced":
    unbalanced()
elif dist.get_rank() == 1:
    print("struck", flush=True)
    {"loop": lambda: until(900), "regex": lambda: clean("a" * 60 + "b")}[sys.argv[1]]()
if sys.argv[1] != "unbalanced":
    dist.all_reduce(torch.ones(8))
dist.destroy_process_group()
"""


def command(path: Path, reason: str) -> list[str]:
    script = path / "train.py"
    script.write_text(PROGRAM)
    return [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", str(script), reason]


@pytest.mark.parametrize(("reason", "function"), [("loop", "until"), ("regex", "clean")])
def test_rank_that_computes_for_ever_is_named_with_its_line_and_is_no_hang_yet(
    tmp_path: Path, reason: str, function: str
) -> None:
    with live_run(tmp_path, command(tmp_path, reason)) as run:
        change = run.until(lambda: run.opened("held-up"), 180)
        finding = change["finding"]

        assert (finding["severity"], finding["ranks"], finding["waiting_ranks"]) == ("warning", [1], [0])
        assert finding["cause"] == {"loop": "loop_until_time", "regex": "regular_expression"}[reason]
        assert any(f"{function} (" in item["excerpt"] for item in finding["evidence"]), finding["evidence"]
        assert run.opened("hang") is None


def test_steps_that_one_rank_makes_in_two_seconds_hold_nobody_up(tmp_path: Path) -> None:
    with live_run(tmp_path, command(tmp_path, "unbalanced")) as run:
        assert run.wait(200) == 0, run.text[-2000:]

        assert [
            change["finding"]["summary"] for change in run.changes() if change["finding"]["id"] != "straggler"
        ] == []
