"""What torchelastic says of failed workers, from real runs of two versions of PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.model.observations import Observation, WorkerFailureReported, WorkerNamed
from diag.sources.logs import line_forms
from diag.sources.logs.line_facts import read_text

LOGS = Path(__file__).parents[1] / "captures" / "logs"


def facts(name: str) -> list[Observation]:
    lines = (LOGS / name).read_text().splitlines()
    return [fact for line in lines for fact in line_forms.read_line(line, None)]


def said(name: str) -> list[tuple[object, ...]]:
    words: list[tuple[object, ...]] = []
    for fact in facts(name):
        if isinstance(fact, WorkerFailureReported):
            words.append(("exit", fact.exit_code, fact.pid))
        elif isinstance(fact, WorkerNamed):
            words.append(("rank", fact.rank))
    return words


def test_table_of_torch_2_13_names_both_ranks_with_exit_code_and_pid() -> None:
    assert said("elastic_2.13.log") == [
        ("exit", 1, 20342),
        ("rank", 0),
        ("exit", -15, 20341),
        ("rank", 1),
        ("exit", 1, 20342),
    ]


def test_table_of_torch_2_11_names_both_ranks_with_exit_code_and_pid() -> None:
    assert said("elastic_2.11.log") == [
        ("exit", 1, 1017),
        ("rank", 1),
        ("exit", -15, 1018),
        ("rank", 0),
        ("exit", 1, 1017),
    ]


def test_first_failure_is_told_seconds_before_the_table() -> None:
    first = facts("elastic_2.13.log")[0]

    assert isinstance(first, WorkerFailureReported)
    assert first.text.startswith("E1121 00:37:02.756000 20337")


@pytest.mark.parametrize(
    ("text", "rank"),
    [
        # torch 2.11.0+cu130, two H200, 2026-11-20
        ("[rank1]: Traceback (most recent call last):", 1),
        ("[rank1]:[W1120 22:48:19.163027360 WorkerServer.cpp:155] [c10d] Server listening to TCP :::0", 1),
        ("[rank16383]: RuntimeError", 16383),
        ("[rank1] is slow", None),
        ("[default1]: a local rank of --tee", None),
        ("text [rank1]: in the middle", None),
        ("[rank99999999]: no job is that large", None),
        ("", None),
    ],
)
def test_rank_before_a_line_is_taken_only_as_torch_writes_it(text: str, rank: int | None) -> None:
    assert next(iter(read_text(text, "stderr", None))).rank == rank


@pytest.mark.parametrize(
    "text",
    [
        "  error_file: <N/A>",
        "  exitcode is what we look for",
        "exitcode  : 1 (pid: 7)",
        f"  exitcode  : {'9' * 5000} (pid: 7)",
        f"failed (exitcode: 1) local_rank: 0 (pid: {'9' * 5000}) of binary: python",
        "W1121 00:37:02.585000 20337 api.py:1028] Sending process 20341 closing signal SIGTERM",
    ],
)
def test_other_lines_name_nobody(text: str) -> None:
    assert list(line_forms.read_line(text, None)) == []
