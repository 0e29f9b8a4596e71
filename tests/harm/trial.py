"""One trial: the job under `diag run`, one fault at a seeded moment, and the judgement: is the job as it is without diag?"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.harm.faults import Fault

__all__ = ["Outcome", "Running", "run_trial"]

_JOB = Path(__file__).parent / "job.py"
_MOST_SECONDS = 90.0
_LONGEST_GAP = 2.5  # of a rank between two of its lines of 20 ms: on two cores with other trials beside it
_LONG = 5.0  # seconds that a job takes


@dataclass(slots=True)
class Outcome:
    """`wrong` is empty when nothing and nobody came to harm."""

    fault: str
    seed: int
    did: str
    wrong: list[str] = field(default_factory=list)
    longest_gap: float = 0.0
    findings: list[str] = field(default_factory=list)


class Running:
    """What a fault may touch."""

    def __init__(self, process: subprocess.Popen[bytes], root: Path, results: Path) -> None:
        self.process = process
        self.root = root
        self.results = results
        self._kept: list[socket.socket] = []

    def hub(self) -> psutil.Process:
        return psutil.Process(self.process.pid)

    def run_dir(self) -> Path:
        return next(iter(sorted(self.root.glob("*/run.json")))).parent

    def address(self) -> tuple[str, int]:
        url = self._until(lambda: json.loads((self.run_dir() / "run.json").read_text()).get("url"))
        return "127.0.0.1", int(str(url).rpartition(":")[2])

    def keep(self, opened: socket.socket) -> None:
        self._kept.append(opened)

    def pause(self, seconds: float) -> None:
        """Let the fault last; not longer than diag run lives."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)

    def until_job_ended(self) -> None:
        self._until((self.results / "ended").exists)

    def close(self) -> None:
        for each in self._kept:
            each.close()

    @staticmethod
    def _until(condition: Callable[[], Any]) -> Any:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            with contextlib.suppress(OSError, ValueError, StopIteration):
                value = condition()
                if value:
                    return value
            time.sleep(0.02)
        raise TimeoutError("what the fault waits for did not come")


def run_trial(fault: Fault, seed: int, folder: Path) -> Outcome:
    """In a folder of its own, which the caller removes."""
    chance = random.Random(f"{fault.name} {seed}")
    ranks, seconds = chance.choice([1, 2, 3]), chance.uniform(3.0, _LONG) + (3.0 if "burst" in fault.job else 0.0)
    code = chance.choice([0, 0, 3, -signal.SIGTERM])
    results, root = folder / "results", folder / "runs"
    results.mkdir(parents=True)
    env = {**os.environ, "DIAG_STACK_SECONDS": "0.5"}
    undo = fault.before(root, env) if fault.before is not None else lambda: None
    python = env.pop("HARM_PYTHON", sys.executable)
    words = [python, "-m", "diag", "run", "--port", "0", "--run-root", str(root), *fault.options, "--",
             sys.executable, str(_JOB), str(results), str(ranks), f"{seconds:.2f}", str(code), *fault.job]
    outcome = Outcome(fault.name, seed, "")
    terminal = folder / "terminal"
    with open(terminal, "wb") as out:
        process = subprocess.Popen(words, stdout=out, stderr=subprocess.STDOUT, env=env, start_new_session=True)
        run = Running(process, root, results)
        try:
            Running._until(run.run_dir)
            run.pause(chance.uniform(0.0, seconds - 1.0))
            try:
                outcome.did = fault.strike(run, chance)
            except (TimeoutError, psutil.Error, OSError, StopIteration) as error:
                outcome.did = f"too late: {type(error).__name__}"
            process.wait(_MOST_SECONDS)
            run.until_job_ended()
            _judge(outcome, fault, run, terminal, ranks, code)
        except (subprocess.TimeoutExpired, TimeoutError) as error:
            outcome.wrong.append(f"did not end: {error}"[:300])
        finally:
            run.close()
            _end(process, results)
            undo()
    return outcome


def _end(process: subprocess.Popen[bytes], results: Path) -> None:
    """Nothing of a trial outlives it: whoever has its folder in an argument or was started by it."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                child.kill()
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if str(results) in " ".join(one.cmdline()):
                one.kill()
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    process.wait()


def _judge(  # noqa: PLR0917 - one caller, above
    outcome: Outcome, fault: Fault, run: Running, terminal: Path, ranks: int, code: int
) -> None:
    told = [json.loads(path.read_text()) for path in sorted(run.results.glob("rank-*"))]
    attempts = 3 if "churn" in fault.job else 1
    if len(told) != ranks * attempts:
        outcome.wrong.append(f"{len(told)} of {ranks * attempts} ranks came to their end")
    outcome.longest_gap = max((one["longest_gap"] for one in told), default=0.0)
    if "burst" not in fault.job and outcome.longest_gap > _LONGEST_GAP:
        outcome.wrong.append(f"a rank was held up for {outcome.longest_gap:.1f} s")
    wanted = code if code >= 0 else 128 - code
    returned = run.process.returncode
    if not fault.harms_hub and returned not in (wanted, code):
        outcome.wrong.append(f"exit code {returned}, not {wanted}")
    kept = b"".join(path.read_bytes() for path in sorted(run.root.glob("*/output.log*")))
    seen = terminal.read_bytes() if not fault.harms_hub else kept
    for one in told:
        line = rb"^rank %d attempt %d line (\d+)$" % (one["rank"], one["attempt"])
        found = [int(number) for number in re.findall(line, seen, re.MULTILINE)]
        if found != list(range(one["lines"])):
            outcome.wrong.append(f"rank {one['rank']}: {len(found)} of {one['lines']} lines, in order: {found == sorted(found)}")
    if fault.job[:1] == ("burst",) and seen.count(b"x" * 199 + b"\n") != int(fault.job[1]) * 5000:
        outcome.wrong.append("the burst did not come through whole")
    _judge_diag(outcome, fault, run, terminal)


def _judge_diag(outcome: Outcome, fault: Fault, run: Running, terminal: Path) -> None:
    text = terminal.read_bytes().decode("utf-8", "replace")
    if "Please report this" in text or "bug in diag" in text or "Traceback" in text:
        outcome.wrong.append("a bug of diag: " + text[max(0, text.find("report this") - 300):][:600])
    with contextlib.suppress(StopIteration):
        said = run.run_dir() / "findings.jsonl"
        changes = [json.loads(line) for line in said.read_text().splitlines()] if said.exists() else []
        outcome.findings = sorted({change["finding"]["id"] for change in changes if change["finding"]["severity"] != "info"})
    false = set(outcome.findings) & {"hang", "host-oom", "ib-fallback", "straggler"}
    if false:
        outcome.wrong.append(f"false alarm: {sorted(false)}")
    if fault.no_journal:
        return
    replayed = subprocess.run([sys.executable, "-m", "diag", "replay", "--json", str(run.run_dir())],
                              capture_output=True, text=True, check=False, timeout=120)
    if replayed.returncode not in (0, 10):
        outcome.wrong.append(f"the journal does not read back: {replayed.stderr.strip()[-300:]}")
