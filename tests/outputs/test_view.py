from __future__ import annotations

import dataclasses
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from diag.model.observations import Frame, ProcessTree, RankExited, SourceFailed
from diag.outputs.view.classes import stack_classes
from diag.outputs.view.sentence import job_sentence
from diag.outputs.view.view import RANK_STATES, json_bytes, ranks_json, stacks_json


def states(hub: Any) -> dict[int, str]:
    return {row["rank"]: row["state"] for row in ranks_json(hub.engine)}


def test_culprit_is_hung_and_those_who_wait_are_stalled(hung: Any) -> None:
    assert states(hung) == {0: "stalled", 1: "stalled", 2: "stalled", 3: "hung"}


def test_without_a_finding_nobody_is_called_hung(hub: Any) -> None:
    assert states(hub) == dict.fromkeys(range(4), "running")


def test_job_before_its_first_step_is_starting(empty: Any, kit: Any) -> None:
    empty.tell(1.0, kit.found(0, 2), kit.found(1, 2))

    assert states(empty) == {0: "starting", 1: "starting"}


def test_killed_rank_is_dead_and_one_that_ended_with_0_is_finished(hung: Any, kit: Any) -> None:
    hung.tell(1041.0, RankExited(3, 753, None, 9, "pidfd"), RankExited(0, 750, 0, None, "pidfd"))

    assert states(hung) == {0: "finished", 1: "stalled", 2: "stalled", 3: "dead"}
    assert ranks_json(hung.engine)[3]["exit"]["text"] == "killed by signal 9 (SIGKILL)"


def test_rank_inside_a_save_is_checkpointing(hub: Any, kit: Any) -> None:
    saving = (*kit.MAIN, Frame("save_checkpoint", "/app/megatron/training/checkpointing.py", 500))
    hub.tell(1036.0, kit.stack(1, saving))

    assert states(hub)[1] == "checkpointing"


def test_every_state_is_of_the_closed_set(hung: Any) -> None:
    assert set(states(hung).values()) <= set(RANK_STATES)


def test_rank_row_says_where_and_since_when(hung: Any) -> None:
    row = ranks_json(hung.engine)[3]

    assert row["activity"] == "data"
    assert row["where"]["text"] == "__next__ (torch/utils/data/dataloader.py:741)"
    assert row["caller"]["file"] == "/app/train.py"
    assert row["stack_unchanged_seconds"] == 30.0
    assert row["seconds_since_progress"]["log"] == 39.0
    assert row["seconds_since_progress"]["child_io"] is None
    assert row["limits"] == {"memlock_bytes": 65536, "open_files": 1024, "processes": "unlimited"}
    assert (row["rss_bytes"], row["open_files"], row["children"]) == (4 * 2**30, 214, 2)


def test_rank_of_which_only_the_pid_is_known_has_nulls_not_zeros(empty: Any, kit: Any) -> None:
    empty.tell(1.0, kit.found(0, 1))

    row = ranks_json(empty.engine)[0]

    assert [row[key] for key in ("activity", "rss_bytes", "threads", "limits", "exit", "cpu_ratio")] == [
        None
    ] * 6


def test_ranks_with_equal_stacks_are_one_class(hung: Any) -> None:
    titles = [one.title() for one in stack_classes(hung.engine)]

    assert titles == [
        "ranks 0-2: collective in all_reduce (torch/distributed/distributed_c10d.py:3173)",
        "rank 3: data in __next__ (torch/utils/data/dataloader.py:741)",
        "rank 3, 1 DataLoader worker (pid 10030): data in _worker_loop (torch/utils/data/_utils/worker.py:358)",
        "ranks 0-3: 7 DataLoader workers waiting for work",
    ]


def test_dead_rank_and_unread_rank_say_why_they_have_no_stack(empty: Any, kit: Any) -> None:
    empty.tell(1.0, *(kit.found(rank, 4) for rank in range(4)))
    empty.tell(2.0, kit.stack(0, kit.IN_ALL_REDUCE), kit.stack(1, kit.IN_ALL_REDUCE))
    empty.tell(3.0, RankExited(1, 751, None, 9, "pidfd"))
    empty.tell(3.0, SourceFailed(2, "pyspy", "ptrace is not permitted", "add CAP_SYS_PTRACE"))

    titles = [one.title() for one in stack_classes(empty.engine)]

    assert titles[1:] == [
        "rank 1: no stack: killed by signal 9 (SIGKILL)",
        "rank 2: no stack: pyspy: ptrace is not permitted",
        "rank 3: no stack: none was read yet",
    ]


def test_denied_source_is_not_held_against_a_stack_that_another_source_read(empty: Any, kit: Any) -> None:
    empty.tell(1.0, kit.found(0, 1), SourceFailed(0, "faulthandler", "no handler", ""))
    empty.tell(2.0, kit.stack(0, kit.IN_ALL_REDUCE))

    assert [one.reason for one in stack_classes(empty.engine)] == [""]


def test_child_that_ended_is_no_longer_shown(hung: Any, kit: Any) -> None:
    hung.tell(1041.0, ProcessTree(3, kit.process(753, 10.0), (), 1041.0))

    assert stacks_json(hung.engine, 3)["children"] == []
    assert "child" not in {one.kind for one in stack_classes(hung.engine)}


def test_stacks_of_a_rank_hold_all_threads_and_children(hung: Any) -> None:
    document = stacks_json(hung.engine, 3)

    assert document["main"]["age_seconds"] == 5.0
    assert document["main"]["threads"][0]["frames"][-1]["function"] == "poll"
    assert [(child["pid"], child["idle"]) for child in document["children"]] == [
        (10030, False),
        (10031, True),
    ]


def test_sentence_about_a_hung_job_has_its_numbers(hung: Any) -> None:
    assert job_sentence(hung.report()) == (
        "The job is hung; phase first_step; 4 of 4 ranks seen; 1 critical."
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON | st.text(st.characters(categories=("Cs", "Cc", "L"))))
def test_any_document_becomes_json_that_a_strict_parser_reads(document: Any) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    json.loads(json_bytes(document).decode("utf-8"), parse_constant=refuse)


def test_stack_that_can_be_read_no_more_says_what_py_spy_said(empty: Any, kit: Any) -> None:
    # given a rank that was read from its memory, until it made itself undumpable
    stack = dataclasses.replace(kit.stack(0, kit.IN_ALL_REDUCE), how="remote_stack")
    empty.tell(1.0, kit.found(0, 1))
    empty.tell(2.0, stack)
    empty.tell(3.0, SourceFailed(0, "pyspy", "ptrace is not permitted", "add CAP_SYS_PTRACE"))

    assert [one.reason for one in stack_classes(empty.engine)] == ["pyspy: ptrace is not permitted"]
