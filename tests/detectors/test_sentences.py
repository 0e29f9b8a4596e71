"""What is said of a hang is true of each rank that it names, and of nobody who is not there; verbs agree with
ranks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from diag.detectors.findings import table
from diag.detectors.hang.evidence import _children
from diag.engine.replay import replay
from diag.model import numbered, what_holds
from diag.model.observations import NcclLine, PhaseMarked
from tests import sentences
from tests.conftest import CAPTURES
from tests.facts import ALL_REDUCE, DATA, SLEEP, TRAIN, WORKER, Story, pid_of, process, stack, tree

WAIT = ("<module> /app/job.py:30", "wait_for_peer /app/job.py:14")
STUCK = ("<module> /app/job.py:30", "stuck_lock /app/job.py:11")
INIT = (*TRAIN, "init_process_group torch/distributed/distributed_c10d.py:1892",
        "_env_rendezvous_handler torch/distributed/rendezvous.py:280")  # fmt: skip
JOURNALS = sorted(path.relative_to(CAPTURES) for path in CAPTURES.glob("*/*/journal*.gz"))
PRINTING = sorted(path.relative_to(CAPTURES) for path in CAPTURES.glob("printing/*.gz"))
FOLDERS = sorted(path.relative_to(CAPTURES) for path in (CAPTURES / "loose").iterdir() if path.is_dir())


@pytest.mark.parametrize("path", [*JOURNALS, *PRINTING, *FOLDERS], ids=str)
def test_no_capture_leads_to_a_sentence_that_is_not_true(captures: Path, path: Path) -> None:
    engine, _, _ = replay([captures / path])  # each finding is held against `sentences.faults` as it comes

    assert engine.job.ranks


# -- the check itself
# -------------------------------------------------------------------------------------------------


def stuck(stacks: dict[int, tuple[str, ...]], seconds: float = 60.0, **story: int) -> Story:
    told = Story(**{"world": len(stacks), **story})
    told.still(seconds, stacks)
    return told


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("rank 0 in wait_for_peer", "rank 0 in stuck_lock"),
        ("wait_for_peer (/app/job.py:14)", "wait_for_peer (/app/job.py:14), inside recv (ssl.py:3)"),
        ("rank 1 in stuck_lock", "rank 1 inside wait_for_peer"),
        ("ranks 0-1 have", "ranks 0-1 has"),
        ("ranks 0-1 have", "rank 0-1 have"),
        ("no rank is seen to wait for them in a call", "they have not joined the call the others wait in"),
        ("(2 of 2 ranks", "before the process group was up (2 of 2 ranks"),
    ],
)
def test_sentence_that_is_not_true_is_noticed(before: str, after: str) -> None:
    story = stuck({0: WAIT, 1: STUCK})
    story.tell(NcclLine(0, "node-0", 1000, 1000, 0, "INFO", "NCCL version 2.28.9"))
    hang = story.hang()
    assert not sentences.faults(hang, story.engine.job)

    hang = replace(
        hang, summary=hang.summary.replace(before, after), advice=hang.advice.replace(before, after)
    )

    assert sentences.faults(hang, story.engine.job)


# -- places
# -----------------------------------------------------------------------------------------------------------


def test_two_ranks_at_two_places_are_each_said_to_be_at_theirs() -> None:
    hang = stuck({0: WAIT, 1: STUCK}).hang()

    where = "rank 0 in wait_for_peer (/app/job.py:14), rank 1 in stuck_lock (/app/job.py:11), for"
    assert f"ranks 0-1 have not moved: {where}" in hang.summary
    assert hang.advice.startswith(
        "Ranks 0-1 are in their own code at the line shown, and no rank is seen to wait for them in a call"
    )


def test_ranks_at_one_place_are_told_together() -> None:
    hang = stuck({0: WAIT, 1: WAIT}).hang()

    assert hang.summary.startswith("ranks 0-1 have been in wait_for_peer (/app/job.py:14) for ")


def test_of_many_places_the_first_are_told_and_the_rest_counted() -> None:
    hang = stuck({rank: (*TRAIN, f"step_{rank} /app/job.py:{rank}") for rank in range(7)}).hang()

    assert "rank 3 in step_3 (/app/job.py:3) and 3 more ranks, for" in hang.summary


def test_ranks_that_wait_for_each_other_in_several_calls_are_each_at_theirs() -> None:
    barrier = (
        *TRAIN,
        "wrapper torch/distributed/c10d_logger.py:83",
        "barrier torch/distributed/distributed_c10d.py:5000",
    )

    hang = stuck({0: ALL_REDUCE, 1: barrier, 2: ALL_REDUCE}, seconds=400).hang()

    assert "seen have waited in train (/app/train.py:200): ranks 0, 2 inside all_reduce (" in hang.summary
    assert "rank 1 inside barrier (" in hang.summary


def test_each_rank_has_its_own_worker() -> None:
    story = Story(world=3)
    for _ in range(40):
        for rank in (0, 1):
            child = process(8000 + rank, ppid=pid_of(rank), comm="pt_data_worker")
            story.tell(tree(rank, story.now, child), stack(rank, story.now, DATA))
            story.tell(
                stack(rank, story.now, (*WORKER[:2], f"read_{rank} /app/reader.py:{rank}"), pid=8000 + rank)
            )
        story.tell(tree(2, story.now), stack(2, story.now, ALL_REDUCE))
        story.wait(2.0)

    hang = story.hang()

    assert (
        "ranks 0-1 have waited for a batch: "
        "rank 0 from DataLoader worker pid 8000, which is blocked in read_0 (/app/reader.py:0), "
        "rank 1 from DataLoader worker pid 8001, which is blocked in read_1 (/app/reader.py:1), for"
    ) in hang.summary


def test_ranks_that_ended_differently_are_said_to_have() -> None:
    story = Story(world=3)
    story.exit(0, signal=9)
    story.exit(1, code=1)
    story.still(60, {2: ALL_REDUCE})

    assert "ranks 0-1 have been gone (rank 0 killed by signal 9, rank 1 exit code 1)" in story.hang().summary


def test_all_stopped_ranks_are_told_with_their_pids() -> None:
    story = Story()
    story.still(60, {0: SLEEP, 1: SLEEP}, trees={0: {"state": "T"}, 1: {"state": "T"}})

    hang = story.hang()
    assert "ranks 0-1 have been stopped by a signal (state T, pid 1000 1001)" in hang.summary
    assert what_holds(hang.advice, over=False).startswith(
        "Ranks 0-1 are stopped by a signal (state T): `kill -CONT 1000 1001`"
    )


HOOKED = (
    TRAIN[0],
    "_wrap_init.<locals>.init_process_group /opt/diag/diag/launch/inject/_diag_hook.py:219",
    *INIT[len(TRAIN) :],
)


def test_frame_of_diags_own_hook_is_no_place_of_the_job() -> None:
    """Neither named as who called, nor a package between the program's line and torch."""
    found = stuck({0: HOOKED, 1: SLEEP}).hang()

    assert "init_process_group (from <module>, /app/train.py:300)" in found.summary
    assert "diag" not in found.summary
    assert not any("_diag_hook" in item.excerpt for item in found.evidence)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("(/app/job.py:14)", "(diag/launch/inject/_diag_hook.py:219)"),
        ("Ranks 0-1 are", "See what that one does (above): ranks 0-1 are"),
        (" for 1 min", " for 1 min in training, for 1 min"),
    ],
)
def test_sentence_that_goes_beyond_its_evidence_is_noticed(before: str, after: str) -> None:
    story = stuck({0: WAIT, 1: STUCK})
    hang = story.hang()
    changed = replace(
        hang, summary=hang.summary.replace(before, after), advice=hang.advice.replace(before, after)
    )

    assert changed != hang and not sentences.faults(hang, story.engine.job)
    assert sentences.faults(changed, story.engine.job)


