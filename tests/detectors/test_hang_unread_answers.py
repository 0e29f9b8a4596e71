"""A rank that has answered, and whose answer the one that asked does not read before its next call, is told so; while that one may
still read it nothing is said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diag.model.observations.waits import Party, ProcessWaits, ThreadWait, Wait, WaitsRead
from tests.detectors.test_hang import started
from tests.facts import ALL_REDUCE, TRAIN, pid_of, stack, tree

SERVES = (*TRAIN, "serve /app/actor.py:37", "recv /usr/lib/python3.11/multiprocessing/connection.py:395")
ELSEWHERE = (*TRAIN, "load /app/data.py:9")
# As recorded between two ranks on a UNIX socket (b14 of the eleventh round of first sight).
ASKED = Wait(
    "unix_receive", "read", 19, peer_unread_bytes=89, others=(Party(pid_of(0), 0, "python -u main.py", 23),)
)


def told(wait: Wait, asker: tuple[str, ...] = ALL_REDUCE) -> str:
    story = started()
    main = ThreadWait(pid_of(1), "MainThread", "S", "", wait, cpu_ratio=0.0, same=True)
    for _ in range(20):
        story.tell(tree(0, story.now), stack(0, story.now, asker))
        story.tell(tree(1, story.now), stack(1, story.now, SERVES))
        story.tell(WaitsRead(1, pid_of(1), 0.5, (ProcessWaits(pid_of(1), 1, "python", (main,)),)))
        story.wait(2.0)
    found = story.the("held-up")
    return f"{found.summary} {found.advice}"


def test_who_has_gone_on_without_reading_the_answer_is_named() -> None:
    text = told(ASKED)

    assert f"rank 0 (pid {pid_of(0)}) (fd 19; 89 B sent there lie unread)" in text
    assert "Rank 0 has gone on without reading what rank 1 has sent it, which may be the answer" in text


@pytest.mark.parametrize(
    ("wait", "asker"),
    [
        (replace(ASKED, peer_unread_bytes=0), ALL_REDUCE),
        (replace(ASKED, others=(Party(4711, 0, "python server.py"),)), ALL_REDUCE),  # no rank
        (replace(ASKED, others=()), ALL_REDUCE),
        (ASKED, ELSEWHERE),  # it may come to it
    ],
)
def test_where_nothing_is_unread_or_that_rank_may_read_it_nothing_is_said(
    wait: Wait, asker: tuple[str, ...]
) -> None:
    assert "gone on without reading" not in told(wait, asker)
