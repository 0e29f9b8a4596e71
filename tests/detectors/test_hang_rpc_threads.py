"""Threads that run calls of other ranks (torch.distributed.rpc): when all of them are taken, and when they are not."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from diag.model.observations import ThreadStack
from tests.detectors.test_hang_endless_waits import (
    EVENT,
    IN_CONDITION,
    LIB,
    ONE,
    SILENT,
    TIMED,
    TWO,
    Job,
    Thread,
)
from tests.facts import TRAIN

SERVES = (*TRAIN, "shutdown torch/distributed/rpc/api.py:401", *EVENT)
PULL = (
    "_run_function torch/distributed/rpc/internal.py:209",
    "Server.pull /app/ps.py:39",
    f"Condition.wait_for {LIB}/threading.py:362",
    IN_CONDITION,
)


@dataclass
class Bare(Thread):
    """A thread of C++ code, which Python does not know."""

    def stack(self) -> ThreadStack:
        return ThreadStack(self.tid, "", ())


def test_rpc_threads_that_all_wait_for_another_call_have_taken_the_whole_pool() -> None:
    taken = [Thread(ONE, "pt_thread_pool", PULL), Thread(TWO, "pt_thread_pool", PULL)]
    hang = Job(SERVES, threads=taken).told()

    assert (hang.id, hang.klass, hang.cause) == ("held-up", "peer_not_joined", "rpc_threads_are_taken")
    assert (
        "both threads that run calls of other ranks (RPC) wait in Condition.wait_for, in Server.pull"
        in hang.summary
    )
    assert "rpc.functions.async_execution" in hang.advice


def test_rpc_thread_that_is_taken_for_the_one_that_trains_is_one_of_the_taken() -> None:
    hang = Job(PULL, threads=[Thread(ONE, "pt_thread_pool", PULL)]).told()

    assert hang.cause == "rpc_threads_are_taken" and "both threads that run calls" in hang.summary


ASKS = (
    "_run_function torch/distributed/rpc/internal.py:209",
    "row /app/tables.py:27",
    "_require_initialized.<locals>.wrapper torch/distributed/rpc/api.py:93",
    "rpc_sync torch/distributed/rpc/api.py:829",
)


def test_rpc_threads_that_ask_other_ranks_in_turn_wait_for_no_lock_of_each_others() -> None:
    main = (*TRAIN, "fetch /app/tables.py:35", *ASKS[2:])
    taken = [Thread(ONE, "pt_thread_pool", ASKS), Thread(TWO, "pt_thread_pool", ASKS)]

    hang = Job(main, threads=taken).told()
    idle = Job(main, threads=[taken[0], Bare(TWO, "pt_thread_pool", ())]).told()

    assert hang.cause == "rpc_threads_are_taken" and "wait in rpc_sync, in row" in hang.summary
    assert idle.cause not in ("rpc_threads_are_taken", "threads_wait_for_each_other")


@pytest.mark.parametrize(
    "other",
    [
        Bare(TWO, "pt_thread_pool", ()),  # idle: it would run the next call
        Thread(TWO, "pt_thread_pool", (*PULL[:1], "Server.push /app/ps.py:31"), SILENT),  # at work in one
        Thread(TWO, "pt_thread_pool", PULL, TIMED),
        Thread(TWO, "stepper", ("step /app/ps.py:60",), SILENT),  # may end it
    ],
)
def test_rpc_agent_with_a_thread_that_may_go_on_is_not_taken(other: Thread) -> None:
    hang = Job(SERVES, threads=[Thread(ONE, "pt_thread_pool", PULL), other]).told()

    assert hang.cause != "rpc_threads_are_taken"
