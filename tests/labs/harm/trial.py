"""One trial: the job under `diag run`, one fault at a seeded moment, and the judgement. Run it by `apart` or
`once`."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import pty
import random
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from tests.labs.harm.fault import Fault, Undo, may_mount
from tests.labs.harm.judge import Outcome, judge

if TYPE_CHECKING:
    from tests.netlab import Node

__all__ = ["JOB", "REPOSITORY", "Running", "apart", "run_trial"]

REPOSITORY = Path(__file__).resolve().parents[3]
JOB = Path(__file__).parent / "job.py"
MOST_SECONDS = 120.0
_SHORT, _LONG = 4.0, 6.0  # seconds that a job takes
_EARLY = 0.2  # of the trials strike while diag is still loading beside a job that has begun
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
# /dev/shm is the trial's own where root may mount; exec keeps the pid.
_OWN_SHM = 'mount --bind "$0" /dev/shm && exec "$@"'


@dataclass(slots=True)
class Place:
    """One `diag run`, on a machine of its own where there are several."""

    process: subprocess.Popen[Any]
    root: Path
    results: Path
    terminal: Path
    found: psutil.Process | None = None

    def run_dir(self) -> Path:
        """Raises FileNotFoundError while there is none."""
        found = sorted(self.root.glob("*/run.json"))
        if not found:
            raise FileNotFoundError(self.root)
        return found[0].parent

    @property
    def told(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted(self.results.glob("rank-*"))]


class Running:
    """What a fault may touch."""

    def __init__(self, folder: Path, ranks: int, job_words: Sequence[str]) -> None:
        self.folder = folder
        self.ranks = ranks
        self.job_words = tuple(job_words)
        self.cwd = REPOSITORY
        self.places: list[Place] = []
        self.nodes: list[Node] = []
        self.broken: set[int] = set()  # nodes whose hub the fault itself ended
        self.own: set[int] = set()  # children of ours that are no part of the trial
        self.undo: list[Undo] = []
        self.numbers: dict[str, float] = {}
        self.close_reader: Callable[[], None] = lambda: None
        self._kept: list[socket.socket] = []

    @property
    def process(self) -> subprocess.Popen[Any]:
        return self.places[0].process

    @property
    def root(self) -> Path:
        return self.places[0].root

    @property
    def results(self) -> Path:
        return self.places[0].results

    @property
    def terminal(self) -> Path:
        return self.places[0].terminal

    @property
    def told(self) -> list[dict[str, Any]]:
        return self.places[0].told

    def run_dir(self) -> Path:
        return self.places[0].run_dir()

    def carrier(self, node: int = 0) -> psutil.Process:
        """`diag run` itself, below what put it into a namespace."""
        place = self.places[node]
        if place.found is None:
            place.found = self.until(lambda: _carrier_below(place.process.pid))
        return place.found

    def hub(self, node: int = 0) -> psutil.Process:
        """The hub's process, beside CMD."""
        found: psutil.Process = self.until(lambda: _hub_below(self.carrier(node)))
        return found

    def job_processes(self) -> set[int]:
        """CMD and all below it: one of them may be in the midst of exec, and show no command line."""
        for process in self.carrier().children():
            with contextlib.suppress(psutil.Error):
                if str(JOB) in process.cmdline():
                    return {process.pid, *(child.pid for child in process.children(recursive=True))}
        return set()

    def address(self) -> tuple[str, int]:
        url = self.until(lambda: json.loads((self.run_dir() / "run.json").read_text()).get("url"))
        return "127.0.0.1", int(str(url).rpartition(":")[2])

    def ask(self, path: str, *, wait: float) -> bytes:
        """What comes within so many seconds."""
        with socket.create_connection(self.address(), timeout=wait) as asker:
            asker.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
            answer = b""
            with contextlib.suppress(TimeoutError):
                while piece := asker.recv(1 << 16):
                    answer += piece
            return answer

    def keep(self, opened: socket.socket) -> None:
        self._kept.append(opened)

    def pause(self, seconds: float) -> None:
        """Let the fault last; not longer than diag run lives."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)

    def until_job_ended(self) -> None:
        for place in self.places:
            self.until((place.results / "ended").exists)

    def until_sidecars(self, seconds: float = 30.0) -> None:
        from tests.labs.harm.fault import sidecars

        self.until(lambda: len(sidecars(self)) >= self.ranks, seconds)

    def close(self) -> None:
        for each in self._kept:
            each.close()

    def until(self, condition: Callable[[], Any], seconds: float = 30.0) -> Any:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with contextlib.suppress(OSError, ValueError, psutil.Error):
                value = condition()
                if value:
                    return value
            if all(place.process.poll() is not None for place in self.places):
                break
            time.sleep(0.02)
        raise TimeoutError("what the fault waits for did not come")


def _hub_below(carrier: psutil.Process) -> psutil.Process | None:
    return next((child for child in carrier.children() if "diag.agent.hub_process" in child.cmdline()), None)


def _carrier_below(pid: int) -> psutil.Process | None:
    top = psutil.Process(pid)
    for process in (top, *top.children(recursive=True)):
        words = process.cmdline()
        if (
            "diag" in words
            and "run" in words
            and Path(words[0]).name not in ("unshare", "sh", "nsenter", "setpriv")
        ):
            return process
    return None


def run_trial(
    fault: Fault, seed: int, folder: Path, *, diag: Sequence[str] = (), most: float = _LONG
) -> Outcome:
    """In a folder of its own, which the caller removes, and a process of its own: it adopts what the trial
    leaves running. `diag`: the words of a stand-in in place of `python -m diag`."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    chance = random.Random(f"{fault.name} {seed}")
    ranks, seconds = chance.choice([1, 2, 3]), chance.uniform(min(_SHORT, most), most) + fault.seconds
    ranks = fault.ranks or ranks
    code = chance.choice([0, 0, 3, -signal.SIGTERM])
    words = [str(ranks), f"{seconds:.2f}", str(code), *(word.format(folder=folder) for word in fault.job)]
    run = Running(folder, ranks, words)
    for name in ("tmp", "home", "shm", "results", "runs", "out"):
        (folder / name).mkdir(parents=True)
    env = {
        **os.environ,
        "DIAG_STACK_SECONDS": "0.5",
        "TMPDIR": str(folder / "tmp"),
        "HOME": str(folder / "home"),
        "PYTHONDONTWRITEBYTECODE": "1",
        **(fault.env or {}),
    }
    env.pop("XDG_STATE_HOME", None)
    outcome = Outcome(fault.name, seed, "")
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        stack.callback(_undo, run)
        if fault.before is not None:
            run.undo.append(fault.before(folder / "runs", env))
        run.cwd = Path(env.pop("HARM_CWD", str(REPOSITORY)))
        diag = diag or (env.pop("HARM_PYTHON", sys.executable), "-m", "diag")
        try:
            if fault.nodes > 1:
                stack.enter_context(_several(run, fault, [*diag], env))
            else:
                _one(run, fault, [*diag], env)
            early = chance.random() < _EARLY
            run.until(lambda: all((place.results / "began").exists() for place in run.places))
            if not early:
                run.until(lambda: all(place.run_dir() for place in run.places))
            left = seconds - (time.time() - (run.results / "began").stat().st_mtime)
            run.pause(chance.uniform(0.0, 0.3 if early else max(0.1, left - 1.0)))
            try:
                outcome.did = fault.strike(run, chance)
            except (TimeoutError, psutil.Error, OSError, IndexError, subprocess.SubprocessError) as error:
                outcome.did = f"too late: {type(error).__name__}"
            for place in run.places:
                place.process.wait(MOST_SECONDS)
            _until_all_ended(run)
            run.cwd = REPOSITORY
            outcome.seconds = round(time.monotonic() - began, 2)
            judge(outcome, fault, run, code)
        except (subprocess.TimeoutExpired, TimeoutError) as error:
            outcome.wrong.append(f"did not end: {error}"[:300])
        finally:
            run.close()
            _end(run)
    return outcome


