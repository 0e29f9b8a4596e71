"""A sentence names the line of the program itself first, and then the library that it is inside of."""

from __future__ import annotations

import re

import pytest

from diag.detectors.training.straggler_samples import RankSample, StepSamples
from diag.model.observations import StackSampleSummary
from diag.outputs.view.view import ranks_json
from diag.state.stack_activity import read_stack
from tests.detectors.test_hang import steady
from tests.facts import ALL_REDUCE, SLEEP, TRAIN, WORKER, Story, pid_of, process, stack, tree

PACKAGES = "/opt/venv/lib/python3.12/site-packages"
FETCH = (*TRAIN, "fetch /app/data.py:41")
RECEIVE = (
    "Connection.recv /usr/lib/python3.12/multiprocessing/connection.py:250",
    "Connection._recv /usr/lib/python3.12/multiprocessing/connection.py:395",
)
INSIDE = "inside Connection._recv (multiprocessing/connection.py:395)"
READ = (f"get {PACKAGES}/requests/api.py:73", "SSLSocket.read /usr/lib/python3.12/ssl.py:1103")
SWIFT = (
    f"<module> {PACKAGES}/swift/cli/sft.py:20",
    f"BaseTrainer.train {PACKAGES}/swift/trainers/base.py:795",
)
REDUCE = f"all_reduce {PACKAGES}/torch/distributed/distributed_c10d.py:3173"


def said(stacks: dict[int, tuple[str, ...]], seconds: float = 60.0) -> str:
    story = Story(world=len(stacks))
    story.still(seconds, stacks)
    return story.hang().summary


# -- who hangs ------------------------------------------------------------------------------------------------


def test_rank_in_its_own_code_is_named_by_that_line_alone() -> None:
    assert said({0: ALL_REDUCE, 1: FETCH}).startswith("rank 1 has been in fetch (/app/data.py:41) for ")


def test_rank_in_a_library_is_named_by_its_own_line_and_the_call_that_it_is_inside_of() -> None:
    assert said({0: ALL_REDUCE, 1: (*FETCH, *RECEIVE)}).startswith(
        f"rank 1 has been in fetch (/app/data.py:41), {INSIDE}, for "
    )


def test_rank_that_is_in_libraries_all_the_way_is_named_by_the_innermost() -> None:
    assert said({0: ALL_REDUCE, 1: (*SWIFT, *RECEIVE)}).startswith(
        "rank 1 has been in Connection._recv (multiprocessing/connection.py:395) for "
    )


def test_module_that_started_a_framework_is_left_out() -> None:
    started = ("<module> /app/train.py:300", *SWIFT[1:], f"save {PACKAGES}/s3fs/core.py:12", *RECEIVE)

    assert said({0: ALL_REDUCE, 1: started}).startswith(
        "rank 1 has been in Connection._recv (multiprocessing/connection.py:395) for "
    )


def test_stack_without_folders_as_in_py_spys_text() -> None:
    text = (
        "<module> train.py:300",
        "fetch train.py:41",
        "get requests/api.py:73",
        "SSLSocket.read ssl.py:1103",
    )

    assert said({0: ALL_REDUCE, 1: text}).startswith(
        "rank 1 has been in fetch (train.py:41), inside SSLSocket.read (ssl.py:1103), for "
    )


def test_ranks_at_one_line_in_one_call_are_named_together() -> None:
    stuck = (*FETCH, *RECEIVE)

    assert said({0: ALL_REDUCE, 1: stuck, 2: stuck}).startswith(
        f"ranks 1-2 have been in fetch (/app/data.py:41), {INSIDE}, for "
    )


def test_ranks_at_one_line_in_several_calls_are_told_apart_by_these() -> None:
    summary = said({0: ALL_REDUCE, 1: (*FETCH, *RECEIVE), 2: (*FETCH, *READ), 3: FETCH})

    assert (
        f"ranks 1-3 have been in fetch (/app/data.py:41): rank 1 {INSIDE}, "
        "rank 2 inside SSLSocket.read (ssl.py:1103), rank 3 at the line itself, for "
    ) in summary


def test_ranks_at_several_lines_have_each_its_own() -> None:
    summary = said({0: ALL_REDUCE, 1: (*FETCH, *RECEIVE), 2: SLEEP})

    assert (
        f"ranks 1-2 have not moved: rank 1 in fetch (/app/data.py:41), {INSIDE}, "
        "rank 2 in wait_for_leader (/app/train.py:120), for "
    ) in summary


