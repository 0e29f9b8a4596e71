"""The command of `--on-finding`: started for each finding without a shell, with the finding as JSON on its stdin."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from typing import Any

from diag.text.units import format_seconds

SECONDS = 60.0


def words_of(setting: str) -> list[str]:
    """The words of the setting `on_finding`. Raises ValueError for a quote that is not closed."""
    return shlex.split(setting)


def problem(setting: str) -> str:
    """Why it cannot be run; empty where it can.

    >>> problem("cat 'x"), problem("/no/such/program --now"), problem("cat -")
    ('No closing quotation', '/no/such/program: not found, or not executable', '')
    """
    try:
        words = words_of(setting)
    except ValueError as error:
        return str(error)
    if not words:
        return "it is empty"
    return "" if shutil.which(words[0]) else f"{words[0]}: not found, or not executable"


def run(words: list[str], change: Mapping[str, Any], cwd: str, seconds: float = SECONDS) -> str:
    """Run it to its end, in the directory in which diag was started; empty, or how it failed. It, and what it started,
    is killed after `seconds`."""
    with tempfile.TemporaryFile() as given:  # no pipe: a command that reads nothing must not hold this up
        given.write(json.dumps(change).encode() + b"\n")
        given.seek(0)
        try:
            process = subprocess.Popen(
                words, stdin=given, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                cwd=cwd if os.path.isdir(cwd) else "/", start_new_session=True,  # noqa: PTH112
            )  # fmt: skip
        except OSError as error:
            return f"{words[0]}: {error.strerror}"
    try:
        _, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return f"{words[0]}: ended after {format_seconds(seconds)}"
    if process.returncode == 0:
        return ""
    last = errors.decode("utf-8", "replace").strip().rpartition("\n")[2]
    return f"{words[0]}: exit code {process.returncode}" + (f": {last}" if last else "")
