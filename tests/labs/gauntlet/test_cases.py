"""The gauntlet's own parts, without running it: the trials, what is held to be true, and how an answer is
judged."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from diag_job import faults
from diag_job.faults import in_gpu
from diag_job.faults.truth import TRUTHS, culprits
from tests.labs.gauntlet import rivals
from tests.labs.gauntlet.cases import CASES, LAYOUTS, trial_of
from tests.labs.gauntlet.table import markdown, passed, summary


def test_every_fault_has_its_truth_and_no_other_has() -> None:
    assert set(TRUTHS) == {kind.name for kind in faults.KINDS}


def test_every_fault_is_in_the_gauntlet() -> None:
    # growing-save is judged by how early it is told, in tests/labs/forecast; those that need a GPU are drills of
    # tests/gpu.
    assert {case.fault for case in CASES if case.fault} == set(TRUTHS) - {"growing-save", *in_gpu.NAMES}


def test_at_least_25_faults_and_the_benign_ones() -> None:
    assert len({case.fault for case in CASES if not case.benign}) >= 25
    assert len([case for case in CASES if case.benign]) >= 7


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_trial_follows_from_case_and_seed_and_fits_its_job(case) -> None:
    for seed in range(20):
        trial = trial_of(case, seed)
        assert trial == trial_of(case, seed)
        assert trial.layout in case.layouts and LAYOUTS[trial.layout][0] == trial.ranks
        assert trial.fault is None or trial.fault.rank < trial.ranks


def test_seeds_vary_culprit_layout_and_step() -> None:
    trials = [
        trial_of(next(case for case in CASES if case.name == "skip-collective"), seed) for seed in range(40)
    ]

    assert len({trial.layout for trial in trials}) == len(LAYOUTS)
    assert len({trial.fault.step for trial in trials if trial.fault}) > 5
    assert {trial.fault.rank for trial in trials if trial.fault} >= {0, 1, 2, 3}


def test_of_two_ranks_that_differ_each_may_be_blamed_and_of_four_one() -> None:
    fault = faults.parse("wrong-op:rank=1")

    assert culprits(fault, 2) == (frozenset({1}), frozenset({0, 1}))
    assert culprits(fault, 4) == (frozenset({1}),)
    assert culprits(faults.parse("p2p-mismatch:rank=1"), 4, peer=3) == (frozenset({1}), frozenset({1, 3}))
    assert culprits(faults.parse("slow-step"), 2) == (frozenset(),)


@pytest.mark.parametrize(
    ("named", "first", "crashed", "verdict"),
    [
        ([1], [1], False, "right"),
        ([0, 1], [1], False, "right"),
        ([0, 1], [0], False, "among"),
        ([0], [0], False, "wrong"),
        ([], [], False, "nothing"),
        ([], [], True, "crashed"),
    ],
)
def test_an_answer_is_judged_by_whom_it_names(named, first, crashed, verdict) -> None:
    answer = {
        "named": named,
        "first": first,
        "crashed": crashed,
        "said": "We cannot decide: missed FR dumps from ranks ({0, 2})",
    }

    assert rivals.judge(answer, [frozenset({1})]) == verdict


def test_a_tool_that_lacks_the_dump_of_the_culprit_gives_a_hint() -> None:
    # torch 2.13, a stopped rank
    said = "because we missed FR dumps from ranks ({0}) so we don't have enough information."

    assert (
        rivals.judge({"named": [], "first": [], "crashed": False, "said": said}, [frozenset({0})]) == "hint"
    )


def test_filled_dumps_have_what_nccl_s_recorder_writes(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    entry = {"profiling_name": "gloo:all_reduce", "state": "scheduled"}
    dump = {"pg_config": {"": {}}, "entries": [{**entry, "retired": True}, {**entry, "retired": False}]}
    (raw / "_dump_0").write_bytes(pickle.dumps(dump))
    (raw / "groups_0.json").write_text(json.dumps({"0": {"desc": "default_pg", "ranks": [0, 1]}}))

    rivals.fill(raw, tmp_path / "filled")

    filled = pickle.loads((tmp_path / "filled" / "_dump_0").read_bytes())
    assert filled["pg_config"] == {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    assert [item["state"] for item in filled["entries"]] == ["completed", "scheduled"]
    assert {item["profiling_name"] for item in filled["entries"]} == {"nccl:all_reduce"}


def test_the_table_counts_trials_that_ended_in_an_error_against_diag() -> None:
    common = {"case": "x", "seed": 1, "layout": "DP2", "benign": False, "wanted": ["hang"]}
    good = {
        "culprit_ok": True,
        "class_ok": True,
        "first_ok": True,
        "ok": True,
        "delay": 15.0,
        "dump_seconds": 0.5,
    }

    said = summary([{**common, **good}, {**common, "seed": 2, "ok": False, "error": "broken"}])

    assert "top-1 culprit: 1/2 (50.0 %)" in said
    assert "| x | DP2, DP2 | 1/2 | 1/2 | 15, – | 0.5, – |" in markdown(
        [{**common, **good}, {**common, "seed": 2, "ok": False}]
    )


def test_the_bar_is_95_of_100_and_no_false_hang() -> None:
    good = {"benign": False, "culprit_ok": True, "class_ok": True, "ok": True}
    bad = {"benign": False, "culprit_ok": False, "class_ok": True, "ok": False}

    assert passed([good] * 19 + [bad])
    assert not passed([good] * 18 + [bad])
    assert not passed([*[good] * 40, {"benign": True, "ok": False, "false_hang": True}])
    assert not passed([])
