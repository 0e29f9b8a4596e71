"""Plain training loops under `diag run` with default settings, each struck by one fault, and all that diag
recorded kept: `python -m tests.labs.gpu.loops`.

    python -m tests.labs.gpu.loops --keep DIR [--seconds 520] [--side-by-side 2] [--cases late-item,leaves]

The loops end their steps as people write them: in `.item()`, in a thread that is joined, with lines of their own.
On a machine with one GPU the ranks share it (NCCL takes each for a host of its own); without a GPU they run on
gloo. It needs torch and what diag itself needs, and no network. Every case is bounded; a case for which no time is
left is named as not run. DIR has a folder for each case, `results.json`, and `loops.tar.gz` with all of it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from tests.labs.bench import gpu_loop, target
from tests.liverun import DIAG, LiveRun, live_run

from .loop_cases import CASES, Case

__all__ = ["main"]

_RANKS = 2
_START_SECONDS = 90.0  # to the first step: two ranks import torch
_TRAINED_SECONDS = 8.0  # of steps before a fault from outside: a history that tells what overdue is
_SETTLED_SECONDS = 8.0  # after the first finding of a hang: what is said next is kept too
_DUMP_SECONDS = 30.0
_FIRST_PORT = 29700
_BUSY_LOOPS = 6
_NEEDED = ("torch", "psutil", "pydantic_settings", "fastapi", "uvicorn", "yaml", "re2", "prometheus_client")
# A store to where no memory is: the driver reports Xid 31 for the process that made it.
_WILD_STORE = """
import torch
bad = torch.cuda.jiterator._create_jit_fn("template <typename T> T bad(T x) { *(T*)0x1234567800ULL = x; return x; }")
bad(torch.ones(1, device="cuda"))
torch.cuda.synchronize()
"""
_MULTIPLY = """
import torch
a = torch.rand(4096, 4096, device="cuda")
while True:
    a = (a @ a).clamp(0, 1)
