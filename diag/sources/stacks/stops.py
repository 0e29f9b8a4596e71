"""Where the script of a process stops others (SIGSTOP), by its text: the kernel does not keep who sent a signal."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from diag.launch.launchers.secrets import without_secrets
from diag.model import Payload
from diag.model.observations import Block, Statement
from diag.sources.host.job_files import Files
from diag.sources.stacks.statements import Line, end_of, heads_of, logical_lines, shown

_MOST_BYTES = 256 << 10
_MOST, _MOST_COMMAND = 4, 120
_BOOT_SECONDS = 2.0  # see `program`
_SHELLS = re.compile(r"(?:ba|da|z|k)?sh")
_PYTHON = re.compile(r"python[\d.]*")
# `os.kill(pid, signal.SIGSTOP)`, `proc.send_signal(SIGSTOP)`, psutil's `proc.suspend()`, `subprocess.run(["kill", "-STOP", pid])`
_IN_PYTHON = re.compile(
    r"\w\(.*\b(?:SIGSTOP|SIGTSTP)\b|\.suspend\(\)|\bkill\b.*-(?:s\W+)?(?:SIG)?(?:STOP|TSTP)\b"
)
_HANDLES = re.compile(r"\bsignal\.(?:signal|pthread_sigmask|sigwait|getsignal)\(")
_IN_SHELL = re.compile(
    r"(?:^|[\s;&|({`])(?:kill|pkill|killall|skill)\s+(?:.*\s)?-(?:s\s+)?(?:SIG)?(?:STOP|TSTP|19)\b"
)


def read(files: Files, argv: Sequence[str], cwd: str, started: float) -> Payload | None:
    """None where it runs no script of its own, or none that stops anything. `cwd`: of the process, and `started`: when it did
    (seconds since the epoch); text written later is not what it runs. Raises OSError."""
    path = script_of(argv)
    if not path:
        return None
    path = path if path.startswith("/") else posixpath.normpath(posixpath.join(cwd, path))
    fd = files.open_file(path)
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        if found.st_mtime > started + _BOOT_SECONDS or found.st_size > _MOST_BYTES:
            return None
        text = file.read(_MOST_BYTES).decode("utf-8", "replace")
    every = _of_shell if _SHELLS.fullmatch(posixpath.basename(argv[0])) else _of_python
    statements = [asdict(one) for one, _ in zip(every(path, text), range(_MOST), strict=False)]
    if not statements:
        return None
    command = " ".join(map(without_secrets, (posixpath.basename(argv[0]), *argv[1:])))
    return {
        "command": shown(command, _MOST_COMMAND),
        "files": {path: {"places": [], "statements": statements}},
    }


def script_of(argv: Sequence[str]) -> str:
    """The file that an interpreter runs; empty where it runs a module or what is on its command line.

    >>> script_of(["/usr/bin/python3", "-u", "guard.py", "run"]), script_of(["bash", "-c", "x"]), script_of(["sleep", "9"])
    ('guard.py', '', '')
    """
    name = posixpath.basename(argv[0]) if argv else ""
    if not (_SHELLS.fullmatch(name) or _PYTHON.fullmatch(name)):
        return ""
    for word in argv[1:]:
        if not word.startswith("-"):
            return word
        if word.startswith(("-c", "-m")):
            return ""
    return ""


def _of_python(path: str, text: str) -> Iterator[Statement]:
    lines = logical_lines(text)
    for at, one in enumerate(lines):
        if one.text[:1] in ("'", '"', "r") and not one.names:
            continue  # a text by itself
        if _IN_PYTHON.search(one.text) and not _HANDLES.search(one.text):
            yield Statement(
                "stops", path, one.first, "", shown(one.text), around=tuple(_conditions(lines, at)[:1])
            )


def _conditions(lines: Sequence[Line], at: int) -> list[Block]:
    """That lead there, the innermost first."""
    heads = (head for head in heads_of(lines, at) if lines[head].word in ("if", "elif", "while"))
    return [
        Block(one.first, lines[end_of(lines, head) - 1].last, one.word, shown(one.text))
        for head in heads
        for one in (lines[head],)
    ]


def _of_shell(path: str, text: str) -> Iterator[Statement]:
    for number, line in enumerate(text.splitlines(), 1):
        code = line.strip()
        if not code.startswith("#") and _IN_SHELL.search(code):
            yield Statement("stops", path, number, "", shown(code))
