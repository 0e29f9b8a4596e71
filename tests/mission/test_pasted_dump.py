"""What `py-spy dump` prints, pasted as people paste it."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from diag.engine.engine import Engine
from diag.engine.importers.pyspy_text import holds_dump, processes_of_text
from diag.engine.replay import replay
from diag.model import Confidence, Finding, Severity
from tests.mission.cases import of_replay

# The form that a chat assistant had shown somebody, without the first lines: names of files, no pid.
CUT = """\
Thread 0x7F8A1B7FE700 (idle): "MainThread"
    train (train.py:123)
    main (main.py:45)
    <module> (__main__.py:1)

Thread 0x7F8A1AFFD700 (running): "DataLoader"
    __getitem__ (dataset.py:67)
    _get_batch (dataloader.py:234)
    run (threading.py:870)
"""
# py-spy 0.4.3, torch 2.13, this repository's own job, 2026-11-25
IN_BATCH = """\
Process 812: /opt/venv/bin/python /srv/job/train.py --hub_token hf_abcdefgh
Python v3.11.2 (/usr/bin/python3.11)

Thread 812 (idle): "MainThread"
    poll (multiprocessing/popen_fork.py:27)
    _try_get_data (torch/utils/data/dataloader.py:1295)
    _next_data (torch/utils/data/dataloader.py:1491)
    __next__ (torch/utils/data/dataloader.py:741)
    train (train.py:31)
    <module> (train.py:60)
Thread 901 (idle): "Thread-1"
    wait (threading.py:331)
    wait (threading.py:629)
    run (tqdm/_monitor.py:60)
    _bootstrap_inner (threading.py:1045)
    _bootstrap (threading.py:1002)
"""
IN_ALL_REDUCE = """\
Process 813: /opt/venv/bin/python /srv/job/train.py
Python v3.11.2 (/usr/bin/python3.11)

Thread 813 (active): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:3173)
    wrapper (torch/distributed/c10d_logger.py:83)
    train (train.py:44)
    <module> (train.py:60)
