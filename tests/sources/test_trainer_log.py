"""Whole logs of real runs of Hugging Face Trainer and of DeepSpeed give their phases, every step and every
save."""

from __future__ import annotations

import math
from itertools import groupby

import pytest

from diag.detectors import make_detectors
from diag.engine.engine import Engine
from diag.model.observations import (
    BarMoved,
    Iteration,
    MetricsLogged,
    PhaseMarked,
    SaveFinished,
    SaveStarted,
    StepsPlanned,
)
from diag.sources.logs import trainer_log
from diag.sources.parsers import PARSERS
from tests.sources.test_swift_log import facts, records


def phases(name: str, chunk: int = 60) -> tuple[list[str], Engine]:
    engine, seen = Engine(PARSERS, make_detectors()), []
    for record in records(name, chunk):
        engine.feed(record)
        seen.append(engine.job.phase)
    engine.finish()
    return [phase for phase, _ in groupby(seen)], engine


def test_trainer_that_says_nothing_but_bars_and_numbers_is_followed_through_steps_and_evaluations() -> None:
    told, engine = phases("hf_trainer_4.57.6.log")

    # before the first numbers its bar is any bar
    assert [phase for phase in told if phase != "training"] == [
        "launch", "steady", "eval", "steady", "eval", "steady", "teardown",
    ]  # fmt: skip
    assert (engine.job.iteration, engine.job.total_iterations) == (8, 8)
    assert engine.job.metrics["loss"] > 4 and engine.job.metrics["eval_loss"] > 4
    assert engine.active() == []


def test_trainer_with_its_info_lines_tells_the_first_step_and_the_saves_too() -> None:
    told, engine = phases("hf_trainer_4.57.6_info.log")

    assert [phase for phase in told if phase != "training"] == [
        "launch", "first_step", "steady", "eval", "steady", "ckpt_save", "steady", "eval", "steady", "ckpt_save", "teardown",
    ]  # fmt: skip
    assert (engine.job.iteration, engine.job.total_iterations) == (8, 8)
    assert [fact.total for fact in facts("hf_trainer_4.57.6_info.log") if isinstance(fact, StepsPlanned)] == [
        8
    ]
    assert [fact.path for fact in facts("hf_trainer_4.57.6_info.log") if isinstance(fact, SaveStarted)] == [
        "/out/out1/checkpoint-4", "/out/out1/checkpoint-8",
    ]  # fmt: skip


def test_deepspeed_launcher_and_engine_tell_rendezvous_build_steps_and_save() -> None:
    told, engine = phases("deepspeed_0.16.9.log")

    assert told == [
        "launch", "rendezvous", "launch", "rendezvous", "compile", "rendezvous", "model_load", "first_step", "steady",
        "ckpt_save", "steady", "ckpt_save", "steady", "teardown",
    ]  # fmt: skip
    assert [fact.iteration for fact in facts("deepspeed_0.16.9.log") if isinstance(fact, Iteration)] == [
        2,
        4,
        6,
        8,
    ]
    assert {fact.path for fact in facts("deepspeed_0.16.9.log") if isinstance(fact, SaveFinished)} == {
        "global_step4"
    }
    assert engine.job.save_log.count == 1
    assert engine.active() == []


@pytest.mark.parametrize(
    ("text", "phase"),
    [
        (
            "[2026-11-20 23:50:12,101] [INFO] [real_accelerator.py:260:get_accelerator] "
            "Setting ds_accelerator to cuda (auto detect)",
            "rendezvous",
        ),
        ("[2024-06-11 00:23:36,254] [INFO] [comm.py:637:init_distributed] cdb=None", "rendezvous"),
        (
            "[2024-06-11 00:23:36,254] [INFO] [comm.py:668:init_distributed] "
            "Initializing TorchBackend in DeepSpeed with backend nccl",
            "rendezvous",
        ),
        ("***** Running Evaluation *****", "eval"),
    ],
)
def test_line_that_tells_a_phase(text: str, phase: str) -> None:
    assert [fact.phase for fact in trainer_log.read_line(text, None) if isinstance(fact, PhaseMarked)] == [
        phase
    ]


@pytest.mark.parametrize(
    ("text", "loss"),
    [
        (
            "{'loss': 4.3605, 'grad_norm': 1.9662383794784546, 'learning_rate': 4.375e-05, 'epoch': 0.04}",
            4.3605,
        ),
        ("{'loss': '4.36', 'grad_norm': '1.966', 'learning_rate': '4.375e-05', 'epoch': '0.04'}", 4.36),
        ("{'loss': nan, 'grad_norm': nan, 'learning_rate': 4.375e-05, 'epoch': 0.04}", None),
    ],
)
def test_numbers_are_read_as_numbers_or_strings_and_nan_too(text: str, loss: float | None) -> None:
    (fact,) = trainer_log.read_line(text, 0)

    assert isinstance(fact, MetricsLogged)
    found = dict(fact.metrics)["loss"]
    assert math.isnan(found) if loss is None else found == loss


@pytest.mark.parametrize(
    "text",
    [
        "{'loss': 0.5}",
        "{'loss': 0.5, 'epoch': ",
        "{'loss': __import__('os').getpid(), 'epoch': 1}",
        "[INFO:swift] Saving model checkpoint to /out/checkpoint-4",
        "{'loss': 0.69, 'epoch': 0.02, 'global_step/max_steps': '1/8'}",
        "  Total optimization steps = many",
        "100%",
        "[3/4] of the shards are loaded",
        "Time to load the model: 3 s",
        "",
    ],
)
def test_line_that_only_looks_like_it_says_nothing(text: str) -> None:
    assert list(trainer_log.read_line(text, None)) == []


@pytest.mark.parametrize(
    ("text", "bar"),
    [
        (" 25%|██▌       | 2/8 [00:00<00:00, 20.99it/s]", (2, 8)),
        ("  0%|          | 0/2 [00:00<?, ?it/s]\x1b[A", (0, 2)),
        ("Train:  12%|█▎        | 1/8 [00:00<00:01,  4.69it/s]", None),
        ("900%|x| 9/1 [", None),
    ],
)
def test_bar_without_a_name(text: str, bar: tuple[int, int] | None) -> None:
    assert [
        (fact.done, fact.total) for fact in trainer_log.read_bar(text, None) if isinstance(fact, BarMoved)
    ] == ([] if bar is None else [bar])