"""


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


# --- what strikes from outside


@contextlib.contextmanager
def _started(commands: Sequence[Sequence[str]], folder: Path) -> Iterator[list[psutil.Popen]]:
    """In sessions of their own: no part of the job."""
    with open(folder / "neighbours.txt", "ab") as output:
        found = [
            psutil.Popen(command, stdout=output, stderr=output, start_new_session=True)
            for command in commands
        ]
    try:
        yield found
    finally:
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
            process.wait(10)


@contextlib.contextmanager
def _starve(folder: Path) -> Iterator[None]:
    """The rank gets one core, as `taskset` gives it, and busy loops beside it."""
    pid = target.pids(folder)[1]
    core = max(os.sched_getaffinity(pid))
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), {core})
    with _started([["sh", "-c", "while :; do :; done"]] * _BUSY_LOOPS, folder) as loops:
        for loop in loops:
            os.sched_setaffinity(loop.pid, {core})
        say(f"rank 1 (pid {pid}) has core {core}, with {', '.join(str(loop.pid) for loop in loops)}")
        yield


@contextlib.contextmanager
def _python_beside(program: str, folder: Path) -> Iterator[None]:
    with _started([[sys.executable, "-c", program]], folder) as processes:
        say(f"beside the job: pid {processes[0].pid}")
        yield


_OUTSIDE: dict[str, Callable[[Path], contextlib.AbstractContextManager[None]]] = {
    "": lambda folder: contextlib.nullcontext(),
    "starve": _starve,
    "neighbour": lambda folder: _python_beside(_MULTIPLY, folder),
    "neighbour-fault": lambda folder: _python_beside(_WILD_STORE, folder),
}

# --- one case


def run_case(case: Case, number: int, gpus: int, keep: Path, deadline: float) -> dict[str, Any]:
    """Its row. Everything that it started is gone afterwards, and what was recorded lies in `keep`."""
    began = time.monotonic()
    row: dict[str, Any] = {"case": case.name, "truth": case.truth, "rank": case.rank, "gpus": gpus}
    # short: a UNIX socket's path has 107 characters
    folder = Path(tempfile.mkdtemp(prefix="gl-", dir="/tmp"))
    env = {
        "BENCH_FOLDER": str(folder),
        "NCCL_RAS_ADDR": f"localhost:{_FIRST_PORT + number}",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH", "")])),
        "PYTHONUNBUFFERED": "1",
    }
    try:
        with live_run(folder, gpu_loop.command(_RANKS, *case.arguments), env=env) as run:
            row |= _watch(case, run, folder, deadline)
    except Exception:
        row["error"] = traceback.format_exc()[-3000:]
    row["seconds"] = round(time.monotonic() - began, 1)
    kept = keep / case.name
    _keep(folder, kept)
    (kept / "row.json").write_text(json.dumps(row, indent=1))
    shutil.rmtree(folder, ignore_errors=True)
    return row


def _watch(case: Case, run: LiveRun, folder: Path, deadline: float) -> dict[str, Any]:
    run.until(lambda: target.complete(folder, _RANKS), _START_SECONDS)
    first = time.time()
    run.until(lambda: time.time() - first >= _TRAINED_SECONDS or run.process.poll() is not None, 60)
    with _OUTSIDE[case.outside](folder):
        struck_outside = time.time()
        if "--fault" in case.arguments:
            run.until(lambda: run.struck_at() or run.process.poll() is not None, 120)
        struck = run.struck_at() or struck_outside
        end = min(deadline, time.monotonic() + case.seconds)
        seen = None
        while time.monotonic() < end and run.process.poll() is None:
            loud = [
                one for one in run.changes() if one["finding"]["severity"] != "info" and one["at"] >= struck
            ]
            # what holds the job up is said first; it goes on until the hang is
            if case.quick and seen is None and any(one["finding"]["id"] != "held-up" for one in loud):
                seen = time.monotonic()
            if seen is not None and time.monotonic() - seen >= _SETTLED_SECONDS:
                break
            time.sleep(0.2)
        row = {
            "struck_at": struck,
            "over": run.process.poll(),
            "said": [_short(one, struck) for one in run.changes()],
        }
        if run.process.poll() is None:
            row["dump_seconds"] = _dump(run, folder)
    return row


def _short(change: dict[str, Any], struck: float) -> dict[str, Any]:
    finding = change["finding"]
    told = {
        key: finding.get(key)
        for key in ("id", "class", "cause", "severity", "confidence", "ranks", "summary")
    }
    return {"after": round(change["at"] - struck, 1), "change": change["change"], **told}


def _dump(run: LiveRun, folder: Path) -> float | None:
    began = time.monotonic()
    words = [*DIAG, "dump", "--all-ranks", "--run-dir", str(run.run_dir), "-o", str(folder / "dump.tar.gz")]
    try:
        with open(folder / "dump.txt", "wb") as output:
            subprocess.run(words, stdout=output, stderr=subprocess.STDOUT, check=False, timeout=_DUMP_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    return round(time.monotonic() - began, 1)


def _keep(folder: Path, kept: Path) -> None:
    """The run directory as it is but for its sockets, and what job and diag printed."""
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and not path.is_socket():
            to = kept / path.relative_to(folder)
            to.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(OSError):
                shutil.copy(path, to)


# --- all of them


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m tests.labs.gpu.loops", description=(__doc__ or "").partition("\n\n")[0]
    )
    p.add_argument("--cases", metavar="NAME,...", help="default: all")
    p.add_argument("--seconds", type=float, default=520.0, help="for all of them (default 520)")
    p.add_argument("--side-by-side", type=int, default=1, metavar="N", help="cases at a time (default 1)")
    p.add_argument("--keep", type=Path, default=Path("build/gpu-loops"), metavar="DIR")
    p.add_argument("--list", action="store_true", help="name the cases with what is true of each")
    return p


def _gpus() -> int:
    """Asked in a process of its own: this one does not open the driver."""
    words = [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def _describe_machine(gpus: int) -> dict[str, Any]:
    script = (
        "import json, platform, torch; c = torch.cuda; "
        "print(json.dumps({'python': platform.python_version(), 'kernel': platform.release(), 'torch': "
        "torch.__version__, 'nccl': '.'.join(map(str, c.nccl.version())) if c.is_available() else None, "
        "'gpu': c.get_device_name() if c.is_available() else None}))"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return {**found, "gpus": gpus, "cores": os.cpu_count()}


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    names = [name for name in (options.cases or "").split(",") if name]
    unknown = set(names) - {case.name for case in CASES}
    if unknown:
        known = ", ".join(case.name for case in CASES)
        print(f"error: no case {', '.join(sorted(unknown))}\n\nhint: {known}", file=sys.stderr)
        return 2
    if options.list:
        for case in CASES:
            print(f"{case.name}: {case.truth}")
        return 0
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"error: this Python has no {', '.join(missing)}, which diag or its loops need\n\n"
            "hint: pip install those, or put them on PYTHONPATH",
            file=sys.stderr,
        )
        return 2
    rows = _run_all([case for case in CASES if not names or case.name in names], options)
    return 1 if any("error" in row for row in rows) else 0


def _run_all(cases: Sequence[Case], options: argparse.Namespace) -> list[dict[str, Any]]:
    deadline = time.monotonic() + options.seconds
    gpus = _gpus()
    options.keep.mkdir(parents=True, exist_ok=True)
    machine = _describe_machine(gpus)
    say(f"machine: {json.dumps(machine)}")
    rows: list[dict[str, Any]] = []
    lock = threading.Lock()

    def one(number: int, case: Case) -> None:
        left = deadline - time.monotonic()
        if case.gpu and not gpus:
            row = {"case": case.name, "not_run": "no GPU"}
        elif left < case.seconds / 2 + 25:
            row = {"case": case.name, "not_run": f"{left:.0f} s left"}
        else:
            say(f"{case.name}: {case.truth}")
            row = run_case(case, number, gpus, options.keep, deadline - 10)
        with lock:
            rows.append(row)
            (options.keep / "results.json").write_text(
                json.dumps({"machine": machine, "rows": rows}, indent=1)
            )
            say(f"{case.name}: {_in_words(row)}")

    with ThreadPoolExecutor(max_workers=max(1, options.side_by_side)) as pool:
        for future in [pool.submit(one, number, case) for number, case in enumerate(cases)]:
            future.result()
    with tarfile.open(options.keep / "loops.tar.gz", "w:gz") as archive:
        for row in rows:
            if (options.keep / row["case"]).is_dir():
                archive.add(options.keep / row["case"], arcname=row["case"])
    return rows


def _in_words(row: dict[str, Any]) -> str:
    if "not_run" in row:
        return f"not run, {row['not_run']}"
    if "error" in row:
        return f"error: {row['error']}"
    loud = [one for one in row["said"] if one["severity"] != "info"]
    said = [
        f"\n  {one['after']:+.1f} s {one['change']} {one['severity']} {one['id']} {one['class'] or ''} {one['cause'] or ''} "
        f"ranks {one['ranks']} ({one['confidence']}): {one['summary']}"
        for one in loud
    ]
    return f"watched {row['seconds']} s, exit {row['over']}" + ("".join(said) or "\n  nothing said")


if __name__ == "__main__":
    sys.exit(main())
