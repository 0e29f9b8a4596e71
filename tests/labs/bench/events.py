"""What one sample costs the step it falls into: the excess of the steps that overlap it, less what quiet
windows show.

The target has a core of its own, diag and py-spy run on the others. Steps count without the time that they
waited for the core, so other users of the machine are not in it, and stops are.
"""

from __future__ import annotations

import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from diag.engine.journal import JournalReader, segments
from diag.model import Record
from diag.sources.collectives import flight_recorder

from . import target
from .machine import PY_SPY, pinned, ran
from .runs import NotReady, alone, under_diag, until
from .stats import Interval, Step, difference, event_losses, judge, quiet_windows
from .table import Row, percent, times

__all__ = ["recorder_rows", "rows"]

Windows = list[tuple[float, float]]

# The defaults of diag/settings.py, which a sample's cost is told for.
_STACK_SECONDS, _PROC_SECONDS = 5.0, 2.0
_GOAL = 0.0005
# A record is stamped when its sample is done: it was read before (1 ms; cold, or by py-spy, 25), the hub
# takes it after.
_STACK_WINDOW = (-0.08, 0.03)
_PROC_WINDOW = (-0.015, 0.015)
_OFTEN, _PROC_OFTEN = 0.5, 0.7
_WARM_UP_SECONDS = 3.0
_THREADS = 20
_SELDOM = 1.5  # a question takes longer than a stack, and between two there must be quiet windows as wide
_CALLS = 2000  # collectives in the record: as many as torch keeps by default


def rows(seconds: float, say: Callable[[str], None]) -> list[Row]:
    with pinned() as core:
        spins = target.calibrate(0.01)
        say(f"events: diag samples each {_OFTEN} s for {seconds:.0f} s")
        steps, stacks, procs = _under_diag(seconds, spins, core)
        say(f"events: blocking py-spy dump each {_OFTEN} s for {seconds:.0f} s")
        peer_steps, dumps = _beside_dumps(seconds, spins, core)
        say(f"events: py-spy dump --nonblocking each {_OFTEN} s for {seconds:.0f} s")
        gentle_steps, gentle_dumps = _beside_dumps(seconds, spins, core, "--nonblocking")
    stack = _loss(steps, stacks, stacks + procs)
    apart = [
        window for window in procs if not any(window[0] < end and begin < window[1] for begin, end in stacks)
    ]
    proc = _loss(steps, apart, stacks + procs)
    peer, gentle = _loss(peer_steps, dumps, dumps), _loss(gentle_steps, gentle_dumps, gentle_dumps)
    share, peer_share = stack.scaled(1 / _STACK_SECONDS), peer.scaled(1 / _STACK_SECONDS)
    note = f"{_THREADS} idle threads, {1000 * statistics.median(step.held for step in steps):.0f} ms steps"
    return [
        Row(
            f"loss by a stack sample each {_STACK_SECONDS:.0f} s, event method ({len(stacks)} samples; {note})",
            f"{percent(share, 3)}; {1000 * stack.mid:.2f} ms a sample",
            f"py-spy dump: {percent(peer_share, 3)}; {1000 * peer.mid:.2f} ms; --nonblocking: {1000 * gentle.mid:.2f} ms",
            times(stack.mid, peer.mid),
            f"< {percent(_GOAL)}",
            judge(share, _GOAL),
            {
                "diag_ms": 1000 * stack.mid,
                "peer_ms": 1000 * peer.mid,
                "nonblocking_ms": 1000 * gentle.mid,
                "share": share.mid,
                "peer_share": peer_share.mid,
            },
            "P4 stack",
        ),
        Row(
            f"loss by a reading of /proc each {_PROC_SECONDS:.0f} s, event method ({len(apart)} readings)",
            f"{percent(proc.scaled(1 / _PROC_SECONDS), 3)}; {1000 * proc.mid:.2f} ms a reading",
            "",
            "",
            f"< {percent(_GOAL)}",
            judge(proc.scaled(1 / _PROC_SECONDS), _GOAL),
            {"diag_ms": 1000 * proc.mid},
            "P4 proc",
        ),
    ]


