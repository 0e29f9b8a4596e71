"""`make demo`: the real `megatron rlhf` hangs at its first batch under `diag run`; diag says why; then it is
let go. `make demo CASE=oom` and the like show other troubles on recorded evidence.

The hang is live. Of the job's hundreds of lines the screen shows those by which a person knows how far it is;
all of them are in the log that is named first.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from diag.text.colour import wanted
from diag.text.units import format_seconds
from diag_job import assets
from diag_job.faults.runtime import release

_START_SECONDS = 240.0  # imports of ms-swift on a slow, busy machine
_FIND_SECONDS = 90.0
_END_SECONDS = 240.0
_STOP_SECONDS = 60.0  # torchrun gives its ranks half of it
_READ_SECONDS = 0.2
_WIDEST = 110
# Of ms-swift 4.6.0's own lines; "diag" begins those of diag.
_LANDMARKS = re.compile(
    r"\[INFO:swift\] (swift\.__version__|rank: 0,|TP: |The training of Epoch)|.*'iteration': '(\d+)/\2'|"
    r"(\x1b\[\d+m)*diag(\||: job | \S+: watching )"
)


@dataclass(frozen=True, slots=True)
class Case:
    """`capture` below tests/captures; `about` says what ran, on what, and what happened; `next` what to type then."""

    capture: str
    about: str
    next: tuple[str, ...]


CASES = {
    "oom": Case(
        "memory/save-too-large",
        "Two ranks in a container of 2 GiB; each save stages more than the last, the third is killed by the kernel.",
        ("diag explain host-oom", "diag estimate -- CMD   # before the run: the save included"),
    ),
    "ib": Case(
        "h200-net/no-device-nodes-node0",
        "Two nodes with real NCCL, 400 Gb/s InfiniBand in each; the container was started without its devices.",
        (
            "diag explain ib-fallback",
            "diag doctor -- docker run ...   # before the run: the docker line, corrected",
        ),
    ),
    "nan": Case(
        "steps/nan_loss.log",
        "The log of a DPO job of two ranks, nothing else; one weight became nan before iteration 11.",
        ("diag explain loss-nan", "diag replay train.log   # your own log; .gz and - (stdin) too"),
    ),
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("case", nargs="?", choices=("hang", *CASES), default="hang", metavar="CASE")
    case = parser.parse_args(argv).case
    return show_hang() if case == "hang" else show_case(CASES[case])


# --- on recorded evidence


def show_case(case: Case) -> int:
    """0 where diag found what is there to find."""
    path = Path("tests/captures") / case.capture
    _say(case.about)
    print(f"$ diag replay {path}\n", flush=True)
    done = subprocess.run([*_diag(), "replay", str(path)], check=False)
    _say_next(
        case.next,
        *(f"make demo CASE={name}" for name, other in CASES.items() if other is not case),
        "make demo",
    )
    return 0 if done.returncode == 10 else 1


# --- live


def show_hang() -> int:
    folder = Path(tempfile.mkdtemp(prefix="diag-demo-"))
    assets.make(assets.default_folder())
    log = folder / "job.log"
    _say(
        "diag run -- megatron rlhf --rlhf_type dpo ...   (ms-swift's own, two ranks, a tiny Qwen3-MoE; the first batch of "
        f"rank 1 will never come)\nall that it prints: {log}"
    )
    with log.open("wb") as out, log.open("rb") as read:
        run = subprocess.Popen(
            _command(folder),
            env={**os.environ, "DIAG_FAULT_DIR": str(folder), "COLUMNS": str(_width())},
            stdout=out,
            stderr=out,
        )
        try:
            screen = Screen(read)
            if not screen.follow(run, _is_told, _START_SECONDS + _FIND_SECONDS):
                _say(f"no hang was found: this is not what the demo should show; see {log}")
                return 1
            _say("now the data source answers: the job goes on and finishes")
            release(folder)
            screen.follow(run, None, _END_SECONDS)
        finally:
            if run.poll() is None:
                run.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    run.wait(_STOP_SECONDS)  # nothing of it outlives the demo
    if run.returncode != 0:
        _say(
            f"the job ended with exit code {run.returncode}: this is not what the demo should show; see {log}"
        )
        return 1
    run_dir = next(iter((folder / "runs").glob("*/run.json"))).parent
    _say(
        f"named {format_seconds(_waited(run_dir))} after the last progress; the job then ran to its end, exit code 0"
    )
    _say_next(
        [
            f"diag replay {run_dir} --serve   # the page of this run, until Ctrl-C",
            f"diag replay {run_dir}   # the same in the terminal",
            "diag explain hang/data_loading   # what it means, what to do, known false alarms",
        ],
        *(f"make demo CASE={name}" for name in CASES),
    )
    return 0


def _command(folder: Path) -> list[str]:
    colour = "always" if wanted(1) else "never"
    line = [
        "run",
        "--port",
        "0",
        "--run-root",
        str(folder / "runs"),
        "--no-auto-evidence",
        "--color",
        colour,
        "--",
    ]
    job = [sys.executable, "-m", "diag_job.megatron", "--nproc", "2", "--iters", "6"]
    job += ["--output-dir", str(folder / "out"), "--fault", "data-hang:rank=1,step=0"]
    return [*_diag(), *line, *job]


class Screen:
    """The landmarks of a log that grows, with the time since the beginning before the job's own."""

    def __init__(self, log: IO[bytes]) -> None:
        self._log = log
        self._began = time.monotonic()
        self._torn = b""

    def follow(self, run: subprocess.Popen[bytes], until: re.Pattern[str] | None, seconds: float) -> bool:
        """Until a line matches and those of diag behind it are there, or without `until` until the run ends. False where
        neither came in time."""
        end, matched = time.monotonic() + seconds, False
        while time.monotonic() < end:
            over = run.poll() is not None
            lines = [*self._lines()]
            for line in lines:
                self._show(line)
                matched = matched or bool(until and until.search(line))
            if over or (matched and not lines):
                return matched or until is None
            time.sleep(_READ_SECONDS)
        return False

    def _lines(self) -> Iterator[str]:
        *whole, self._torn = (self._torn + self._log.read()).split(b"\n")
        for raw in whole:
            yield raw.decode(errors="replace").rpartition("\r")[2]

    def _show(self, line: str) -> None:
        landmark = _LANDMARKS.match(line)
        if landmark is None:
            return
        if landmark[2]:  # a line of 400 characters
            line = f"... 'iteration': '{landmark[2]}/{landmark[2]}' ..."
        if "diag|" not in line:
            line = f"{time.monotonic() - self._began:4.0f} s  {line.strip()}"
            line = line if len(line) <= _width() else f"{line[: _width() - 4]} ..."
        print(line, flush=True)


