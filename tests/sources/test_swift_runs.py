"""What whole logs of ms-swift tell a reader, version by version and layout by layout: one row each."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

from diag.detectors import make_detectors
from diag.detectors.precedence import PRECEDENCE
from diag.detectors.relations import Precedence
from diag.engine.engine import Engine
from diag.model import Record
from diag.model.observations import Iteration, LayoutReported, PhaseMarked, VersionSeen
from diag.sources.logs import output, swift_log
from diag.sources.logs.output import LineAssembler
from diag.sources.parsers import PARSERS

LOGS = Path(__file__).parents[1] / "captures" / "logs"
SECONDS_A_LINE = 0.25
CHUNK = 300


def records(path: Path) -> Iterator[Record]:
    """As a relay hands it over, some hundred bytes at a time; a line a quarter of a second."""
    assembler, data, at = LineAssembler("stdout"), path.read_bytes(), 1000.0
    for start in range(0, len(data) + CHUNK, CHUNK):
        payload = assembler.feed(data[start : start + CHUNK], final=start >= len(data))
        for line in payload["lines"] if payload else ():
            yield Record(output.SOURCE, {"stream": "stdout", "lines": [line]}, at=at)
            at += SECONDS_A_LINE


def followed(path: Path) -> tuple[Engine, list[str]]:
    """The engine at the log's end, and the phases between the start-up and the end, repetitions once."""
    engine = Engine(PARSERS, make_detectors(), PRECEDENCE)
    phases = []
    for record in records(path):
        engine.feed(record)
        phases.append(engine.job.phase)
    engine.finish()
    return engine, [phase for phase, _ in groupby(phases)]


# name: ms-swift, megatron-core (None: the transformers path), pipeline stages, first step, total, saves by
# step, asynchronous
RUNS = {
    "megatron_dpo_3.8.3": ("3.8.3", "0.13.2", 1, 1, 8, [4, 8], False),
    "megatron_dpo_3.12.6": ("3.12.6", "0.15.4", 1, 1, 8, [4, 8], False),
    "megatron_dpo_4.6.0": ("4.6.0", "0.16.1", 1, 1, 8, [8], False),
    "megatron_4.6.0_async": ("4.6.0", "0.16.1", 1, 1, 12, [4, 8, 12], True),
    "megatron_4.6.0_eval": ("4.6.0", "0.16.1", 1, 1, 8, [4, 8], False),
    "megatron_4.6.0_lora": ("4.6.0", "0.16.1", 1, 1, 8, [8], False),
    "megatron_4.6.0_resume_packing": ("4.6.0", "0.16.1", 1, 5, 8, [8], False),
    "megatron_4.6.0_tp2pp2ep2": ("4.6.0", "0.16.1", 2, 1, 8, [8], False),
    "megatron_4.6.0_tp2sp": ("4.6.0", "0.16.1", 1, 1, 8, [8], False),
    "megatron_4.6.0_tp2sp_ep2_thd": ("4.6.0", "0.16.1", 1, 1, 8, [8], False),
    "swift_dpo_3.8.3": ("3.8.3", None, None, 1, 8, [4, 8], False),
    "swift_dpo_3.12.6": ("3.12.6", None, None, 1, 8, [4, 8], False),
    "swift_dpo_4.6.0": ("4.6.0", None, None, 1, 8, [4, 8], False),
    "swift_4.6.0_dense_ddp": ("4.6.0", None, None, 1, 8, [4, 8], False),
    "swift_4.6.0_moe_ddp": ("4.6.0", None, None, 1, 8, [4, 8], False),
    "swift/healthy-sft": ("4.6.0", None, None, 1, 4, [2, 4], False),
}


# 4.0 to 4.4 do not save with torch 2.12 and later (rule swift-torch-plan-check): these two logs end before
# it.
UNTIL_SAVE = {"megatron_4.0.4_until_save": ("4.0.4", 4), "megatron_4.3.2_until_save": ("4.3.2", 2)}


def test_every_log_of_ms_swift_here_has_its_row() -> None:
    assert {path.stem for path in [*LOGS.glob("megatron_*.log"), *LOGS.glob("swift_*.log")]} <= {
        *RUNS,
        *UNTIL_SAVE,
    }