def recorder_rows(seconds: float, say: Callable[[str], None]) -> list[Row]:
    """One question to torch's Flight Recorder in a rank that trains: its server's thread needs the GIL for
    the answer."""
    if importlib.util.find_spec("torch") is None:
        raise NotReady("one question to the Flight Recorder: torch is not installed")
    with pinned() as core:
        spins = target.calibrate(0.01)
        say(f"events: the Flight Recorder is asked each {_SELDOM} s for {seconds:.0f} s")
        steps, asked, took = _asked(seconds, spins, core)
    loss = _loss(steps, asked, asked)
    return [
        Row(
            f"loss by one question to the Flight Recorder, event method ({len(asked)} questions; steps of "
            f"{1000 * statistics.median(step.held for step in steps):.0f} ms, {_CALLS} collectives kept)",
            f"{1000 * loss.mid:.2f} ms [{1000 * loss.low:.2f}, {1000 * loss.high:.2f}]; answered in {1000 * took:.1f} ms",
            values={"diag_ms": 1000 * loss.mid, "answer_ms": 1000 * took},
            key="loss, recorder",
        )
    ]


def _asked(seconds: float, spins: int, core: int) -> tuple[list[Step], Windows, float]:
    with tempfile.TemporaryDirectory(prefix="diag-bench-") as name:
        folder = Path(name)
        command = target.command(folder, ranks=1, spins=spins, threads=_THREADS, core=core, calls=_CALLS)
        with under_diag(command, folder, DIAG_STACK_SECONDS="3600", DIAG_PROC_SECONDS="3600") as run:
            pid = until(lambda: target.pids(folder), 120, "the loop runs under diag")[0]
            assert run.run_dir is not None
            home = run.run_dir
            until(
                lambda: "failed" not in flight_recorder.read(0, pid, home, 2.0),
                60,
                "the Flight Recorder answers",
            )
            windows, took, end = [], [], time.monotonic() + seconds
            time.sleep(_WARM_UP_SECONDS)
            while time.monotonic() < end:
                time.sleep(_SELDOM)
                began = time.time()
                payload = flight_recorder.read(0, pid, home, 2.0)
                if "failed" not in payload:
                    windows.append((began, time.time()))
                    took.append(windows[-1][1] - began)
            if not windows:
                raise NotReady("the Flight Recorder did not answer")
            widest = max(statistics.median(took) * 1.5, 0.01)  # all of one width, as the control has
            return (
                _warm(target.read_steps(folder)),
                [(a, a + widest) for a, _ in windows],
                statistics.median(took),
            )


def _under_diag(seconds: float, spins: int, core: int) -> tuple[list[Step], Windows, Windows]:
    settings = {"DIAG_STACK_SECONDS": str(_OFTEN), "DIAG_PROC_SECONDS": str(_PROC_OFTEN)}
    with tempfile.TemporaryDirectory(prefix="diag-bench-") as name:
        folder = Path(name)
        command = target.command(folder, ranks=1, spins=spins, threads=_THREADS, core=core)
        with under_diag(command, folder, **settings) as run:
            until(
                lambda: run.run_dir is not None and len(target.pids(folder)) == 1,
                60,
                "the loop runs under diag",
            )
            time.sleep(seconds)
            steps = target.read_steps(folder)
            assert run.run_dir is not None
            records = list(JournalReader(segments(run.run_dir)))
        return (
            _warm(steps),
            _windows(records, "remote_stack", _STACK_WINDOW),
            _windows(records, "proc", _PROC_WINDOW),
        )


def _beside_dumps(seconds: float, spins: int, core: int, *options: str) -> tuple[list[Step], Windows]:
    with tempfile.TemporaryDirectory(prefix="diag-bench-") as name:
        folder = Path(name)
        with alone(target.command(folder, ranks=1, spins=spins, threads=_THREADS, core=core), folder):
            pid = until(lambda: target.pids(folder), 60, "the loop runs")[0]
            windows, end = [], time.monotonic() + seconds
            while time.monotonic() < end:
                time.sleep(_OFTEN)
                ran([PY_SPY, "dump", *options, "--pid", str(pid)])
                done = time.time()
                windows.append((done + _STACK_WINDOW[0], done + _STACK_WINDOW[1]))
            return _warm(target.read_steps(folder)), windows


def _windows(records: Sequence[Record], source: str, around: tuple[float, float]) -> Windows:
    moments = [record.emitted for record in records if record.source == source and record.emitted is not None]
    return [(moment + around[0], moment + around[1]) for moment in moments]


def _warm(steps: Sequence[Step]) -> list[Step]:
    return [step for step in steps if step.start > steps[0].start + _WARM_UP_SECONDS]


def _loss(steps: Sequence[Step], windows: Windows, disturbed: Windows) -> Interval:
    """Seconds a sample, over what windows of the same width show in which nothing happened."""
    width = windows[0][1] - windows[0][0]
    control = event_losses(steps, quiet_windows(steps, disturbed, width, len(windows)), disturbed)
    return difference(event_losses(steps, windows, disturbed), control)
