"""What differs between two runs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from diag.cli.main import main
from diag.engine.comparing.differences import Comparison, Side, compare, each_time
from diag.engine.comparing.evidence import RunEvidence, read_evidence
from diag.engine.comparing.history import before
from diag.engine.journal import JournalWriter
from diag.launch.past.index import all_runs
from diag.launch.past.reading import read_past
from diag.model import Placement, Record
from diag.sources.host import run as run_source
from tests.past.made import facts, finding, run_dir

NODE = Placement(0, 0, 1, "gpu-7", 4711)


def side(argv: tuple[str, ...] = ("python", "t.py"), **given: Any) -> Side:
    logs = {key: given.pop(key) for key in ("forms", "losses", "norms") if key in given}
    return Side(RunEvidence(facts(**given), argv, **logs), argv, {"state": "finished"})


def rows(found: Comparison, part: str) -> list[tuple[str, str, str]]:
    return [(one.name, one.a, one.b) for one in found.differences if one.part == part]


def test_equal_runs_differ_in_nothing(tmp_path: Path) -> None:
    found = compare(side(losses={1: 2.0}, forms={"a b": "a b"}), side(losses={1: 2.0}, forms={"a b": "a b"}))

    assert found.differences == []
    assert found.not_checked == {"transports": "no log of NCCL in either"}


def test_versions_come_first_and_then_nodes_environment_command_and_times() -> None:
    found = compare(
        side(),
        side(
            argv=("python", "t.py", "--lr", "1"),
            packages={"torch": "2.13.0", "numpy": "2.0"},
            hosts=["gpu-8"],
            environment={"NCCL_DEBUG": "WARN"},
            steps={"count": 9, "p5": 0.9, "median": 1.0, "p95": 1.1},
        ),
    )

    assert [(one.part, one.a, one.b) for one in found.differences] == [
        ("versions", "2.12.0", "2.13.0"),
        ("nodes", "gpu-7", "gpu-8"),
        ("environment", "INFO", "WARN"),
        ("command", "-", "--lr 1"),
        (
            "steps",
            "median 0.5 s, 5-95 % 0.5 s to 0.6 s, 19 steps",
            "median 1 s, 5-95 % 0.9 s to 1.1 s, 9 steps",
        ),
    ]


def test_version_that_only_one_log_tells_is_no_difference() -> None:
    found = compare(side(versions={"python": "3.11"}), side(versions={"python": "3.11", "nccl": "2.28.9"}))

    assert rows(found, "versions") == []


@pytest.mark.parametrize(
    ("key", "part", "why"),
    [
        ("packages", "versions", "no reading of installed packages in B"),
        ("environment", "environment", "no environment of a rank in B"),
        ("gpus", "GPUs", "no reading of GPUs in B"),
        ("steps", "steps", "no step times in B"),
        ("phases", "phases", "no phases in B"),
    ],
)
def test_what_one_of_them_lacks_is_not_checked(key: str, part: str, why: str) -> None:
    found = compare(side(), side(**{key: None}))

    assert found.not_checked[part] == why
    assert rows(found, part) == [] and part not in found.alike


def test_variables_that_are_others_in_each_run_tell_nothing() -> None:
    runs = [facts(environment={"SLURM_JOB_ID": str(number), "NCCL_DEBUG": "INFO"}) for number in range(3)]

    assert each_time(runs) == {"SLURM_JOB_ID"}
    assert each_time(runs[:2]) == frozenset()
    found = compare(
        side(environment={"SLURM_JOB_ID": "1"}), side(environment={"SLURM_JOB_ID": "2"}), each_time(runs)
    )
    assert rows(found, "environment") == []


def test_gpus_differ_by_clock_memory_and_power_limit_where_it_is_much() -> None:
    def gpu(index: int, clock: float, memory: int, watts: float = 700.0) -> dict[str, Any]:
        told = {"index": index, "uuid": f"GPU-{index}", "name": "H100", "power_limit_watts": watts}
        return {**told, "busy_clock_hertz": clock, "memory_peak_bytes": memory}

    found = compare(
        side(gpus=[gpu(0, 1.98e9, 60 << 30), gpu(1, 1.98e9, 60 << 30)]),
        side(gpus=[gpu(0, 1.97e9, 61 << 30), gpu(1, 1.2e9, 70 << 30, 500.0)]),
    )

    assert rows(found, "GPUs") == [
        ("GPU 1, clock at work", "1980 MHz", "1200 MHz"),
        ("GPU 1, memory at most", "60 GiB", "70 GiB"),
        ("GPU 1, power limit", "700 W", "500 W"),
    ]


def test_another_gpu_in_the_same_node_is_told_by_its_uuid() -> None:
    other = [{"index": 0, "uuid": "GPU-a", "name": "H100"}, {"index": 1, "uuid": "GPU-c", "name": "H100"}]

    assert rows(compare(side(), side(gpus=other)), "nodes") == [("GPU UUIDs", "GPU-b", "GPU-c")]


def test_first_step_whose_loss_differs_is_told_with_those_that_are_alike() -> None:
    found = compare(
        side(losses={1: 2.0, 2: 1.5, 3: 1.234567, 9: math.nan}),
        side(losses={1: 2.0, 2: 1.5, 3: 1.234568, 9: math.nan}),
    )

    assert rows(found, "loss") == [("first at step 3: loss, steps 1-2 alike", "1.234567", "1.234568")]


def test_losses_of_different_steps_are_not_compared() -> None:
    found = compare(side(losses={1: 2.0}), side(losses={2: 1.5}))

    assert rows(found, "loss") == [] and "loss" in found.not_checked


def test_lines_of_a_new_form_are_shown_and_the_rest_is_counted() -> None:
    found = compare(
        side(forms={"loading model": "loading model 1"}),
        side(
            forms={
                "loading model": "loading model 2",
                **{f"new form {n}": f"new form {n}" for n in "abcdefghijklmno"},
            }
        ),
    )

    assert [b for _, _, b in rows(found, "log")][:2] == ["new form a", "new form b"]
    assert len(rows(found, "log")) == 12 and found.left_out == {"log": 3}


def test_short_phases_and_noise_of_step_times_are_no_difference() -> None:
    found = compare(
        side(
            phases={"model_load": 30.0, "eval": 1.0}, steps={"count": 9, "p5": 0.5, "median": 0.5, "p95": 0.6}
        ),
        side(
            phases={"model_load": 33.0, "ckpt_save": 2.0},
            steps={"count": 9, "p5": 0.5, "median": 0.51, "p95": 0.61},
        ),
    )

    assert found.differences == []


# --- beside the earlier ones that worked


def told(
    root: Path, number: int, *, name: str = "train.py", code: int = 0, found: tuple = (), **given: Any
) -> Path:
    return run_dir(root, number, argv=["python", name], returncode=code, found=found, told=facts(**given))


def test_what_no_earlier_run_that_worked_had_is_new(tmp_path: Path) -> None:
    for number in range(3):
        told(tmp_path, number)
    told(tmp_path, 3, code=1, packages={"torch": "2.13.0"})  # failed: no measure
    told(tmp_path, 4, name="other.py", packages={"torch": "2.13.0"})
    told(tmp_path, 5, found=(finding(),), packages={"torch": "2.13.0"})  # finished, with a critical finding
    path = told(tmp_path, 6, code=1, hosts=["gpu-7", "gpu-9"], versions={"nccl": "2.28.9", "python": "3.11"},
                packages={"torch": "2.12.0", "flash-attn": "2.8"})  # fmt: skip

    run = read_past(str(path))
    history = before(run, all_runs([str(tmp_path)]), run.facts)

    assert (history.worked, history.on_these_nodes) == (3, 0)
    assert history.new == {"node": "gpu-9", "nccl": "2.28.9", "flash-attn": "2.8"}


def test_version_that_no_earlier_log_told_is_not_called_new(tmp_path: Path) -> None:
    told(tmp_path, 1, versions={"python": "3.11"})
    path = told(tmp_path, 2, versions={"python": "3.11", "nccl": "2.28.9"})

    run = read_past(str(path))
    assert before(run, all_runs([str(tmp_path)]), run.facts).new == {}


def test_runs_of_other_nodes_of_the_same_job_are_no_forerunners(tmp_path: Path) -> None:
    """In a place of several hosts each node of a job has a run directory."""
    told(tmp_path, 1, first_rank=0)
    told(tmp_path, 2, first_rank=8)
    path = told(tmp_path, 3, first_rank=0)

    run = read_past(str(path))
    assert before(run, all_runs([str(tmp_path)]), run.facts).worked == 1


def test_later_runs_are_no_forerunners(tmp_path: Path) -> None:
    path = told(tmp_path, 1)
    told(tmp_path, 2)

    run = read_past(str(path))
    assert before(run, all_runs([str(tmp_path)]), run.facts).worked == 0


# --- the command


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DIAG_RUN_ROOT", str(tmp_path / "runs"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path / "runs"


def write_journal(path: Path, *lines: str, env: dict[str, str] | None = None) -> None:
    journal = JournalWriter(path)
    records = [
        run_source.started(["python", "train.py"], 4711, "gpu-7", cwd="/job"),
        run_source.rank_found(NODE, "python train.py", env or {}),
        *(Record("output", {"stream": "stdout", "lines": [[line, 0]]}, host="gpu-7") for line in lines),
        run_source.ended(0, "gpu-7"),
    ]
    for number, record in enumerate(records):
        journal.write(
            Record(record.source, record.payload, record.rank, record.host, None, 1795000000.0 + number)
        )
    journal.close()


def test_journal_gives_facts_forms_and_losses(tmp_path: Path) -> None:
    steps = [f"{{'loss': {2.0 / step}, 'epoch': {step / 10}}}" for step in range(1, 4)]
    write_journal(tmp_path, "Loading checkpoint shards: done", *steps, env={"NCCL_DEBUG": "INFO"})

    found = read_evidence(tmp_path)

    assert found.facts["environment"] == {"NCCL_DEBUG": "INFO"} and found.facts["hosts"] == ["gpu-7"]
    assert "Loading checkpoint shards: done" in (found.forms or {}).values()
    assert found.argv == ("python", "train.py")


def test_diff_of_two_runs_prints_what_differs_and_what_was_not_checked(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, (value, line) in enumerate([("0", "all is well here"), ("1", "shard cache is corrupt")]):
        path = run_dir(root, number, returncode=number, told=facts())
        write_journal(path, "Loading checkpoint shards", line, env={"NCCL_IB_DISABLE": value})

    assert main(["diff"]) == 0

    out = capsys.readouterr().out
    assert "  NCCL_IB_DISABLE  0 -> 1\n" in out
    assert "log: new in B\n  shard cache is corrupt\n" in out
    assert "alike: nodes" in out and "not checked: GPUs: no reading of GPUs in either" in out
    assert "this program worked 1 time before, 1 of them on these nodes" in out


def test_run_whose_journal_was_removed_is_compared_by_its_facts(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir(root / "past", 1, told=facts())
    run_dir(root / "past", 2, told=facts(packages={"torch": "2.13.0", "numpy": "2.0"}))

    assert main(["diff", "-2", "-1", "--json"]) == 0

    document = json.loads(capsys.readouterr().out)
    assert document["differences"] == [{"part": "versions", "name": "torch", "a": "2.12.0", "b": "2.13.0"}]
    assert {"what": "log", "reason": "no output in either"} in document["not_checked"]


def test_secrets_and_escape_sequences_are_not_printed(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, words in enumerate(
        [["python", "train.py"], ["python", "train.py", "--hub_token", "hf_abcdefghijklm"]]
    ):
        path = run_dir(root, number, argv=words, told=facts())
        write_journal(path, "some words" if not number else "other \x1b[2Jwords here")

    assert main(["diff", "-2", "-1"]) == 0

    out = capsys.readouterr().out
    assert "--hub_token ***" in out and "hf_abc" not in out and "\x1b" not in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-1"], "no earlier run of this program that finished is remembered"),
        (["a", "b", "c"], "diag diff compares two runs"),
        (["nowhere", "-1"], "nowhere does not exist"),
    ],
)
def test_what_cannot_be_compared_is_an_error(
    root: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    write_journal(run_dir(root, 1, told=facts()), "some words")

    assert main(["diff", *words]) == 2
    assert said in capsys.readouterr().err