@pytest.mark.parametrize("name", UNTIL_SAVE)
def test_versions_between_print_the_same_lines_up_to_their_save(name: str) -> None:
    version, last = UNTIL_SAVE[name]
    facts = [fact for record in records(LOGS / f"{name}.log") for fact in output.parse(record)]

    engine, phases = followed(LOGS / f"{name}.log")

    assert [
        fact.version for fact in facts if isinstance(fact, VersionSeen) and fact.package == "ms-swift"
    ] == [version]
    assert [fact.stages for fact in facts if isinstance(fact, LayoutReported)] == [1]
    steps = {
        fact.iteration: dict(fact.metrics) for fact in facts if isinstance(fact, Iteration) and fact.metrics
    }
    assert list(steps) == list(range(1, last + 1))
    assert all(0.6 < numbers["loss"] < 0.8 and 0.5 < numbers["grad_norm"] < 2 for numbers in steps.values())
    assert phases[:5] == ["launch", "model_load", "data_prep", "model_load", "first_step"]
    assert phases[5:] == [*["steady", "eval"] * (last // 2), "steady"]
    assert engine.job.progress.metrics["eval_loss"] == pytest.approx(0.69, abs=0.01)
    assert [finding.id for finding in engine.active() if finding.severity.counts] == []


# By reading the wheels of 4.0.4, 4.1.3, 4.2.3, 4.3.2, 4.4.1, 4.5.0 and 4.6.0: the same words from other lines
# of the same files, but for safetensors (4.0: swift/megatron/model/gpt_bridge.py, later
# swift/megatron/init.py). Bars differ: 4.0 draws `Converting: ` and `Saving: ` itself, later mcore-bridge
# does; the callback that draws Train and Evaluate is the same file.
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[INFO:swift] The training of Epoch 0 starts...", "EpochStarted"),
        ("[INFO:swift] Training of 2 epochs has been completed, the training has finished.", "teardown"),
        ("[INFO:swift] rank: 0, local_rank: 0, world_size: 8, local_world_size: 8", "model_load"),
        ("[INFO:swift] TP: 2, PP: 4, VPP: None, CP: 1, EP: 8, ETP: 1", "LayoutReported"),
        ("[INFO:swift] Start time of running main: 2026-11-20 23:38:14.422170", "data_prep"),
        ("[INFO:swift] End time of running main: 2026-11-20 23:29:22.296012", "teardown"),
        ("[INFO:swift] Successfully saved Megatron model weights in `/out/v0-20261120/checkpoint-4`.", "SaveFinished"),
        ("[INFO:swift] Successfully saved `safetensors` model weights in `/out/v0-20261120/checkpoint-4`.", "SaveFinished"),
        ("[INFO:swift] Saving model checkpoint to /out/v0-20261120-233814/checkpoint-4", "SaveFinished"),
        ("Evaluate:  50%|#####     | 1/2 [00:00<00:00,  2.54it/s]", "eval"),
        ("Val:  50%|#####     | 3/6 [00:00<00:00, 10.76it/s]", "eval"),
        # and what says nothing of the job
        ("[INFO:swift] Successfully loaded Megatron model weights from: /out/v0-20261120-233814/checkpoint-4", ""),
        ("[INFO:swift] Successfully loaded /models/qwen3/args.json.", ""),
        ("Converting: 100%|##########| 4/4 [00:00<00:00, 62.31it/s]", ""),
        ("Exporting:  25%|##5       | 1/4 [00:00<00:00,  8.81it/s]", ""),
        ("Loading:  50%|#####     | 60/119 [00:00<00:00, 2927.03it/s]", ""),
        ("Evaluate: 100%|##########| 2/2 [00:00<00:00,  7.01it/s]", ""),
        ("TP: 2, PP: 4, VPP: None", ""),
        ("[INFO:swift] loss_scale: async_save=True,", ""),
    ],
)  # fmt: skip
def test_line_of_every_4_x(text: str, said: str) -> None:
    facts = list(swift_log.read_line(text, None))

    assert [fact.phase if isinstance(fact, PhaseMarked) else type(fact).__name__ for fact in facts] == (
        [said] if said else []
    )


