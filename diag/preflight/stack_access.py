"""Whether diag will be able to look at stacks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from diag.preflight.line import Line
from diag.sources.stacks.pyspy import PySpy
from diag.sources.stacks.remote_stack import RemoteStacks


def check_stacks(command: Sequence[str]) -> Iterator[Line]:
    """Reads the stack of a process that stands to us as a rank stands to a sidecar: a child of another
    process."""
    code = "import sys; sys.stdout.write('up'); sys.stdout.flush(); sys.stdin.read()"
    child = subprocess.Popen(
        [sys.executable, "-I", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdin is not None and child.stdout is not None
    try:
        child.stdout.read(2)
        own, blind = RemoteStacks().dump(child.pid, 5.0), PySpy().can_read(child.pid, 5.0)
        if "failed" not in own:
            beside = (
                ""
                if blind is None
                else f"; {blind.reason}: other Pythons and `diag dump --native` need py-spy"
            )
            said = f"diag reads Python processes of this user from their memory{_yama()}{beside}"
            yield Line("stacks", "ok", said, "" if blind is None else blind.remedy)
        elif blind is None:
            yield Line("stacks", "ok", "py-spy reads Python processes of this user" + _yama())
        else:
            yield Line(
                "stacks",
                "problem",
                f"{blind.reason}{_yama()}",
                f"{blind.remedy}; without it stacks come by signal from ranks started by `diag run`",
                "hang",
            )
    finally:
        child.kill()
        child.communicate()


def _yama() -> str:
    try:
        scope = Path("/proc/sys/kernel/yama/ptrace_scope").read_text().strip()
    except OSError:
        return ""
    return f" (Yama ptrace_scope {scope})" if scope != "0" else ""
