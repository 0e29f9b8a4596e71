"""Whether diag will be able to read stacks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from diag.preflight.launch_facts import LaunchFacts
from diag.preflight.line import Line, line
from diag.sources.stacks.pyspy import PySpy
from diag.sources.stacks.remote_stack import RemoteStacks


def check_stacks(facts: LaunchFacts) -> Iterator[Line]:
    """Reads the stack of a process that is to this one what a rank is to a sidecar: a child of
    another process."""
    code = "import sys; sys.stdout.write('up'); sys.stdout.flush(); sys.stdin.read()"
    child = subprocess.Popen(
        [sys.executable, "-I", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdin is not None and child.stdout is not None
    try:
        child.stdout.read(2)
        own, blind = RemoteStacks().dump(child.pid, 5.0), PySpy().can_read(child.pid, 5.0)
        if "failed" not in own:
            also = (
                ""
                if blind is None
                else f"; {blind.reason}: other Pythons and `diag dump --native` need py-spy"
            )
            remedy = "" if blind is None else blind.remedy
            yield line("machine.stacks-from-memory", yama=_yama(), also=also, remedy=remedy)
        elif blind is None:
            yield line("machine.stacks-by-py-spy", yama=_yama())
        else:
            yield line("machine.stacks-unreadable", blind=blind, yama=_yama())
    finally:
        child.kill()
        child.communicate()


def _yama() -> str:
    try:
        scope = Path("/proc/sys/kernel/yama/ptrace_scope").read_text().strip()
    except OSError:
        return ""
    return f" (Yama ptrace_scope {scope})" if scope != "0" else ""