BARRIER = (*TRAIN, "barrier torch/distributed/distributed_c10d.py:5037")
BACKWARD = (*TRAIN, "_engine_run_backward torch/autograd/graph.py:869")


def test_ranks_in_two_calls_are_not_said_to_wait_in_one() -> None:
    two = stuck({0: ALL_REDUCE, 1: BARRIER, 2: SLEEP}).hang()
    one = stuck({0: ALL_REDUCE, 1: ALL_REDUCE, 2: SLEEP}).hang()

    assert "not joined the calls that ranks 0-1 wait in" in two.advice
    assert "not joined the call that ranks 0-1 wait in" in one.advice


@pytest.mark.parametrize(("waits", "said"), [(BARRIER, False), (BACKWARD, True)])
def test_training_is_only_said_of_a_job_that_is_seen_in_a_step(waits: tuple[str, ...], *, said: bool) -> None:
    """A barrier may stand before the first step, or after the last."""
    assert (" in training" in stuck({0: waits, 1: SLEEP}).hang().summary) is said


# -- others
# -----------------------------------------------------------------------------------------------------------


def test_lone_rank_is_told_of_nobody_else() -> None:
    story = Story(world=1)
    story.tell(PhaseMarked(0, "first_step", "training starts"))
    story.still(60, {0: SLEEP})

    hang = story.hang()
    assert hang.advice.startswith(
        "Rank 0 is in its own code at the line shown, and no rank is seen to wait for it in a call"
    )


