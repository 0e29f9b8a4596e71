"""Which processes of a Slurm job are here, from what scontrol said on Slurm 22.05.8 (Debian 12)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from diag.sources.host.slurm import StepProcess, find_step, parse_pids, root_of
from diag.text.errors import DiagError

# scontrol listpids 2 n2, with `srun bash -c ...` as step 0 and, below, our own step 1; slurmstepd's own
# process has no number.
STEP_0 = """\
PID      JOBID    STEPID   LOCALID GLOBALID
25632    2        0        0       1       
25636    2        0        -       -       
"""
OWN = "25700    2        1        0       1       \n"
BATCH = "25590    2        batch    0       0       \n"
ERROR = "JobId=99 does not exist on this node\n"
HERE = {"SLURM_JOB_ID": "2", "SLURM_STEP_ID": "1", "SLURMD_NODENAME": "n2"}


def test_tasks_are_told_from_slurmstepd_and_the_batch_script() -> None:
    assert parse_pids(STEP_0 + BATCH) == (StepProcess(25632, "0", 0),)
    assert parse_pids(ERROR) == ()


def test_step_is_the_first_that_is_not_our_own_and_is_asked_of_this_node() -> None:
    asked: list[list[str]] = []

    def ask(command: list[str]) -> str:
        asked.append(command)
        return STEP_0 + OWN + BATCH

    assert [task.pid for task in find_step(HERE, ask=ask)] == [25632]
    assert asked == [["scontrol", "listpids", "2", "n2"]]


def test_step_asked_for_is_taken_even_where_an_earlier_one_runs() -> None:
    assert [task.pid for task in find_step(HERE, "1", ask=lambda command: STEP_0 + OWN)] == [25700]


@pytest.mark.parametrize("text", [OWN, BATCH, ERROR], ids=["own", "batch", "none"])
def test_no_step_beside_our_own_is_told_with_where_to_look(text: str) -> None:
    with pytest.raises(DiagError, match="job 2 has no other step with processes on this node") as caught:
        find_step(HERE, ask=lambda command: text, wait_seconds=0.0)

    assert "squeue --steps --jobs=2" in caught.value.hint


def test_step_that_comes_later_is_waited_for() -> None:
    said = iter([OWN, STEP_0 + OWN])

    assert [task.pid for task in find_step(HERE, ask=lambda command: next(said), wait_seconds=30.0)] == [
        25632
    ]


def test_outside_of_slurm_the_srun_line_is_given() -> None:
    with pytest.raises(DiagError, match="SLURM_JOB_ID is not set") as caught:
        find_step({})

    assert "srun --jobid=JOB --overlap" in caught.value.hint


def test_root_of_one_task_is_the_task_and_of_several_what_started_them() -> None:
    children = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(2)]
    try:
        one, two = (StepProcess(child.pid, "0", number) for number, child in enumerate(children))

        assert root_of((one,)) == one.pid
        assert root_of((one, two)) == os.getpid()
    finally:
        for child in children:
            child.kill()
            child.communicate()


def test_step_that_has_just_ended_is_told() -> None:
    gone = StepProcess(1 << 22, "0", 0)

    with pytest.raises(DiagError, match="have just ended"):
        root_of((gone, gone))