def test_worker_is_named_by_the_line_of_the_data_set() -> None:
    story = Story()
    data = (*TRAIN, f"__next__ {PACKAGES}/torch/utils/data/dataloader.py:741")
    for _ in range(40):
        story.tell(tree(0, story.now, process(8000, ppid=pid_of(0), comm="pt_data_worker")))
        story.tell(stack(0, story.now, data), stack(0, story.now, (*WORKER, *READ), pid=8000))
        story.tell(tree(1, story.now), stack(1, story.now, ALL_REDUCE))
        story.wait(2.0)

    assert (
        "rank 0 has waited for a batch from DataLoader worker pid 8000, which is blocked in read_record "
        "(/app/reader.py:12), inside SSLSocket.read (ssl.py:1103), for "
    ) in story.hang().summary


def test_warning_that_a_rank_holds_up_others_names_the_same_line() -> None:
    story = steady()
    story.still(60, {0: ALL_REDUCE, 1: (*FETCH, *RECEIVE)})

    assert f"fetch (/app/data.py:41), {INSIDE}, for " in story.the("held-up").summary


# -- who waits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("waits", "words"),
    [
        ((*TRAIN, REDUCE), "rank 0 waits in all_reduce (from train, /app/train.py:200)"),
        (
            (*TRAIN, f"forward {PACKAGES}/torch/nn/parallel/distributed.py:1500", REDUCE),
            "rank 0 waits in all_reduce (from train, /app/train.py:200)",
        ),
        (
            (*SWIFT, REDUCE),
            "rank 0 waits in all_reduce (from BaseTrainer.train, swift/trainers/base.py:795)",
        ),
    ],
    ids=["called by the program", "called by the library itself", "all in libraries"],
)
def test_who_waits_is_said_to_at_its_own_line(waits: tuple[str, ...], words: str) -> None:
    assert words in said({0: waits, 1: SLEEP})


def test_all_wait_in_one_line_of_the_program() -> None:
    waits = (*TRAIN, f"forward {PACKAGES}/torch/nn/parallel/distributed.py:1500", REDUCE)

    assert re.match(
        r"all 2 ranks seen have waited in train \(/app/train.py:200\), inside all_reduce "
        r"\(torch/distributed/distributed_c10d.py:3173\), for ",
        said({0: waits, 1: waits}, seconds=400),
    )


# -- the same as data -----------------------------------------------------------------------------------------


def test_own_line_is_a_key_of_the_ranks() -> None:
    story = Story()
    story.still(10, {0: SLEEP, 1: (*FETCH, *RECEIVE)})

    rows = ranks_json(story.engine)

    assert rows[0]["own"] is None
    assert rows[1]["own"] == {"function": "fetch", "file": "/app/data.py", "line": 41, "text": "fetch (/app/data.py:41)"}  # fmt: skip


# -- who is slow ----------------------------------------------------------------------------------------------


def look(lines: tuple[str, ...]) -> RankSample:
    main = stack(0, 0.0, lines).threads[0]
    return RankSample.of(0.0, main, read_stack(main), "/app")


@pytest.mark.parametrize(
    ("slow", "where", "own"),
    [
        ((*FETCH, *RECEIVE), "Connection._recv (multiprocessing/connection.py:395)", "fetch (data.py:41)"),
        (FETCH, "fetch (data.py:41)", ""),
        ((*SWIFT, *RECEIVE), "Connection._recv (multiprocessing/connection.py:395)", ""),
    ],
)
def test_place_of_a_slow_rank_has_its_own_line(slow: tuple[str, ...], where: str, own: str) -> None:
    samples = StepSamples()
    samples.stacks = {0: [look(slow)] * 9, 1: [look(ALL_REDUCE)] * 9}  # type: ignore[dict-item]

    found = samples.excess([0], [1])

    assert found is not None and (found.where, found.own) == (where, own)


def test_place_of_a_slow_rank_on_another_node_has_its_own_line() -> None:
    sent = StackSampleSummary(0.0, False, "other", "Connection._recv (x.py:3)", own="fetch (data.py:41)")
    samples = StepSamples()
    samples.stacks = {0: [RankSample.passed_on(sent)] * 9, 1: [look(ALL_REDUCE)] * 9}  # type: ignore[dict-item]

    found = samples.excess([0], [1])

    assert found is not None and (found.where, found.own) == (sent.where, sent.own)