def test_wait_that_the_kernel_knows_to_be_one_for_a_lock_is_told_as_that() -> None:
    story = Story()
    story.still(
        60, {0: WAIT, 1: STUCK}, trees={0: {"wchan": "hrtimer_nanosleep"}, 1: {"wchan": "futex_wait_queue"}}
    )

    assert "see what they wait for there: rank 1 waits for a lock or a thread." in story.hang().advice


def test_victims_are_named() -> None:
    hang = stuck({0: ALL_REDUCE, 1: SLEEP, 2: ALL_REDUCE}).hang()

    assert (
        "Rank 1 is in its own code at the line shown and has not joined the call that ranks 0, 2 wait in"
        in hang.advice
    )


# -- before the process group was up
# ----------------------------------------------------------------------------------


def test_group_is_said_to_be_missing_where_its_creation_is_seen() -> None:
    assert "before the process group was up" in stuck({0: INIT, 1: WAIT}).hang().summary


def test_of_a_group_that_nothing_is_seen_of_nothing_is_said() -> None:
    """As after `watch` of a job that has run for long."""
    assert "process group" not in stuck({0: WAIT, 1: STUCK}).hang().summary


def test_group_that_nccl_was_seen_in_is_not_said_to_be_missing() -> None:
    story = Story()
    story.tell(PhaseMarked(None, "rendezvous", "cdb=None"))
    story.tell(NcclLine(0, "node-0", 1000, 1000, 0, "INFO", "NCCL version 2.28.9"))
    story.still(60, {0: WAIT, 1: STUCK})

    assert "before the process group was up" not in story.hang().summary


# -- numbers
# ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("cause", sorted(table()["straggler"]["causes"]))
def test_every_advice_about_a_straggler_agrees_with_one_and_with_several(cause: str, count: int) -> None:
    words = {
        "ranks": {1: "rank 3", 2: "ranks 3-4"}[count],
        "Ranks": {1: "Rank 3", 2: "Ranks 3-4"}[count],
        "host": "gpu-2",
    }

    said = numbered(table()["straggler"]["causes"][cause]["advice"], count).format(**words)

    assert not [form for form in (*sentences._DISAGREE, sentences._TEMPLATE) if form.search(said)], said


@pytest.mark.parametrize(
    ("states", "words"),
    [
        ("S" * 35, "35 children, all sleep"),
        ("SSRS", "4 children: 3 sleep, 1 runs"),
        ("D", "1 child, is in uninterruptible sleep"),
        ("X", "1 child, is in state X"),
    ],
)
def test_children_are_counted_by_what_they_do(states: str, words: str) -> None:
    assert _children(Counter(states)) == words


def test_children_stand_in_the_evidence_in_words() -> None:
    story = Story()
    children = tuple(process(5000 + number, comm="python3") for number in range(3))
    for _ in range(40):
        story.tell(tree(0, story.now, *children), stack(0, story.now, SLEEP))
        story.tell(tree(1, story.now), stack(1, story.now, ALL_REDUCE))
        story.wait(2.0)

    assert any(item.excerpt.endswith("3 children, all sleep") for item in story.hang().evidence)
