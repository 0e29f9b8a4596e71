"""Which processes of a Slurm job run on this node, by step: `scontrol listpids`, which any user may ask for
its own jobs."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from diag.sources.host.process_tree import PROC, read_process
from diag.text.errors import DiagError

# A job step may start minutes after its job (srun waits for its nodes); what is longer has not been started
# at all. Ours.
WAIT_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class StepProcess:
    """A process that Slurm started as a task of a step. `task` is its number on this node."""

    pid: int
    step: str
    task: int


def parse_pids(text: str) -> tuple[StepProcess, ...]:
    """The tasks of numbered steps; not what lies below them, nor slurmstepd's own (`-`), nor the batch
    script.

    >>> parse_pids("PID      JOBID    STEPID   LOCALID GLOBALID\\n25630    2        0        0       0       \\n"
    ...            "25635    2        0        -       -       \\n25590    2        batch    0       0       \\n")
    (StepProcess(pid=25630, step='0', task=0),)
    """
    found = []
    for line in text.splitlines():
        # Slurm 22.05.8, scontrol listpids:
        #   25630    2        0        0       0
        fields = line.split()
        if len(fields) >= 4 and all(fields[at].isdecimal() and len(fields[at]) < 20 for at in (0, 2, 3)):
            found.append(StepProcess(int(fields[0]), fields[2], int(fields[3])))
    return tuple(found)


def find_step(
    environment: Mapping[str, str],
    step: str = "",
    *,
    ask: Callable[[list[str]], str] | None = None,
    wait_seconds: float = WAIT_SECONDS,
) -> tuple[StepProcess, ...]:
    """The tasks on this node of the step asked for; without one, of the job's first step that is not our own.

    Waits until there are any. Raises DiagError where this is no job of Slurm's, or none comes.
    """
    job = environment.get("SLURM_JOB_ID", "")
    if not job:
        raise DiagError(
            "not inside a Slurm job: SLURM_JOB_ID is not set",
            hint="srun --jobid=JOB --overlap --nodes=1 --ntasks=1 --mem=0 diag watch --slurm",
            exit_code=2,
        )
    node = environment.get("SLURMD_NODENAME", "")
    command = ["scontrol", "listpids", job, *([node] if node else [])]
    own = environment.get("SLURM_STEP_ID", "")
    end = time.monotonic() + wait_seconds
    while True:
        tasks = [
            task
            for task in parse_pids((ask or _ask)(command))
            if (task.step == step if step else task.step != own)
        ]
        if tasks:
            first = min(tasks, key=lambda task: int(task.step)).step
            return tuple(task for task in tasks if task.step == first)
        if time.monotonic() >= end:
            which = f"step {job}.{step} has" if step else f"job {job} has no other step with"
            raise DiagError(
                f"{which} {'no ' if step else ''}processes on this node ({node or os.uname().nodename})",
                hint=f"squeue --steps --jobs={job} shows the steps that run",
                exit_code=2,
            )
        time.sleep(1.0)


def root_of(tasks: tuple[StepProcess, ...], proc: Path = PROC) -> int:
    """The process above all tasks: the only one itself, or slurmstepd, whose children the tasks of a step
    are."""
    if len(tasks) == 1:
        return tasks[0].pid
    process = read_process(tasks[0].pid, proc)
    if process is None:
        raise DiagError(f"the processes of step {tasks[0].step} have just ended", exit_code=2)
    return process.parent


def _ask(command: list[str]) -> str:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=30, check=False, stdin=subprocess.DEVNULL
        ).stdout
    except FileNotFoundError:
        raise DiagError(
            "scontrol is not installed here, so the processes of the step cannot be found",
            hint="diag watch --pid PID, with the launcher's pid from `ps`",
            exit_code=2,
        ) from None
    except (OSError, subprocess.TimeoutExpired):
        return ""
