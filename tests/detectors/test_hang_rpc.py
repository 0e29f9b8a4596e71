"""Ranks of torch.distributed.rpc that serve each other from rpc.shutdown()."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diag.model.observations import ThreadStack
from diag.model.observations.waits import ProcessWaits, ThreadWait, Wait, WaitsRead
from tests.detectors.test_hang import started
from tests.facts import TRAIN, Story, frames, pid_of, stack, tree

SHUTDOWN = (
    *TRAIN,
    "run /app/main.py:23",
    "shutdown torch/distributed/rpc/api.py:382",
    "_wait_all_workers torch/distributed/rpc/api.py:320",
    "wait /usr/lib/python3.11/threading.py:629",
)
RESULT = (*TRAIN, "run /app/main.py:22")  # Future.wait is C++
FIT = (
    "_run_function torch/distributed/rpc/internal.py:209",
    "fit /app/trainer.py:31",
    "rpc_sync torch/distributed/rpc/api.py:842",
)
LOCK = Wait("condition", "futex")
CALLED = 88_000


def waits(tid: int, wait: Wait, cpu: float = 0.0, name: str = "python") -> ThreadWait:
    return ThreadWait(tid, name, "S", "", wait, cpu_ratio=cpu, same=wait.kind != "running")


CARRIES = waits(CALLED + 2, Wait("running"), 0.3, "TP_SHM_reactor")


def told(
    of_call: Wait = LOCK, of_main: Wait = LOCK, *, known: bool = True, seconds: int = 80, cpu: float = 0.0
) -> Story:
    """Rank 0 waits for a result of rank 1, a thread of which runs that call; its main thread is in rpc.shutdown()."""
    story = started()
    for _ in range(0, seconds, 2):
        story.tell(tree(0, story.now), stack(0, story.now, RESULT))
        call = ThreadStack(CALLED, "", frames(*FIT))
        story.tell(tree(1, story.now), stack(1, story.now, SHUTDOWN, call))
        if known:
            for rank, threads in (
                (0, (waits(pid_of(0), of_main),)),
                (1, (waits(pid_of(1), LOCK), waits(CALLED, of_call), waits(CALLED + 1, LOCK, cpu), CARRIES)),
            ):
                process = ProcessWaits(pid_of(rank), 1, "python main.py", threads)
                story.tell(WaitsRead(rank, pid_of(rank), 0.5, (process,)))
        story.wait(2.0)
    return story


def test_call_that_nobody_is_left_to_answer_blames_no_rank() -> None:
    held = told().hang()

    assert (held.id, held.cause, held.ranks, held.waiting_ranks) == (
        "held-up",
        "rpc_never_answered",
        (),
        (0, 1),
    )
    assert (
        "a thread of rank 1 waits in a call of another rank (RPC) in fit (/app/trainer.py:31), and no thread of any rank runs a "
        "call that would give an answer"
    ) in held.summary


def test_call_that_sleeps_is_named_and_not_who_serves_from_its_shutdown() -> None:
    sleep = Wait("sleep", "nanosleep", seconds=500.0, timed=True)
    assert told(sleep).findings() == []
    held = told(sleep, seconds=130).hang()

    assert (held.id, held.cause, held.ranks, held.waiting_ranks) == (
        "held-up",
        "rpc_call_goes_on",
        (1,),
        (0,),
    )
    assert "a thread of rank 1 runs a call of another rank (RPC) in fit" in held.summary


def test_rank_that_is_elsewhere_is_named_and_not_who_serves_from_its_shutdown() -> None:
    silent = Wait("tcp_receive", "recvfrom", 5, peer="10.0.0.5:443", silent_seconds=92.0)

    assert (told(of_main=silent).hang().ranks, told(of_main=silent).hang().cause) == ((0,), "peer_is_silent")


@pytest.mark.parametrize("what", [{"known": False}, {"cpu": 0.4}], ids=["not read", "a thread works"])
def test_ranks_of_which_something_may_still_come_are_given_their_time(what: dict[str, float]) -> None:
    assert told(**what).findings() == []  # type: ignore[arg-type]


def test_other_waits_for_a_lock_are_left_as_they_are() -> None:
    story = started()
    lines = tuple(line.replace("torch/distributed/rpc", "app/rpc") for line in SHUTDOWN)
    for _ in range(20):
        story.tell(
            tree(0, story.now), stack(0, story.now, RESULT), tree(1, story.now), stack(1, story.now, lines)
        )
        story.tell(replace(WaitsRead(1, pid_of(1), 0.5, ()), processes=()))
        story.wait(2.0)

    assert not story.hang().cause.startswith("rpc_")
