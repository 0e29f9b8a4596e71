"""The drills without GPUs: each is a fault that exists, with a truth, and fits its GPUs; the tables tell what
was measured."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from diag_job import faults
from tests.labs.gauntlet.run import judge_fault
from tests.labs.gpu.__main__ import _Gpus, main
from tests.labs.gpu.drill import environment
from tests.labs.gpu.drills import DRILLS, Drill
from tests.labs.gpu.table import drills_table, overhead_table


@pytest.mark.parametrize("drill", DRILLS, ids=lambda drill: drill.name)
def test_a_drill_is_a_fault_with_a_truth_of_a_rank_that_it_has(drill: Drill) -> None:
    trial = drill.trial()

    if drill.fault:
        assert trial.fault is not None and trial.fault.rank < drill.gpus
        assert drill.truths().findings and all(ranks <= set(range(drill.gpus)) for ranks in trial.right())
        assert str(faults.parse(str(trial.fault))) == str(trial.fault)


def test_names_are_unique_for_they_name_folders() -> None:
    assert len({drill.name for drill in DRILLS}) == len(DRILLS)


def test_gpus_are_never_given_twice() -> None:
    machine, held = _Gpus(4), []
    first = machine.take(2)
    second = machine.take(2)
    waiting = threading.Thread(target=lambda: held.extend(machine.take(4)))
    waiting.start()

    assert not set(first) & set(second) and not held

    machine.give(first)
    machine.give(second)
    waiting.join(5)
    assert sorted(held) == [0, 1, 2, 3]


class Ended:
    """A run that is over, as judges see it: what diag said, and whether the fault announced itself."""

    def __init__(self, finding: str, rank: int, struck: float | None) -> None:
        told = {
            "id": finding,
            "class": "",
            "cause": "",
            "ranks": [rank],
            "confidence": "high",
            "severity": "critical",
            "since": 1005.0,
            "summary": "",
            "subject": "job",
        }
        self._said, self._struck = [{"change": "opened", "at": 1006.0, "finding": told}], struck
        self.text, self.process = "", SimpleNamespace(poll=lambda: 1)

    def until(self, condition: Callable[[], object], seconds: float) -> object:
        return condition()

    def run_json(self) -> dict[str, float]:
        return {"started_at": 1000.0}

    def struck_at(self) -> float | None:
        return self._struck

    def changes(self) -> list[dict[str, Any]]:
        return self._said


@pytest.mark.parametrize(
    ("name", "finding", "struck", "right"),
    [
        ("cuda-oom", "cuda-oom", 1004.0, True),
        (
            "cuda-oom",
            "cuda-oom",
            None,
            False,
        ),  # somebody else has filled the GPU: the job ended before its fault
        ("shm-full", "shm-too-small", None, True),  # NCCL's own segments are too large for it
    ],
)
def test_what_ended_before_its_fault_is_no_drill_that_was_passed(
    name: str, finding: str, struck: float | None, right: bool
) -> None:
    drill = next(drill for drill in DRILLS if drill.name == name)
    run: Any = Ended(finding, 1, struck)

    row = judge_fault(drill.trial(), drill.truths(), run, None)

    assert (row["ok"], row["struck"], row["culprit_ok"]) == (right, struck is not None, True)


def test_a_drill_that_was_asked_for_is_not_left_out_in_silence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--gpus", "2", "--drills", "healthy TP2 PP2 EP2"]) == 2
    assert "healthy TP2 PP2 EP2 needs 4 GPUs" in capsys.readouterr().err


def test_gpus_that_are_not_ours_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-5d1a,6")

    assert environment([1, 2], 29600, Path("/tmp"))["CUDA_VISIBLE_DEVICES"] == "GPU-5d1a,6"
    assert main(["--gpus", "4", "--drills", ""]) == 2
    assert "has 3 of 4 GPUs" in capsys.readouterr().err
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert environment([1, 2], 29600, Path("/tmp"))["CUDA_VISIBLE_DEVICES"] == "1,2"


def test_an_unknown_drill_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--gpus", "2", "--drills", "sigstpo"]) == 2
    assert "no drill sigstpo" in capsys.readouterr().err


def test_paired_runs_want_two_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--gpus", "1", "--drills", "", "--overhead", "200"]) == 2
    assert "pairs of GPUs" in capsys.readouterr().err


def test_tables_tell_what_was_said_and_what_it_cost() -> None:
    rows = [
        {
            "drill": "sigstop",
            "gpus": [0, 1],
            "top": {"id": "hang", "class": "stopped", "cause": "", "ranks": [1]},
            "delay": 16.24,
            "dump_seconds": 1.31,
            "ok": True,
        },
        {"drill": "healthy", "gpus": [0, 1], "said": [], "ok": True},
        {
            "drill": "healthy 4",
            "gpus": [0, 1, 2, 3],
            "error": "AssertionError: not within 300 s",
            "ok": False,
        },
    ]
    pair = {"gpus": [0, 1], "round": 1, "steps": 200, "alone": 0.25, "diag": 0.2505, "ratio": 1.002}

    table = drills_table(rows)
    found = {"pairs": [pair], "ratio": {"low": 1.0, "mid": 1.002, "high": 1.004}}
    cost = overhead_table(found | {"switched": [{"gpus": [0, 1], "error": "no sidecar"}]})

    assert "| sigstop | 2 | `hang` stopped | 1 | 16.2 | 1.3 | yes |" in table
    assert "| healthy | 2 | nothing |  |  |  | yes |" in table and "| healthy 4 | 4 | error |" in table
    assert (
        "| GPUs [0, 1], round 1 | 200 | 0.2500 | 0.2505 | 1.0020 |" in cost
        and "1.0020 [1.0000, 1.0040]" in cost
    )
    assert "GPUs [0, 1]: not measured, no sidecar" in cost
