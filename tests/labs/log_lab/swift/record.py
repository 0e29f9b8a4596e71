"""Run a case, keep all that it printed, and take the machine out of it."""

from __future__ import annotations

import gzip
import os
import pty
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from .act import Run
from .case import Case

__all__ = ["anonymous", "record", "write_log"]

REPOSITORY = Path(__file__).parents[4]
_SCRIPTS = Path(__file__).with_name("scripts")
_GZIP_ABOVE = 100_000


def record(case: Case, python: Path, scratch: Path, version: str) -> tuple[str, str, int | None]:
    """(what was printed, the command as one line, its exit code; None: it had to be ended)."""
    work, assets = scratch / version / case.name, scratch / "assets"
    shutil.rmtree(work, ignore_errors=True)
    (work / "data").mkdir(parents=True)
    for file in _SCRIPTS.glob("*.py"):
        shutil.copy(file, work)
    names = {"work": str(work), "assets": str(assets), "bin": str(python.parent), "repo": str(REPOSITORY)}
    if case.prepare is not None:
        case.prepare(work, assets)
    command = [_filled(word, names) for word in case.command]
    if command[0].endswith((".py", "/swift", "/megatron", "/torchrun", "/accelerate", "/deepspeed")):
        command = [str(python), *command]  # the script's first line may name another environment
    shown = {name: _filled(value, names) for name, value in case.environment.items()}
    environment = {**_clean(os.environ), **shown, "PATH": f"{python.parent}:{os.environ['PATH']}"}
    wrapped = [_filled(word, names) for word in case.wrap] + command
    log = work / "job.log"
    code = _run(case, wrapped, environment, log)
    line = " ".join([*(f"{name}={shlex.quote(value)}" for name, value in shown.items()), shlex.join(wrapped)])
    text = log.read_bytes().decode(errors="replace")
    return anonymous(text, python, scratch, work), anonymous(line, python, scratch, work), code


def _filled(word: str, names: Mapping[str, str]) -> str:
    for name, value in names.items():
        word = word.replace("{" + name + "}", value)
    return word


def _clean(environment: Mapping[str, str]) -> dict[str, str]:
    dropped = ("PIP_", "PYTEST_", "CLAUDE", "http", "HTTP", "no_proxy", "NO_PROXY", "PYTHON", "VIRTUAL_ENV")
    return {name: value for name, value in environment.items() if not name.startswith(dropped)}


def _run(case: Case, command: list[str], environment: Mapping[str, str], log: Path) -> int | None:
    deadline = time.monotonic() + case.seconds
    with log.open("wb") as out:
        if case.terminal:
            main, side = pty.openpty()
            process = subprocess.Popen(
                command,
                stdout=side,
                stderr=side,
                stdin=side,
                env=environment,
                cwd=log.parent,
                start_new_session=True,
            )
            os.close(side)
            reader = threading.Thread(target=_copy, args=(main, log), daemon=True)
            reader.start()
        else:
            process = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=log.parent,
                start_new_session=True,
            )
            reader = None
    root = psutil.Process(process.pid)
    if case.act is not None:
        case.act(Run(root, log, deadline))
    code: int | None = None
    try:
        code = process.wait(max(1.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        _end(root)
        process.wait()
    if reader is not None:
        reader.join(5)
    return code


def _copy(descriptor: int, log: Path) -> None:
    with log.open("ab", buffering=0) as out:
        while True:
            try:
                data = os.read(descriptor, 65536)
            except OSError:  # EIO: the last process closed its side
                return
            if not data:
                return
            out.write(data)


def _end(root: psutil.Process) -> None:
    """End what this case started, the ranks' own sessions included."""
    everything = [root, *root.children(recursive=True)]
    root.send_signal(signal.SIGTERM)
    _, alive = psutil.wait_procs(everything, 15)
    for process in alive:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            pass


def anonymous(text: str, python: Path, scratch: Path, work: Path) -> str:
    """The same text with this machine's paths and name replaced."""
    environment = python.parents[1]
    base = Path(sys.prefix)
    paths = {
        str(work): "/workspace/job",
        str(scratch / "assets"): "/workspace/models",
        str(scratch): "/workspace",
        str(environment): "/opt/venv",
        str(base): "/opt/venv",
        str(REPOSITORY): "/workspace/diag",
        str(Path(sys.base_prefix)): "/opt/python",
        str(Path.home()): "/workspace/home",
    }
    for path, name in sorted(paths.items(), key=lambda item: -len(item[0])):
        text = text.replace(path, name)
    host = re.escape(socket.gethostname())
    # host      : NAME        [NAME]:29500        NAME_1234_0        NAME:1234
    text = re.sub(rf"(host +: ){host}\b", r"\1node-0", text)
    text = re.sub(rf", node {host},", ", node node-0,", text)  # Megatron's check for nan
    text = re.sub(rf"\[{host}\]", "[node-0]", text)
    return re.sub(rf"(?<![\w./-]){host}(?=[_:]\d|\.(local|internal))", "node-0", text)


def write_log(folder: Path, name: str, text: str) -> str:
    """The file's name: compressed when it is large."""
    data = text.encode()
    for old in (folder / f"{name}.log", folder / f"{name}.log.gz"):
        old.unlink(missing_ok=True)
    if len(data) > _GZIP_ABOVE:
        (folder / f"{name}.log.gz").write_bytes(gzip.compress(data, mtime=0))
        return f"{name}.log.gz"
    (folder / f"{name}.log").write_bytes(data)
    return f"{name}.log"
