"""Lines of facts as other machines show them: what this one has not (arm64, a mount that does not answer, another
kernel)."""

from __future__ import annotations

import pytest

from diag.model import Record
from diag.model.observations import Unparsed
from diag.model.observations.waits import WaitsRead
from diag.sources.waits import SOURCE, parse
from diag.sources.waits.decode import Blocked, Call, blocked_in, parse_call


@pytest.mark.parametrize(
    ("state", "wchan", "call", "kind"),
    [
        ("D", "__refrigerator", "202 0x7f00 0x189 0x0 0x0 0x0 0x0 0x1 0x1", "frozen"),  # Linux 6.18, freezer v1
        ("S", "get_signal", "202 0x7f00 0x80 0x2 0x0 0x0 0x0 0x1 0x1", "frozen"),  # 6.1 and 6.18, freezer v2
        ("D", "kernel_clone", "58 0x0 0x0 0x0 0x0 0x0 0x0 0x1 0x1", "vfork"),  # 6.1 and 6.18
        ("D", "mem_cgroup_handle_over_high", "-1 0x7ffd 0x7f00", "memory"),  # 6.1
        ("D", "folio_wait_bit_common", "0 0x5 0x7f00 0x1000 0x0 0x0 0x0 0x1 0x1", "read"),  # 6.18, FUSE
        ("D", "folio_wait_bit_common", "-1 0x7ffd 0x7f00", "file_io"),  # 6.18: a page fault in a mapped file
        ("S", "handle_userfault", "-1 0x7ffd 0x7f00", "page_fault"),  # 6.18
        ("S", "poll_schedule_timeout.constprop.0", "219 0x7f00 0x1 0x1388 0x0 0x0 0x0 0x1 0x1", "poll"),  # after SIGCONT
        ("S", "rt_mutex_schedule", "202 0x7f00 0x86 0x0 0x0 0x0 0x0 0x1 0x1", "mutex"),  # 6.18
        ("S", "pipe_read", "0 0x5 0x7f00 0x1 0x0 0x0 0x0 0x1 0x1", "pipe_read"),  # 6.1, a FIFO or a pipe
        ("S", "anon_pipe_write", "1 0x5 0x7f00 0x1 0x0 0x0 0x0 0x1 0x1", "pipe_write"),  # 6.18
        ("S", "sk_stream_wait_close", "3 0x5 0x0 0x0 0x0 0x0 0x0 0x1 0x1", "other"),  # close() of a socket that lingers
        ("D", "folio_wait_bit_common", "74 0x5 0x0 0x0 0x0 0x0 0x0 0x1 0x1", "file_io"),  # 6.18, fsync
        ("S", "request_wait_answer", "332 0xffffff9c 0x7f00 0x0 0x0 0x0 0x0 0x1 0x1", "file_io"),  # 6.18, FUSE
        ("S", "do_wait", "", "child"),  # only the wait channel may be read
        ("S", None, "", "unreadable"),
        ("Z", "0", "-1 0x0 0x0", "ended"),
        ("R", "0", "running", "running"),
    ],
)  # fmt: skip
def test_facts_of_other_machines(state: str, wchan: str | None, call: str, kind: str) -> None:
    assert blocked_in(state, 0, wchan, parse_call(call, "x86_64")).kind == kind


@pytest.mark.parametrize(
    ("wchan", "line", "expected"),
    [
        ("futex_wait_queue", "98 0x7f00 0x80 0x2 0x0 0x0 0x0 0x1 0x1", Blocked("mutex", address=0x7F00)),
        ("futex_wait_queue", "98 0x7f00 0x109 0x1f3a 0x0 0x0 0xffffffff 0x1 0x1", Blocked("join", address=0x7F00, tid=0x1F3A)),
        ("futex_wait_queue", "98 0x7f00 0x189 0x0 0x0 0x0 0xffffffff 0x1 0x1", Blocked("futex", address=0x7F00)),
        ("futex_wait_queue", "98 0x7f00 0x0 0x5 0x0 0x0 0x0 0x1 0x1", Blocked("futex", address=0x7F00, shared=True)),
        ("futex_wait_queue", "98 0x7f00 0x89 0x0 0x7f80 0x0 0xffffffff 0x1 0x1", Blocked("futex", address=0x7F00, timed=True)),
        ("do_wait", "260 0x410 0x7f00 0x0 0x0 0x0 0x0 0x1 0x1", Blocked("child", tid=0x410)),
        ("hrtimer_nanosleep", "115 0x1 0x1 0x7f00 0x0 0x0 0x0 0x1 0x1", Blocked("sleep", address=0x7F00, absolute=True)),
        ("poll_schedule_timeout.constprop.0", "73 0x7f00 0x2 0x7f80 0x0 0x8 0x0 0x1 0x1",
         Blocked("poll", address=0x7F00, count=2, timed=True)),
        ("do_epoll_wait", "22 0x4 0x7f00 0x100 0xffffffff 0x0 0x8 0x1 0x1", Blocked("poll", fd=4)),
        ("wait_woken", "207 0x5 0x7f00 0x1 0x0 0x0 0x0 0x1 0x1", Blocked("receive", fd=5)),
        ("wait_woken", "203 0x5 0x7f00 0x10 0x0 0x0 0x0 0x1 0x1", Blocked("connect", fd=5)),
        ("pipe_read", "63 0x5 0x7f00 0x1 0x0 0x0 0x0 0x1 0x1", Blocked("pipe_read", fd=5)),
        ("wait_for_partner", "56 0xffffff9c 0x7f00 0x80000 0x0 0x0 0x0 0x1 0x1", Blocked("fifo_open", fd=-100, address=0x7F00)),
        ("fcntl_setlk", "25 0x5 0x7 0x7f00 0x0 0x0 0x0 0x1 0x1", Blocked("file_lock", fd=5)),
        ("locks_lock_inode_wait", "32 0x5 0x2 0x0 0x0 0x0 0x0 0x1 0x1", Blocked("file_lock", fd=5)),
    ],
)  # fmt: skip
def test_arm64_numbers_are_its_own(wchan: str, line: str, expected: Blocked) -> None:
    """As include/uapi/asm-generic/unistd.h numbers them; its calls of x86-64's numbers would be others."""
    assert blocked_in("S", 0, wchan, parse_call(line, "aarch64")) == expected


def test_arguments_have_32_bits_and_a_sign() -> None:
    assert blocked_in("S", 0, "do_wait", Call("wait4", (0xFFFFFFFF, 0, 0, 0, 0, 0))) == Blocked(
        "child", tid=0
    )


@pytest.mark.parametrize("text", ["", "no number", "1 2 x"])
def test_line_that_is_none_is_no_call(text: str) -> None:
    assert parse_call(text) is None


@pytest.mark.parametrize(
    "payload", [{}, {"pid": 1}, {"pid": 1, "processes": []}, {"pid": 1, "processes": {"x": {}}}]
)
def test_torn_record_raises_nothing(payload: dict[str, object]) -> None:
    facts = list(parse(Record(SOURCE, payload, 0, "node", 0.0)))

    assert facts and all(isinstance(fact, (Unparsed, WaitsRead)) for fact in facts)