@pytest.mark.parametrize("name", RUNS)
def test_log_tells_versions_layout_steps_and_saves_and_raises_nothing(name: str) -> None:
    swift, core, stages, first, total, saves, asynchronous = RUNS[name]
    path = LOGS / f"{name}.log"
    facts = [fact for record in records(path) for fact in output.parse(record)]

    engine, phases = followed(path)

    versions = {fact.package: fact.version for fact in facts if isinstance(fact, VersionSeen)}
    assert (versions["ms-swift"], versions.get("megatron-core")) == (swift, core)
    assert ("mcore-bridge" in versions) is (core is not None and swift.startswith("4."))
    assert {fact.stages for fact in facts if isinstance(fact, LayoutReported)} == (
        {stages} if stages else set()
    )
    steps = [fact.iteration for fact in facts if isinstance(fact, Iteration) and fact.metrics]
    assert list(dict.fromkeys(steps)) == list(range(first, total + 1))
    assert {fact.total for fact in facts if isinstance(fact, Iteration)} == {total}
    job = engine.job
    assert (job.iteration, job.progress.total_iterations, job.phase) == (total, total, "teardown")
    assert [save.iteration for save in job.saves.log.saves] == saves
    assert all(save.written is not None and not save.cut_off for save in job.saves.log.saves)
    assert job.saves.log.asynchronous is asynchronous
    assert (
        0.1 < job.progress.metrics["loss"] < 10
        and 0.1 < job.progress.metrics.get("grad_norm", job.progress.metrics.get("grad norm", 0.0)) < 10
    )
    assert phases.index("first_step") < phases.index("steady")
    assert [finding.id for finding in engine.active() if finding.severity.counts] == []


@pytest.mark.parametrize(
    ("name", "evaluated_at", "saved_at"),
    [("megatron_4.6.0_eval", [2, 4, 6, 8], [4, 8]), ("swift/healthy-sft", [2, 4], [2, 4])],
)
def test_evaluation_is_a_phase_of_its_own_and_its_time_belongs_to_no_step(
    name: str, evaluated_at: list[int], saved_at: list[int]
) -> None:
    """The Megatron path draws its bar below the training's, as lines; the transformers path redraws one
    called Val."""
    engine, evaluations, before = Engine(PARSERS, [], Precedence()), [], ""

    for record in records(LOGS / f"{name}.log"):
        engine.feed(record)
        if engine.job.phase == "eval" and before != "eval":
            evaluations.append(engine.job.iteration)
        before = engine.job.phase

    assert evaluations == evaluated_at
    assert engine.job.progress.steps.left_out >= len(evaluated_at) - 1  # the last has no step behind it
    assert 0.1 < engine.job.progress.metrics["eval_loss"] < 10
    assert [save.iteration for save in engine.job.saves.log.saves] == saved_at


def test_asynchronous_save_is_written_when_its_state_is_and_not_when_its_safetensors_are() -> None:
    """Safetensors of step 4 come at once, its state beside step 7."""
    engine, written = Engine(PARSERS, [], Precedence()), {}

    for record in records(LOGS / "megatron_4.6.0_async.log"):
        engine.feed(record)
        for save in engine.job.saves.log.saves:
            if save.written is not None:
                written.setdefault(save.iteration, engine.job.iteration)

    assert written == {4: 7, 8: 8, 12: 12}


def test_first_step_of_a_resumed_run_is_awaited_like_any_first_step() -> None:
    """Its bar begins at 0 of 8 though the job goes on at 5."""
    engine, phase_by_step = Engine(PARSERS, [], Precedence()), {}

    for record in records(LOGS / "megatron_4.6.0_resume_packing.log"):
        engine.feed(record)
        phase_by_step[engine.job.iteration] = engine.job.phase if engine.job.iteration is None else "steps"

    assert list(phase_by_step.items())[:2] == [(None, "first_step"), (5, "steps")]


def test_evaluation_that_came_and_went_in_one_reading_is_no_step_either() -> None:
    """A log of which a minute is read at once shows the bar only when it is full."""
    engine = Engine(PARSERS, [], Precedence())
    lines = [
        "{'loss': 0.6, 'iteration': '1/9'}",
        "{'loss': 0.6, 'iteration': '2/9'}",
        "{'eval_loss': 0.68899089, 'iteration': '2/9', 'elapsed_time': '2s'}",
        "{'loss': 0.6, 'iteration': '3/9'}",
    ]

    for number, line in enumerate(lines):
        engine.feed(
            Record(output.SOURCE, {"stream": "stdout", "lines": [[line, 0]]}, at=1000.0 + 30.0 * number)
        )

    steps = engine.job.progress.steps
    assert (steps.counted, steps.left_out, steps.now()) == (1, 1, 30.0)
