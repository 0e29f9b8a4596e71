"""`python -m tests.labs.fuzz --seconds N`: every target for its share of the time, and the HTTP API against its
document.

Each target is a process of its own. Exit code 1 where an input was at fault: it is kept in
build/fuzz/crashes, beside what it raised.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.labs.fuzz.worker import has_atheris

ROOT = Path(__file__).parents[3]
OUT = ROOT / "build"
HTTP = "http"
_GRACE_SECONDS = 240.0  # to start, and for one input that takes long


@dataclass
class Row:
    target: str
    reads: str
    executions: int = 0
    engine: str = ""
    new_inputs: int = 0  # that took a way nothing before took: what guides the search
    slowest_seconds: float = 0.0
    seconds: float = 0.0
    crashes: dict[str, str] = field(default_factory=dict)  # where: the kept input


def main() -> int:
    options = _options()
    if options.repeat is not None:
        return _repeat(options.repeat)
    rows: list[Row] = []
    names = _names(options.only)
    began = time.time()
    for number, name in enumerate(names):
        # what one leaves is the others'
        share = max(1.0, (began + options.seconds - time.time()) / (len(names) - number))
        rows.append(_http(share, options) if name == HTTP else _one(name, share, options))
        row = rows[-1]
        print(
            f"{name:<24} {row.executions:>9,} executions {row.new_inputs:>6,} new {len(row.crashes)} crashes",
            file=sys.stderr,
            flush=True,
        )
        _write(rows, options, time.time() - began)
    print(_table(rows))
    for row in rows:
        for where, file in row.crashes.items():
            again = (
                f"--only {HTTP} --seed {options.seed}  # told in {file}"
                if row.target == HTTP
                else f"--repeat {file}"
            )
            print(f"\n{row.target}: {where}\n  python -m tests.labs.fuzz {again}")
    return 1 if any(row.crashes for row in rows) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.labs.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="of all targets together (default 300)")
    parser.add_argument(
        "--only", default="", metavar="TARGET,...", help="these targets alone; record-* for all that begin so"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--engine",
        choices=("auto", "atheris", "seeded"),
        default="auto",
        help="atheris: branches guide the search; seeded: recorded inputs are changed; auto: atheris where it is installed, for "
        "text and bytes (of trees of JSON three times as many are tried without)",
    )
    parser.add_argument("--runs", type=int, default=0, help="at most so many executions of a target")
    parser.add_argument(
        "--out", type=Path, default=OUT, help="where fuzz.json, fuzz.md and fuzz/crashes go (default: build)"
    )
    parser.add_argument("--repeat", type=Path, metavar="FILE", help="run a kept input once")
    return parser.parse_args()


def _names(only: str) -> list[str]:
    from fnmatch import fnmatch

    from tests.labs.fuzz.targets import TARGETS

    every = [*TARGETS, HTTP]
    if not only:
        return every
    found = [name for name in every if any(fnmatch(name, wanted) for wanted in only.split(","))]
    if not found:
        raise SystemExit(f"no such target; there are: {', '.join(every)}")
    return found


def _engine(name: str, options: argparse.Namespace) -> str:
    from tests.labs.fuzz.targets import TARGETS

    if options.engine != "auto":
        return str(options.engine)
    return "atheris" if has_atheris() and TARGETS[name].form != "json" else "seeded"


def _worker(name: str, options: argparse.Namespace, scratch: Path, *words: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "tests.labs.fuzz.worker",
        name,
        "--kept",
        str(options.out / "fuzz" / "crashes"),
        "--scratch",
        str(scratch),
        *words,
    ]


def _one(name: str, share: float, options: argparse.Namespace) -> Row:
    from tests.labs.fuzz.targets import TARGETS

    row = Row(name, TARGETS[name].reads, engine=_engine(name, options))
    scratch = Path(tempfile.mkdtemp(prefix="diag-fuzz-"))
    stats = scratch / "stats.json"
    began = time.monotonic()
    words = [
        "--seconds",
        str(share),
        "--runs",
        str(options.runs),
        "--seed",
        str(options.seed),
        "--engine",
        _engine(name, options),
        "--stats",
        str(stats),
    ]
    try:
        with (scratch / "log").open("wb") as log:
            # all is imported here already: on a busy machine that takes longer than the share
            if row.engine == "seeded":
                code = _forked(
                    [name, *_worker(name, options, scratch, *words)[4:]], log.fileno(), share + _GRACE_SECONDS
                )
            else:
                code = _ended(_worker(name, options, scratch, *words), log.fileno(), share + _GRACE_SECONDS)
        said = (scratch / "log").read_text(errors="replace")
        told = (
            json.loads(stats.read_text())
            if stats.exists()
            else {"executions": 0, "slowest_seconds": 0.0, "faults": {}}
        )
        row.executions, row.slowest_seconds, row.crashes = (
            told["executions"],
            told["slowest_seconds"],
            told["faults"],
        )
        units = re.search(r"stat::number_of_executed_units: (\d+)", said)
        row.executions = max(row.executions, int(units[1]) if units else 0)
        fresh = re.search(r"stat::new_units_added: +(\d+)", said)
        row.new_inputs = int(fresh[1]) if fresh else 0
        if code != 0:  # the process itself ended: a signal, all memory, an input without an end
            kept = re.search(r"Test unit written to (\S+)", said)
            log = options.out / "fuzz" / "crashes" / f"{name}@log"
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(said[-20_000:])
            row.crashes[f"the process ended with {code}"] = kept[1] if kept else str(log)
        row.crashes = {
            where: file
            for where, file in row.crashes.items()
            if not where.startswith("TimeoutError") or _is_slow(file)
        }
    finally:
        row.seconds = round(time.monotonic() - began, 1)
        shutil.rmtree(scratch, ignore_errors=True)
    return row


def _ended(command: list[str], log: int, seconds: float) -> int:
    try:
        return subprocess.run(
            command, cwd=ROOT, stdout=log, stderr=log, check=False, timeout=seconds
        ).returncode
    except subprocess.TimeoutExpired:
        return -9


def _forked(words: list[str], log: int, seconds: float) -> int:
    from tests.labs.fuzz import worker

    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setpgid(0, 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            worker.main(words)
            code = 0
        finally:
            os._exit(code)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # what the target started
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return -9


def _is_slow(file: str) -> bool:
    """Whether it is slow without the counting of branches too."""
    return _repeat(Path(file), quiet=True) != 0


def _repeat(file: Path, *, quiet: bool = False) -> int:
    name = file.name.partition("@")[0]
    with tempfile.TemporaryDirectory(prefix="diag-fuzz-") as scratch:
        command = [
            sys.executable,
            "-m",
            "tests.labs.fuzz.worker",
            name,
            "--kept",
            f"{scratch}/kept",
            "--scratch",
            scratch,
            "--repeat",
            str(file.resolve()),
        ]
        try:
            done = subprocess.run(
                command, cwd=ROOT, check=False, timeout=_GRACE_SECONDS, capture_output=quiet
            )
        except subprocess.TimeoutExpired:
            return 1
        return 1 if done.returncode else 0


def _http(share: float, options: argparse.Namespace) -> Row:
    from tests.labs.fuzz.api import fuzzed

    row = Row(HTTP, "every route of the HTTP API, by its OpenAPI document", engine="schemathesis")
    began = time.monotonic()
    row.executions, faults = fuzzed(share, options.seed, options.runs)
    for number, (where, told) in enumerate(faults.items()):
        file = options.out / "fuzz" / "crashes" / f"http@{number}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(told, errors="backslashreplace")
        row.crashes[where] = str(file)
    row.seconds = round(time.monotonic() - began, 1)
    return row


def _write(rows: list[Row], options: argparse.Namespace, seconds: float) -> None:
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "fuzz.md").write_text(_table(rows) + "\n")
    told = {
        "seconds": round(seconds, 1),
        "seed": options.seed,
        "engine": options.engine,
        "targets": [asdict(row) for row in rows],
    }
    (options.out / "fuzz.json").write_text(json.dumps(told, indent=1) + "\n")


def _table(rows: list[Row]) -> str:
    lines = [
        "| target | what it reads | engine | executions | new inputs | slowest, s | crashes |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        slowest = f"{row.slowest_seconds:.2f}" if row.slowest_seconds else "-"
        counts = f"{row.executions:,} | {row.new_inputs or '-'} | {slowest} | {len(row.crashes)}"
        lines.append(f"| {row.target} | {row.reads} | {row.engine} | {counts} |")
    total = sum(row.executions for row in rows)
    lines.append(
        f"| all | | | {total:,} | {sum(row.new_inputs for row in rows):,} | | {sum(len(row.crashes) for row in rows)} |"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