def _until_all_ended(run: Running) -> None:
    """The job may outlive a diag that was killed."""
    end = time.monotonic() + 30.0
    while not all((place.results / "ended").exists() for place in run.places):
        if time.monotonic() > end:
            raise TimeoutError("the job did not come to its end")
        time.sleep(0.02)


def _one(run: Running, fault: Fault, diag: list[str], env: dict[str, str]) -> None:
    root, results, terminal = run.folder / "runs", run.folder / "results", run.folder / "out/terminal"
    words = [
        *diag,
        "run",
        "--port",
        "0",
        "--run-root",
        str(root),
        *fault.options,
        "--",
        sys.executable,
        str(JOB),
        str(results),
        *run.job_words,
    ]
    if fault.prefix is not None:
        words = [*fault.prefix(run.folder), *words]
    if may_mount():
        words = [
            "unshare",
            "--mount",
            "--propagation",
            "slave",
            "--",
            "sh",
            "-c",
            _OWN_SHM,
            str(run.folder / "shm"),
            *words,
        ]
    run.places.append(Place(_start(run, fault, words, env, terminal), root, results, terminal))


def _start(
    run: Running, fault: Fault, words: list[str], env: dict[str, str], terminal: Path
) -> subprocess.Popen[bytes]:
    def start(out: int, **more: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            words, stdout=out, stderr=subprocess.STDOUT, env=env, cwd=run.cwd, start_new_session=True, **more
        )

    if fault.output == "file":
        with open(terminal, "wb") as file:
            return start(file.fileno(), stdin=subprocess.DEVNULL)
    if fault.output == "pipe":
        ours, theirs = os.pipe()
        process = start(theirs, stdin=subprocess.DEVNULL)
    else:
        ours, theirs = pty.openpty()
        flags = termios.tcgetattr(theirs)
        flags[1] &= ~termios.OPOST
        termios.tcsetattr(theirs, termios.TCSANOW, flags)
        process = start(theirs, stdin=theirs, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
    os.close(theirs)
    over, closed = threading.Event(), threading.Event()

    def copy() -> None:
        with open(terminal, "wb", buffering=0) as file:
            os.set_blocking(ours, False)
            while not over.is_set():
                try:
                    piece = os.read(ours, 1 << 16)
                except BlockingIOError:
                    over.wait(0.01)
                    continue
                except OSError:  # EIO: nobody has the terminal open any more
                    break
                if not piece:
                    break
                file.write(piece)
        os.close(ours)
        closed.set()

    def close() -> None:
        over.set()
        closed.wait(10)

    threading.Thread(target=copy, daemon=True).start()
    run.close_reader = close
    return process


@contextlib.contextmanager
def _several(run: Running, fault: Fault, diag: list[str], env: dict[str, str]) -> Iterator[None]:
    """`diag run` on each machine of a lab, one job over all of them."""
    from tests.netlab import make_lab

    names = ("DIAG_STACK_SECONDS", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
    with make_lab(fault.nodes, run.folder / "lab") as lab:
        run.nodes = list(lab.nodes)
        run.own = {child.pid for child in psutil.Process().children()}
        for node in run.nodes:
            root, results = run.folder / f"runs-{node.rank}", run.folder / f"results-{node.rank}"
            terminal = run.folder / f"out/terminal-{node.rank}"
            results.mkdir()
            words = [
                *diag,
                "run",
                "--run-root",
                str(root),
                *fault.options,
                "--",
                sys.executable,
                str(JOB),
                str(results),
                *run.job_words,
                "node",
                str(node.rank),
                str(fault.nodes),
            ]
            more = {
                "DIAG_TOKEN": "of-the-lab",
                "DIAG_NODES": ",".join(each.address for each in run.nodes),
                "MASTER_ADDR": run.nodes[0].address,
                "MASTER_PORT": "29500",
                "NODE_RANK": str(node.rank),
                "NNODES": str(fault.nodes),
                **{name: env[name] for name in names if name in env},
            }
            with open(terminal, "wb") as out:
                process = node.start(
                    *words,
                    env=more,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            run.places.append(Place(process, root, results, terminal))
        yield


def _undo(run: Running) -> None:
    for undo in reversed(run.undo):
        undo()


def _end(run: Running) -> None:
    """Nothing of a trial outlives it: all that it started is below us."""
    for place in run.places:
        with contextlib.suppress(ProcessLookupError):
            place.process.kill()
    for _ in range(100):
        found = [
            process
            for process in psutil.Process().children(recursive=True)
            if process.pid not in run.own and not any(_is_below(process, own) for own in run.own)
        ]
        if not found:
            break
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.02)


def _is_below(process: psutil.Process, pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return any(parent.pid == pid for parent in process.parents())
    return False


def apart(name: str, seed: int, folder: Path, *, diag: Sequence[str] = (), most: float = _LONG) -> Outcome:
    """`run_trial` of the fault of this name, in a process of its own."""
    words = [sys.executable, "-m", "tests.labs.harm.once", name, str(seed), str(folder), f"{most}", *diag]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, cwd=REPOSITORY, text=True
    )
    try:
        out, err = process.communicate(timeout=6 * MOST_SECONDS)
        return Outcome(**json.loads(out.splitlines()[-1]))
    except (subprocess.TimeoutExpired, ValueError, IndexError, TypeError) as error:
        process.kill()
        out, err = process.communicate()
        return Outcome(name, seed, "", [f"the trial itself failed: {type(error).__name__}: {err[-600:]}"])
