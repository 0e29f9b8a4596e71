"""What is said where stacks may not be read: each mode of Yama, another user, a seccomp filter; and that here
they can."""

from __future__ import annotations

import pytest

from diag.preflight.launch_facts import launch_facts
from diag.preflight.machine import check_stacks
from diag.sources.stacks.pyspy import explain

MINE = {"uid": 1000, "our_uid": 1000}


@pytest.mark.parametrize(
    ("access", "words"),
    [
        ({**MINE, "ptrace_scope": 1}, "kernel.yama.ptrace_scope is 1: start the job with `diag run`"),
        ({**MINE, "ptrace_scope": 2}, "kernel.yama.ptrace_scope is 2: give diag the capability SYS_PTRACE"),
        ({**MINE, "ptrace_scope": 3}, "which cannot be lifted before the next boot"),
        ({**MINE, "ptrace_scope": 0, "seccomp": True}, "--security-opt seccomp=unconfined"),
        ({**MINE, "ptrace_scope": 0}, "docker run --cap-add SYS_PTRACE"),
        ({**MINE, "dumpable": False}, "PR_SET_DUMPABLE"),
        ({"uid": 0, "our_uid": 1000}, "run diag as that user"),
    ],
)
def test_each_reason_has_its_own_remedy(access: dict[str, object], words: str) -> None:
    assert words in explain({"pid": 7, "failed": "denied", "access": access})[1]


def test_stacks_of_this_users_processes_are_read() -> None:
    (line,) = check_stacks(launch_facts((), {}))

    assert (line.what, line.status) == ("stacks", "ok")
