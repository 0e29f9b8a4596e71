"""The judgement of a trial: is the job as it is without diag, is what diag says true, and is nothing of it
left?"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from tests.labs.harm.job import FLOOD_LINE

if TYPE_CHECKING:
    from tests.labs.harm.fault import Fault
    from tests.labs.harm.trial import Running

__all__ = ["Outcome", "judge"]

_LONGEST_GAP = 2.5  # of a rank between two of its lines of 20 ms: on two cores with other trials beside it
_LEFT_SECONDS = (
    6.0  # sidecars of a killed hub see the end of their orders, and end; killed processes are on their way
)
# What diag says where it had to give up: what it recorded ends there.
_GAVE_UP = (
    "the hub cannot start",
    "the hub ended",
    "runs unwatched",
    "the watch ends here",
    "the last checks failed",
    "the output ",
    "the journal ends here",
)
_REPLAY_SECONDS = 400  # of a burst of half a million lines, with other trials beside it


@dataclass(slots=True)
class Outcome:
    """`wrong` is empty when nothing and nobody came to harm."""

    fault: str
    seed: int
    did: str
    wrong: list[str] = field(default_factory=list)
    longest_gap: float = 0.0
    findings: list[str] = field(default_factory=list)
    seconds: float = 0.0
    numbers: dict[str, float] = field(default_factory=dict)


def judge(outcome: Outcome, fault: Fault, run: Running, code: int) -> None:
    for index in range(len(run.places)):
        where = f"node {index}: " if len(run.places) > 1 else ""
        before = len(outcome.wrong)
        _judge_job(outcome, fault, run, index, code, broken=fault.harms_carrier)
        _judge_diag(
            outcome, fault, run, index, broken=fault.harms_hub or fault.harms_carrier or index in run.broken
        )
        outcome.wrong[before:] = [where + one for one in outcome.wrong[before:]]
    _judge_left(outcome, run)
    if fault.check is not None:
        fault.check(run, outcome)


# --- the job
# ---------------------------------------------------------------------------------------------------


def _judge_job(outcome: Outcome, fault: Fault, run: Running, index: int, code: int, *, broken: bool) -> None:
    place = run.places[index]
    told = place.told
    attempts = 3 if "churn" in fault.job else 1
    if len(told) != run.ranks * attempts:
        outcome.wrong.append(f"{len(told)} of {run.ranks * attempts} ranks came to their end")
    longest = max((one["longest_gap"] for one in told), default=0.0)
    outcome.longest_gap = max(outcome.longest_gap, longest)
    if "burst" not in fault.job and longest > _LONGEST_GAP + fault.gap:
        outcome.wrong.append(f"a rank was held up for {longest:.1f} s")
    wanted = code if code >= 0 else 128 - code
    returned = place.process.returncode
    if not broken and returned not in (wanted, code):
        outcome.wrong.append(f"exit code {returned}, not {wanted}")
    if fault.lines == "none":
        return
    with _opened(place.terminal if fault.lines == "terminal" and not broken else _kept(place.root)) as seen:
        for one in told:
            line = re.compile(rb"rank %d attempt %d line (\d+)\n" % (one["rank"], one["attempt"]))
            # Not `^` in the pattern: a search for plain bytes is ten times as quick, and a flood has a
            # gigabyte.
            found = [
                int(match[1])
                for match in line.finditer(seen)
                if seen[max(0, match.start() - 1) : match.start()] in (b"", b"\n")
            ]
            if found != list(range(one["lines"])):
                outcome.wrong.append(
                    f"rank {one['rank']}: {len(found)} of {one['lines']} lines, "
                    f"in order: {found == sorted(found)}"
                )
        _judge_mass(outcome, fault, seen)


def _judge_mass(outcome: Outcome, fault: Fault, seen: bytes | mmap.mmap) -> None:
    if fault.job[:1] == ("burst",):
        wanted, line = int(fault.job[1]) * 5000, b"x" * 199 + b"\n"
    elif fault.job[:1] == ("flood",):
        piece = 16 * len(FLOOD_LINE)
        wanted, line = int(float(fault.job[1]) * 1e6 * float(fault.job[2]) / piece) * 16, FLOOD_LINE
    else:
        return
    count, at = 0, seen.find(line)
    while at >= 0:
        count, at = count + 1, seen.find(line, at + len(line))
    if count != wanted:
        outcome.wrong.append(f"{count} of {wanted} lines of the burst came through")


@contextlib.contextmanager
def _opened(path: Path | None):  # type: ignore[no-untyped-def]
    """Its bytes, mapped: a flood has a gigabyte."""
    if path is None or not path.exists() or path.stat().st_size == 0:
        yield b""
        return
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        yield mapped


def _kept(root: Path) -> Path | None:
    return next(iter(sorted(root.glob("*/output.log*"))), None)


# --- diag
# ------------------------------------------------------------------------------------------------------


def _judge_diag(outcome: Outcome, fault: Fault, run: Running, index: int, *, broken: bool) -> None:
    place = run.places[index]
    text = _words_of_diag(place.terminal)
    for mark in ("Please report this", "bug in diag", "Traceback"):
        if mark in text:
            outcome.wrong.append("a bug of diag: " + text[max(0, text.find(mark) - 300) :][:900])
            break
    broken = broken or any(words in text for words in _GAVE_UP)
    with contextlib.suppress(FileNotFoundError):
        said = place.run_dir() / "findings.jsonl"
        changes = [json.loads(line) for line in said.read_text().splitlines()] if said.exists() else []
        ids = {change["finding"]["id"] for change in changes if change["finding"]["severity"] != "info"}
        outcome.findings = sorted({*outcome.findings, *ids})
        false = ids - fault.right
        if false:
            outcome.wrong.append(f"false alarm: {sorted(false)}")
    if fault.no_journal:
        return
    try:
        folder = place.run_dir()
    except FileNotFoundError:
        if not broken:
            outcome.wrong.append("no run directory")
        return
    replayed = subprocess.run(
        [sys.executable, "-m", "diag", "replay", "--json", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=_REPLAY_SECONDS,
        cwd=run.cwd,
    )
    if replayed.returncode not in (0, 10):
        outcome.wrong.append(f"the journal does not read back: {replayed.stderr.strip()[-300:]}")
    elif not broken and '"how the run ended"' in replayed.stdout:
        outcome.wrong.append("the journal breaks off before the run's end")


def _words_of_diag(terminal: Path) -> str:
    """Its first and last megabytes: between them a job may have printed a gigabyte."""
    if not terminal.exists():
        return ""
    with open(terminal, "rb") as file:
        first = file.read(4 << 20)
        file.seek(max(len(first), terminal.stat().st_size - (4 << 20)))
        return (first + file.read()).decode("utf-8", "replace")


# --- what is left
# ----------------------------------------------------------------------------------------------


def _judge_left(outcome: Outcome, run: Running) -> None:
    """Whatever the trial started and lost is our child now: `once` has made us the one that adopts orphans."""
    end = time.monotonic() + _LEFT_SECONDS
    while (left := _living(run)) and time.monotonic() < end:
        time.sleep(0.05)
    for process in left:
        with contextlib.suppress(psutil.Error):
            outcome.wrong.append(
                f"lives on: {process.pid} {process.status()} {' '.join(process.cmdline())[:200]}"
            )
    for folder in ("tmp", "home", "shm"):
        found = sorted(str(path) for path in (run.folder / folder).rglob("*") if not path.is_dir())
        if found:
            outcome.wrong.append(f"left in {folder}: {found[:5]}")


def _living(run: Running) -> list[psutil.Process]:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    found = [process for process in psutil.Process().children() if process.pid not in run.own]
    for node in run.nodes:
        found += node.processes()
    return found
