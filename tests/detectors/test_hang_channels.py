"""What one kind of evidence adds to another, and what it must not: recorder, RAS, watchdog, GPUs, driver, output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from diag.detectors.hang.endless_kernel import endless
from diag.detectors.hang.kernels import Kernel
from diag.model import Record
from diag.model.observations import CollectiveEntry, FlightRecorder
from diag.sources.host import kmsg
from tests.detectors.test_hang import started, steady
from tests.detectors.test_hang_evidence import (
    BACKWARD,
    GPU_WAIT,
    STATE,
    TIMEOUT,
    XID,
    asked_twice,
    gpu,
    quiet,
    ras,
    recorder,
    said,
)
from tests.detectors.test_hang_last_words import OF_THREAD, QUEUE, RAISED, go_on, says
from tests.facts import ALL_REDUCE, DATA, SLEEP, TRAIN, Story, pid_of, stack, tree

# --- Flight Recorder


def test_recorder_that_blames_who_waits_is_not_shown_as_if_it_agreed() -> None:
    """On a GPU calls are made ahead: rank 1 is elsewhere, and its recorder has the call that rank 0 has not made."""
    story = steady()
    for _ in range(4):
        story.tell(recorder(0, 25, pending=False, at=story.now), recorder(1, 26, pending=True, at=story.now))
        story.still(14.0, {0: ALL_REDUCE, 1: SLEEP})

    assert story.hang().ranks == (1,)
    assert not any(item.kind == "flight_recorder" for item in story.hang().evidence)


def test_reading_that_is_reported_twice_does_not_show_that_nothing_moved() -> None:
    story = steady()
    story.still(2.0, {0: ALL_REDUCE, 1: BACKWARD})
    once = [recorder(0, 26, pending=True, at=story.now), recorder(1, 25, pending=False, at=story.now)]
    for _ in range(2):
        story.tell(*once)
        story.still(40.0, {0: ALL_REDUCE, 1: BACKWARD})
    early = story.hang().ranks
    for _ in range(2):
        story.tell(*(replace(one, emitted=story.now) for one in once))
        story.still(4.0, {0: ALL_REDUCE, 1: BACKWARD})

    assert early == ()
    assert story.hang().ranks == (1,)


def of_gloo(rank: int, seq: int, *, pending: bool, at: float) -> FlightRecorder:
    """It names no members of a group."""
    state = "scheduled" if pending else "completed"
    call = CollectiveEntry(
        "gloo", "5", "", seq, seq, False, "all_reduce", ((8,),), ((8,),), ("Float",), state, not pending, pending, seq, 0.0
    )  # fmt: skip
    return FlightRecorder(rank, at, "2.10", ("gloo",), (), (call,), pid_of(rank))


@pytest.mark.parametrize(("recorders", "culprits"), [(2, (1,)), (1, ())])
def test_members_of_a_gloo_group_are_guessed_only_where_every_recorder_answered(
    recorders: int, culprits: tuple[int, ...]
) -> None:
    story = steady()
    for _ in range(4):
        both = (of_gloo(0, 26, pending=True, at=story.now), of_gloo(1, 25, pending=False, at=story.now))
        story.tell(*both[:recorders])
        story.still(20.0, {0: ALL_REDUCE, 1: BACKWARD})

    assert story.hang().ranks == culprits


# --- NCCL RAS


@pytest.mark.parametrize(
    ("counts", "confidence"), [(None, "medium"), ((26, 25, 26), "high"), ((25, 26, 26), "medium")]
)
def test_ras_makes_a_verdict_surer_only_where_it_means_the_same_rank(
    counts: Sequence[int] | None, confidence: str
) -> None:
    """Rank 2 is not seen waiting, which alone leaves a doubt about rank 1."""
    story = steady(3)
    stacks = {0: GPU_WAIT, 1: DATA, 2: SLEEP}
    if counts is None:
        quiet(story, stacks, lambda _: [])
    else:
        asked_twice(story, stacks, ras(counts), ras(counts))

    assert (story.hang().klass, story.hang().ranks) == ("data_loading", (1,))
    assert story.hang().confidence.value == confidence


# --- watchdog


def test_watchdog_of_another_group_does_not_tell_who_is_behind() -> None:
    story = steady(3)
    behind = STATE.format(1, 3).replace("PG ID 0 PG GUID 0(default_pg)", "PG ID 2 PG GUID 3(tensor)")
    said(story, TIMEOUT.format(0, 22, "ALLREDUCE"), TIMEOUT.format(2, 22, "ALLREDUCE"), behind)
    for _ in range(45):
        story.tell(*(tree(rank, story.now) for rank in range(3)))
        story.wait(4.0)

    assert not any("had issued 3 calls" in item.excerpt for item in story.hang().evidence)


# --- GPUs, and their driver


def test_gpu_whose_low_power_moves_computes_as_well() -> None:
    story = steady()
    both = dict.fromkeys(range(2), GPU_WAIT)
    quiet(story, both, lambda number: [gpu(0, 1.0, 126.0), gpu(1, 1.0, 110.0 + 60 * (number % 3))], 400.0)

    assert story.findings() == []


def xids(story: Story, *ranks: int) -> None:
    story.tell(*(gpu(rank, 1.0, 126.0) for rank in range(story.world)))
    for rank in ranks:
        line = XID.format(79, "'<unknown>'").replace("00:07", f"00:0{rank + 6}")
        story.tell(*kmsg.parse(Record("kmsg", {"lines": [line]})))


def test_each_gpu_that_the_driver_lost_is_quoted() -> None:
    story = steady(3)
    xids(story, 1, 2)
    quiet(story, dict.fromkeys(range(3), GPU_WAIT), lambda _: [])

    assert story.hang().ranks == (1, 2)
    assert [item.rank for item in story.hang().evidence if item.kind == "kmsg"] == [1, 2]


@pytest.mark.parametrize(("broken", "klass"), [(1, "gpu_side"), (0, "peer_not_joined")])
def test_hardware_xid_decides_where_a_rank_is_elsewhere_only_if_it_is_that_ranks_gpu(
    broken: int, klass: str
) -> None:
    story = steady()
    xids(story, broken)
    quiet(story, {0: ALL_REDUCE, 1: SLEEP}, lambda _: [])

    assert (story.hang().klass, story.hang().ranks) == (klass, (1,))


OF_NCCL, ONE_WARP, OF_WHOM = (
    Kernel(24 / 132, 17.0, 132),
    Kernel(1 / 132, 1.0, 132),
    Kernel(24 / 132, 30.0, 132),
)


@pytest.mark.parametrize(
    ("kernels", "culprits"),
    [
        ((OF_NCCL, ONE_WARP, OF_NCCL), (1,)),
        ((OF_NCCL, ONE_WARP, OF_WHOM), ()),  # rank 2 waits in none of NCCL's either
        ((OF_NCCL, ONE_WARP, None), ()),
        ((ONE_WARP,), ()),
    ],
)
def test_kernel_is_blamed_only_where_all_others_are_known_to_wait_in_nccls(
    kernels: Sequence[Kernel | None], culprits: tuple[int, ...]
) -> None:
    assert endless(dict(enumerate(kernels)), one_call=False) == culprits


# --- what was printed


def test_exception_in_output_that_ranks_share_is_not_this_ranks_where_another_wrote_it() -> None:
    story = steady()

    def both(seconds: float, written: int) -> None:
        for _ in range(int(seconds / 2)):
            story.tell(tree(0, story.now, chars=written), stack(0, story.now, ALL_REDUCE))
            story.tell(tree(1, story.now), stack(1, story.now, QUEUE))
            story.wait(2.0)

    both(10.0, 0)
    says(story, None, *OF_THREAD)
    both(40.0, 4000)

    assert story.hang().ranks == (1,)
    assert "uploader" not in story.hang().summary


@pytest.mark.parametrize("survived", [False, True])
def test_exception_that_a_rank_has_survived_before_does_not_explain_why_it_stands_now(survived: bool) -> None:
    """No step is reported: that its stack moved on shows that it survived."""
    story = started()
    if survived:
        says(story, 1, *RAISED)
    for number in range(30):
        go_on(story, 2.0, (*TRAIN, f"forward /app/model.py:{number}"))
    says(story, 1, *RAISED)
    go_on(story, 60.0, SLEEP)

    assert story.hang().ranks == (1,)
    assert ("shard 7 has no labels" in story.hang().summary) != survived
