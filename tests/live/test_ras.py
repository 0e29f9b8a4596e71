"""NCCL RAS under a real `diag run`: ranks that have a libnccl mapped hang, and who answers at their
NCCL_RAS_ADDR is asked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from diag.engine.journal import JournalReader, segments
from diag.engine.replay import replay
from diag.model.observations import RasReading
from diag.sources.collectives import nccl_ras
from tests.liverun import DIAG, live_run

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]
ROOT = Path(__file__).parents[2]

# The launcher serves RAS, since it knows the ranks' pids; the ranks print steps, then wait. The answers are
# NCCL's own.
PROGRAM = f"""
import mmap, os, subprocess, sys, time

sys.path.insert(0, {str(ROOT)!r})

def waits_for_the_others():
    time.sleep(3600)

if "RANK" in os.environ:
    file = open(sys.argv[1], "rb")
    kept = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    for step in range(6):
        time.sleep(0.2)
        if os.environ["RANK"] == "0":
            print(f" iteration {{step + 1:8d}}/{{1000:8d}} | loss: 1.0 | grad norm: 2.0 |", flush=True)
    waits_for_the_others()

from tests.rasserver import RasServer, captured

ranks = []
for rank in range(2):
    env = {{**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}}
    ranks.append(subprocess.Popen([sys.executable, *sys.argv], env=env))
text = captured("skip_collective/ras_json.txt")
for old, process in zip((1005, 1006), ranks):
    text = text.replace(f'"pid": {{old}}', f'"pid": {{process.pid}}')
server = RasServer(json=text, port=int(os.environ["NCCL_RAS_ADDR"].rpartition(":")[2]))
print("pids", *[process.pid for process in ranks], flush=True)
for process in ranks:
    process.wait()
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return path


def library(tmp_path: Path, version: str) -> str:
    path = tmp_path / "libnccl.so.2"
    path.write_bytes(b"\x7fELF" + b"\0" * 50_000 + f"NCCL version {version}+cuda13.0\0".encode())
    return str(path)


def records(run_dir: Path, source: str) -> list[Any]:
    return [record for record in JournalReader(segments(run_dir)) if record.source == source]


def test_hang_is_asked_about_at_the_runs_own_address_and_the_answers_are_in_the_journal(
    tmp_path: Path, program: Path
) -> None:
    command = [sys.executable, str(program), library(tmp_path, "2.28.9")]
    with live_run(tmp_path, command, env={"NCCL_RAS_ADDR": ""}) as run:
        address = run.run_json()["nccl_ras_addr"]
        assert address.startswith("localhost:") and address != nccl_ras.DEFAULT_ADDRESS
        run_dir = run.run_dir
        assert run_dir is not None
        found = run.until(lambda: len(answers := records(run_dir, nccl_ras.SOURCE)) >= 2 and answers, 60)
        run.until(run.hang, 60)
        words = next(line for line in run.text.splitlines() if "pids" in line).split()
        pids = tuple(int(word) for word in words[words.index("pids") + 1 :])

    facts = [list(nccl_ras.parse(record))[-1] for record in found]
    for fact in facts:
        assert isinstance(fact, RasReading)
        assert tuple(rank.pid for rank in fact.communicators[0].ranks) == pids
    assert [record.payload["address"] for record in found] == [address, address]
    assert found[1].at - found[0].at >= 5.0
    engine, _, _ = replay([run_dir])
    assert [line.what for line in engine.not_checked() if "ras" in line.what] == []


def test_nccl_that_may_crash_is_not_asked_and_listed_as_not_checked(tmp_path: Path, program: Path) -> None:
    command = [sys.executable, str(program), library(tmp_path, "2.27.3")]
    with live_run(tmp_path, command) as run:
        run.until(run.hang, 60)
        assert run.run_dir is not None
        engine, _, _ = replay([run.run_dir])

        (line,) = [line for line in engine.not_checked() if line.what == "nccl_ras"]
        assert "2.27.3" in line.reason and "--ras force" in line.remedy
        assert records(run.run_dir, nccl_ras.SOURCE) == []


SHOW = [sys.executable, "-c", "import os; print(os.environ.get('NCCL_RAS_ADDR'))"]


@pytest.mark.parametrize(
    ("env", "options", "shown"),
    [
        ({"NCCL_RAS_ADDR": "localhost:5"}, (), "localhost:5"),
        ({}, ("--ras", "off"), "None"),
        ({"DIAG_RAS": "off"}, (), "None"),
        ({"NCCL_RAS_ENABLE": "0"}, (), "None"),
    ],
    ids=["the user's own", "flag", "variable", "switched off in NCCL"],
)
def test_address_that_the_user_set_stays_and_off_sets_none(
    tmp_path: Path, env: dict[str, str], options: tuple[str, ...], shown: str
) -> None:
    command = [*DIAG, "run", "-q", "--port", "0", "--run-root", str(tmp_path), *options, "--", *SHOW]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("NCCL_RAS_")}
    answer = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=60, env={**clean, **env}
    )
    assert answer.stdout == f"{shown}\n"


def test_two_runs_have_two_addresses(tmp_path: Path) -> None:
    shown = set()
    for _ in range(2):
        command = [*DIAG, "run", "-q", "--port", "0", "--run-root", str(tmp_path), "--", *SHOW]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("NCCL_RAS_")}
        shown.add(
            subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=clean).stdout
        )
    assert len(shown) == 2 and all(line.startswith("localhost:") for line in shown)


def test_other_word_than_auto_force_off_is_a_usage_error(tmp_path: Path) -> None:
    command = [*DIAG, "run", "--run-root", str(tmp_path), "--", "true"]
    env = {**os.environ, "DIAG_RAS": "on"}
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=env)
    assert answer.returncode == 2 and "ras: " in answer.stderr