_is_told = re.compile(r"diag\| +(\x1b\[\d+m)*do: ")


def _waited(run_dir: Path) -> float:
    """Seconds from the last progress to the hang's first line."""
    changes = map(json.loads, (run_dir / "findings.jsonl").read_text().splitlines())
    hang = next(one for one in changes if one["finding"]["id"] == "hang" and one["change"] == "opened")
    return float(hang["opened_at"]) - float(hang["finding"]["since"])


# --- on the screen


def _diag() -> list[str]:
    return [sys.executable, "-m", "diag"]


def _width() -> int:
    return min(_WIDEST, shutil.get_terminal_size((100, 24)).columns)


def _say(text: str) -> None:
    print(f"\n=== {text}\n", flush=True)


def _say_next(commands: tuple[str, ...] | list[str], *others: str) -> None:
    """As they can be typed here: the `diag` of this environment, where the shell finds none."""
    program = _shell_diag()
    _say("what next")
    for command in (*(f"{program}{command.removeprefix('diag')}" for command in commands), *others):
        print(f"  {command}")


def _shell_diag() -> str:
    """`make` has put this environment before PATH: what the person's shell finds is told by the rest of it."""
    beside = Path(sys.executable).parent
    rest = os.pathsep.join(one for one in os.get_exec_path() if Path(one) != beside)
    if shutil.which("diag", path=rest):
        return "diag"
    program = beside / "diag"
    return shlex.quote(os.path.relpath(program) if program.is_relative_to(Path.cwd()) else str(program))


if __name__ == "__main__":
    sys.exit(main())
