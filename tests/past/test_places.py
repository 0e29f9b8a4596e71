"""How often culprits were on one node or GPU, and what doctor tells of it."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

from diag.launch.past.index import all_runs
from diag.launch.past.places import node_record
from diag.launch.past.reading import PastRun
from diag.preflight.history import check_history
from diag.text.errors import DiagError
from tests.past.made import facts, finding, living, run_dir

HOST = socket.gethostname()


def culprit(*gpus: str, ranks: tuple[int, ...] = (1,), named: int = 0, id: str = "hang") -> dict[str, Any]:
    return {
        "id": id,
        "class": "",
        "ranks": list(ranks),
        "all_ranks_named": named or len(ranks),
        "gpus": list(gpus),
    }


def hung(root: Path, number: int, *culprits: dict[str, Any], **given: Any) -> Path:
    return run_dir(
        root, number, returncode=1, found=(finding(),), told=facts(culprits=list(culprits), **given)
    )


def said(root: Path) -> list[tuple[str, str]]:
    return [(line.status, line.said) for line in check_history(lambda: all_runs([str(root)]))]


def test_gpu_that_had_the_culprit_again_and_again_is_named_with_counts(tmp_path: Path) -> None:
    for number in range(2):
        hung(tmp_path, number, culprit("GPU-b"))
    hung(tmp_path, 2, culprit("GPU-b", id="gpu-fault"))
    hung(tmp_path, 3, culprit("GPU-a", ranks=(0,)))
    run_dir(tmp_path, 4, told=facts())

    assert said(tmp_path) == [
        (
            "note",
            f"5 runs on {HOST} remembered, 1 finished, 4 ended with a critical finding; "
            "the culprit was on GPU 1 (GPU-b) in 3 of 4 (hang 2, gpu-fault 1)",
        )
    ]


def test_node_of_several_that_had_all_culprits_is_named(tmp_path: Path) -> None:
    for number in range(3):
        hung(tmp_path, number, culprit(), world_size=16, ranks_here=8)
    hung(tmp_path, 4, culprit(named=4), world_size=16, ranks_here=8)  # and ranks of other nodes

    record = node_record(HOST, all_runs([str(tmp_path)]))
    assert (record.shared, record.culprit) == (4, 3)
    assert "the culprit was on this node in 3 of 4 with several nodes (hang 3)" in said(tmp_path)[0][1]


def test_only_node_and_only_gpu_of_a_job_are_no_hint(tmp_path: Path) -> None:
    one = [{"index": 0, "uuid": "GPU-a", "name": "H100"}]
    for number in range(5):
        hung(tmp_path, number, culprit("GPU-a"), gpus=one, world_size=1, ranks_here=1)

    assert said(tmp_path) == [
        ("ok", f"5 runs on {HOST} remembered, 0 finished, 5 ended with a critical finding")
    ]


def test_finding_that_names_all_ranks_points_at_no_gpu(tmp_path: Path) -> None:
    for number in range(5):
        hung(tmp_path, number, culprit("GPU-a", "GPU-b", ranks=(0, 1)))

    assert said(tmp_path)[0][0] == "ok"


def test_once_is_no_pattern(tmp_path: Path) -> None:
    hung(tmp_path, 0, culprit("GPU-b"))
    for number in range(1, 5):
        run_dir(tmp_path, number, told=facts())

    assert said(tmp_path)[0][0] == "ok"


def test_two_runs_are_too_few_to_speak_of(tmp_path: Path) -> None:
    for number in range(2):
        hung(tmp_path, number, culprit("GPU-b"))
    run_dir(tmp_path, 3, told=facts(), host="elsewhere")
    living(tmp_path, 4, told=facts())
    run_dir(tmp_path, 5)  # nothing is known of it

    assert said(tmp_path) == []


def test_file_system_that_does_not_answer_holds_nothing_up() -> None:
    answers = threading.Event()

    def read() -> list[PastRun]:
        answers.wait(60)
        return []

    lines = [*check_history(read, seconds=0.05)]
    answers.set()

    assert [(line.status, line.said) for line in lines] == [
        ("not checked", "the folder of run directories does not answer within 50 ms")
    ]


def test_setting_that_cannot_be_read_is_for_others_to_tell() -> None:
    def read() -> list[PastRun]:
        raise DiagError("diag.toml: no")

    assert [*check_history(read)] == []


def test_facts_of_any_content_are_passed_over(tmp_path: Path) -> None:
    strange: list[Any] = [
        None,
        3,
        {"ranks": "x"},
        {"ranks": [1]},
        {"ranks": [1], "gpus": 7},
        {"ranks": [], "gpus": []},
    ]
    for number in range(3):
        hung(tmp_path, number, *strange, gpus=[{"index": "x"}, None, {"index": 0, "uuid": 3}])
    run_dir(tmp_path, 4, told=facts(gpus="x", culprits={"a": 1}, world_size=True))

    assert said(tmp_path)[0][0] == "ok"