"""


CASES = {
    "two threads": of_replay(
        (1, 14, 15), "what `py-spy dump` printed, without its first line: a loader's thread that runs, a main thread that is idle", CUT,
        ('its thread "DataLoader" runs at __getitem__ (dataset.py:67): it reads data', "Dump it again some seconds later"),
        ("CRITICAL",),
        unproven="that it hangs: one look does not show it",
    ),
    "one of each rank": of_replay(
        (1, 14), "`py-spy dump` of two ranks, one below the other", IN_BATCH + IN_ALL_REDUCE,
        ("if process 812 hangs: its main thread is in the data loader",
         "if process 813 hangs: its main thread waits for its peers in all_reduce"),
        unproven="that they hang",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_person_is_told(name: str) -> None:
    CASES[name].check()


def paste(text: str, monkeypatch: pytest.MonkeyPatch) -> Engine:
    class Stdin:
        buffer = io.BytesIO(text.encode())

    monkeypatch.setattr(sys, "stdin", Stdin)
    return replay([Path("-")])[0]


def only(engine: Engine) -> Finding:
    (finding,) = engine.active()
    return finding


def unchecked(engine: Engine) -> dict[str, tuple[str, str]]:
    return {line.what: (line.reason, line.remedy) for line in engine.not_checked()}


@pytest.mark.parametrize(
    "text",
    [
        CUT,
        f"```text\n{CUT}```\n",
        "".join(f"  > {line}\n" for line in CUT.splitlines()),
        CUT.replace("    ", ""),
        CUT.replace("\n", "\r\n"),
        f"root@pod-0:/app# py-spy dump --pid 12\n{CUT}",
        CUT.replace("Thread 0x", "\x1b[1;33mThread 0x\x1b[0m"),
    ],
)
def test_a_paste_without_its_first_line_is_classed_by_the_thread_that_says_more(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = paste(text, monkeypatch)

    finding = only(engine)
    assert (finding.id, finding.klass, finding.cause) == ("held-up", "data_loading", "seen_once")
    assert (finding.severity, finding.confidence, finding.ranks) == (Severity.INFO, Confidence.LOW, ())
    assert finding.summary.startswith('if this process hangs: its thread "DataLoader" runs at __getitem__ (d')
    assert "its main thread is idle at train (train.py:123)" in finding.summary
    assert "--pid PID" in finding.advice
    reason, remedy = unchecked(engine)["whether this process is stuck"]
    assert reason == "one look does not show that nothing moves"
    assert "some seconds later: `py-spy dump --nonblocking --pid PID`" in remedy


@pytest.mark.parametrize(("main", "shown"), [("idle", '"DataLoader" '), ("running", "main thread ")])
def test_an_idle_thread_is_shown_for_the_main_one_only_where_that_is_idle_too(
    main: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = CUT.replace("(running)", "(idle)").replace('(idle): "MainThread"', f'({main}): "MainThread"')

    assert only(paste(text, monkeypatch)).summary.startswith(
        f"if this process hangs: its {'thread ' * (main == 'idle')}{shown}"
    )


def test_with_its_first_line_the_process_is_named_and_its_command_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    finding = only(paste(IN_BATCH, monkeypatch))

    assert finding.klass == "data_loading"
    assert finding.summary.startswith(
        "if process 812 hangs: its main thread is in the data loader at __next__ "
    )
    assert "called at train (train.py:31)" in finding.summary
    assert "--subprocesses --pid 812" in finding.advice
    assert "hf_abcdefgh" not in repr(finding)


def test_several_dumps_of_one_paste_are_one_process_each(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = paste(IN_BATCH + "\n" + IN_ALL_REDUCE, monkeypatch)

    found = {one.subject: one for one in engine.active()}
    assert {name: one.klass for name, one in found.items()} == {
        "process 812": "data_loading",
        "process 813": "unknown",
    }
    assert "waits for its peers in all_reduce" in found["process 813"].summary
    assert "each rank" in found["process 813"].advice


def test_a_process_that_moved_between_two_dumps_is_not_held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = paste(IN_BATCH + IN_BATCH.replace("train.py:31", "train.py:35"), monkeypatch)

    assert engine.active() == []
    assert "it moved between them" in unchecked(engine)["whether process 812 is stuck"][0]


@pytest.mark.parametrize("text", [IN_BATCH, CUT])
def test_two_equal_dumps_are_two_looks_at_one_process(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = paste(f"{text}\n{text}", monkeypatch)

    assert only(engine).klass == "data_loading"
    ((reason, _),) = unchecked(engine).values()
    assert reason == "its stack is the same in 2 dumps, which do not say how long that was"


def test_a_log_around_a_dump_is_still_read(monkeypatch: pytest.MonkeyPatch) -> None:
    log = "[INFO:swift] The training of Epoch 0 starts...\nRuntimeError: CUDA out of memory.\n"
    engine = paste(f"{log}{IN_ALL_REDUCE}", monkeypatch)

    assert {"process 813"} < {one.subject for one in engine.active()}
    assert engine.job.log.lines > 2


def test_stacks_of_faulthandler_and_lines_about_threads_are_no_dump(monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'Thread 0x00007f10 (most recent call first):\n  File "train.py", line 5 in train\nThread 5 (main) done\n'

    assert not holds_dump(text)
    assert paste(text, monkeypatch).active() == []


def test_a_worker_that_waits_for_work_is_left_out_beside_another(monkeypatch: pytest.MonkeyPatch) -> None:
    idle = """\
Process 900: /opt/venv/bin/python /srv/job/train.py
Thread 900 (idle): "MainThread"
    poll (multiprocessing/connection.py:257)
    get (multiprocessing/queues.py:113)
    _worker_loop (torch/utils/data/_utils/worker.py:293)
    run (multiprocessing/process.py:108)
"""
    assert only(paste(idle + IN_ALL_REDUCE, monkeypatch)).subject == "process 813"


def test_locals_and_native_frames_are_left_out_of_the_stack() -> None:
    text = IN_ALL_REDUCE.replace(
        "    wrapper",
        "        Arguments:\n            tensor: <Tensor at 0x7f>\n    cuCtxSynchronize (libcuda.so.580)\n    wrapper",
    )
    found, more = processes_of_text(text)

    names: list[Any] = [frame["name"] for frame in found[0].threads[0]["frames"]]
    assert names == ["all_reduce", "wrapper", "train", "<module>"]
    assert not more


def test_a_file_in_a_folder_needs_no_first_line(tmp_path: Path) -> None:
    (tmp_path / "pyspy-rank0.txt").write_text(CUT)

    engine, _, _ = replay([tmp_path])

    assert list(engine.job.ranks) == [0]


def test_beyond_sixteen_processes_the_others_are_said_to_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = paste("".join(IN_ALL_REDUCE.replace("813", str(900 + one)) for one in range(18)), monkeypatch)

    assert len(engine.active()) == 16
    assert "2 more dumps of processes" in unchecked(engine)


def test_a_long_paste_is_read_whole_and_its_log_too(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "step of the program\n" * 200_000
    engine = paste(f"{IN_BATCH}{lines}{IN_ALL_REDUCE}", monkeypatch)

    assert {one.subject for one in engine.active()} == {"process 812", "process 813"}
    assert engine.job.log.lines > 200_000
