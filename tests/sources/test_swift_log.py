"""Whole logs of real runs of ms-swift give their phases, every step and every save, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

from diag.detectors.precedence import PRECEDENCE
from diag.detectors.relations import Precedence
from diag.engine.engine import Engine
from diag.model import Record
from diag.model.observations import (
    EpochStarted,
    Iteration,
    LayoutReported,
    LogLine,
    Observation,
    PhaseMarked,
    SaveFinished,
    SavesBehind,
    SaveStarted,
    VersionSeen,
)
from diag.sources.logs import output, swift_log
from diag.sources.logs.output import LineAssembler
from diag.sources.parsers import PARSERS

LOGS = Path(__file__).parents[1] / "captures" / "logs"
MEGATRON = [
    "model_load",
    "data_prep",
    "model_load",
    "comm_init",
    "model_load",
    "data_prep",
    "first_step",
    "epoch 0",
]
TRANSFORMERS = ["model_load", "data_prep", "model_load", "first_step"]


def records(name: str, chunk: int = 700) -> Iterator[Record]:
    """As a relay hands it over: some hundred bytes at a time."""
    assembler = LineAssembler("stdout")
    data = (LOGS / name).read_bytes()
    for number, start in enumerate(range(0, len(data) + chunk, chunk)):
        payload = assembler.feed(data[start : start + chunk], final=start >= len(data))
        if payload is not None:
            yield Record(output.SOURCE, payload, at=1000.0 + number)


def facts(name: str) -> list[Observation]:
    return [
        fact
        for record in records(name)
        for fact in output.parse(record)
        if not isinstance(fact, (LogLine, VersionSeen, LayoutReported, SavesBehind))
    ]


def story(name: str) -> list[str]:
    """What the log tells in its order, repetitions of the same once."""

    def word(fact: Observation) -> str:
        match fact:
            case PhaseMarked(_, phase, _):
                return phase
            case EpochStarted(_, epoch, _):
                return f"epoch {epoch}"
            case Iteration(_, iteration, total, _, _):
                return f"step {iteration} of {total}"
            case SaveStarted():
                return "save begins"
            case SaveFinished():
                return "saved"
        return type(fact).__name__

    return [word for word, _ in groupby(word(fact) for fact in facts(name))]


@pytest.mark.parametrize("version", ["3.8.3", "3.12.6"])
def test_megatron_path_of_swift_3_tells_every_phase_step_and_save(version: str) -> None:
    steps = [f"step {number} of 8" for number in range(1, 9)]
    save = ["save begins", "saved"] if version == "3.8.3" else ["save begins", "saved", "ckpt_save", "saved"]

    assert story(f"megatron_dpo_{version}.log") == [
        *MEGATRON,
        *steps[:4],
        *save,
        *steps[4:],
        *save,
        "teardown",
    ]


def test_megatron_path_of_swift_4_tells_every_phase_step_and_save() -> None:
    steps = [f"step {number} of 8" for number in range(1, 9)]

    told = story("megatron_dpo_4.6.0.log")

    # the bar lags behind the metrics by up to a step; a save's begin is not printed
    assert told[:5] == ["model_load", "data_prep", "model_load", "epoch 0", "first_step"]
    assert [word for word in told if word.startswith("step")][-1] == "step 8 of 8"
    assert set(steps) <= set(told)
    assert told[-3:] in (["step 8 of 8", "saved", "teardown"], ["saved", "step 8 of 8", "teardown"])


@pytest.mark.parametrize("version", ["3.8.3", "3.12.6", "4.6.0"])
def test_transformers_path_tells_every_phase_step_and_save(version: str) -> None:
    told = story(f"swift_dpo_{version}.log")

    assert told[:4] == TRANSFORMERS
    assert list(dict.fromkeys(word for word in told if word.startswith("step"))) == [
        f"step {n} of 8" for n in range(1, 9)
    ]
    assert told.count("saved") == 2
    assert told[-1] == "teardown"


@pytest.mark.parametrize("path", sorted(LOGS.glob("*_4.6.0_*.log")), ids=lambda path: path.stem)
def test_every_layout_of_swift_4_passes_through_its_phases_in_order_and_to_its_last_step(path: Path) -> None:
    engine, phases = Engine(PARSERS, [], Precedence()), []

    for record in records(path.name):
        engine.feed(record)
        phases.append(engine.job.phase)
    told = [phase for phase, _ in groupby(phases) if phase != "launch"]

    assert told[:4] == ["model_load", "data_prep", "model_load", "first_step"]
    assert (
        set(told[4:-1]) <= {"steady", "ckpt_save", *(["eval"] if "eval" in path.name else [])}
        and told[4] == "steady"
    )
    assert told[-1] == "teardown"
    assert engine.job.iteration == engine.job.progress.total_iterations == (12 if "async" in path.name else 8)


@pytest.mark.parametrize("path", sorted(LOGS.glob("*_dpo_*.log")), ids=lambda path: path.stem)
def test_every_step_has_its_loss_and_its_gradient_norm(path: Path) -> None:
    steps = {
        fact.iteration: dict(fact.metrics)
        for fact in facts(path.name)
        if isinstance(fact, Iteration) and fact.metrics
    }

    assert sorted(steps) == list(range(1, 9))
    for metrics in steps.values():
        assert 0.6 < metrics["loss"] < 0.8
        assert any(name in metrics for name in ("grad_norm", "grad norm"))


@pytest.mark.parametrize("path", sorted(LOGS.glob("*_dpo_*.log")), ids=lambda path: path.stem)
def test_whole_healthy_log_raises_no_finding_and_ends_after_its_last_step(path: Path) -> None:
    from diag.detectors import make_detectors

    engine = Engine(PARSERS, make_detectors(), PRECEDENCE)

    for record in records(path.name):
        engine.feed(record)

    assert engine.finish() == []
    assert [finding for finding in engine.active() if finding.severity.counts] == []
    assert (engine.job.iteration, engine.job.progress.total_iterations, engine.job.phase) == (
        8,
        8,
        "teardown",
    )
    expected = [8] if "megatron_dpo_4" in path.name else [4, 8]
    assert [save.iteration for save in engine.job.saves.log.saves] == expected
    assert all(save.written is not None and not save.cut_off for save in engine.job.saves.log.saves)


@pytest.mark.parametrize(
    "text",
    [
        # the same machine and runs as the logs; what looks like a phase, a step or a save and is none
        "[INFO:swift] The logging file will be saved in: /out/hf/v5-20261121-003927/logging.jsonl",
        "[INFO:swift] The RLHFArguments will be saved in: /out/hf/v5-20261121-003927/args.json",
        "  save_interval ................................... 4",
        "  iterations_to_skip .............................. []",
        "num_iterations=1,",
        "save_steps=4.0,",
        "[Rank 0] (after 1 iterations) memory (MB) | allocated: 0.0 | max allocated: 0.0 | reserved: 0.0 | max reserved: 0.0",
        " loading distributed checkpoint from /models/mcore383 at iteration 1",
        "  successfully loaded checkpoint from /models/mcore383 [ t 1/1, p 1/1 ] at iteration 0",
        "    save-checkpoint ................................: (8190.07, 8190.34)",
        "Setting rerun_state_machine.current_iteration to 0...",
        "{'eval_loss': 0.69}",
        "{'loss': 0.5}",
        "I wrote a function that prints The training of Epoch soon",
        "",
    ],
)
def test_line_that_only_looks_like_it_says_nothing(text: str) -> None:
    assert list(swift_log.read_line(text, None)) == []


@pytest.mark.parametrize(
    "text",
    [
        "Loading:  50%|#    | 60/119 [00:00<00:00, 2927.03it/s]",
        "Saving: 100%|####| 4/4 [00:00<00:00, 1343.79it/s]",
        "100%",
        "",
    ],
)
def test_other_bars_say_nothing(text: str) -> None:
    assert list(swift_log.read_bar(text, None)) == []


def test_bar_of_data_preparation_is_its_progress() -> None:
    (fact,) = swift_log.read_bar(
        "Map (num_proc=2):  50%|█████     | 256/512 [00:00<00:00, 1957.82 examples/s]", None
    )

    assert isinstance(fact, PhaseMarked) and fact.phase == "data_prep"


def test_loss_that_is_nan_costs_no_number_of_the_step() -> None:
    (fact,) = swift_log.read_line(
        "{'loss': nan, 'grad_norm': inf, 'learning_rate': 1e-05, 'iteration': '3/12'}", 1
    )

    assert isinstance(fact, Iteration) and (fact.iteration, fact.total) == (3, 12)
    assert repr(fact.metrics) == "(('loss', nan), ('grad_norm', inf), ('learning_rate', 1e-05))"


def test_torn_dictionary_gives_the_numbers_that_are_whole() -> None:
    (fact,) = swift_log.read_line(
        "{'loss': 0.5, 'iteration': '3/12', 'logps/ch}{'loss': 0.4, 'grad_norm': -nan}", 1
    )

    assert isinstance(fact, Iteration) and dict(fact.metrics)["loss"] in (0.4, 0.5)


def test_megatron_line_gives_every_number_of_it() -> None:
    line = next(
        line
        for line in (LOGS / "megatron_dpo_3.12.6.log").read_text().splitlines()
        if "iteration        1/" in line
    )

    (fact,) = swift_log.read_line(line, None)

    assert isinstance(fact, Iteration)
    numbers = dict(fact.metrics)
    assert (numbers["elapsed time per iteration (ms)"], numbers["loss"], numbers["grad norm"]) == (
        520.8,
        0.6931472,
        1.429,
    )
    assert (numbers["loss scale"], numbers["number of skipped iterations"], numbers["consumed samples"]) == (
        1.0,
        0,
        8,
    )
    assert numbers["global batch size"] == 8 and numbers["number of nan iterations"] == 0


def test_megatron_line_with_nan_in_capitals_and_throughput_gives_both() -> None:
    # Megatron-LM core_r0.13 (source): {:.6E} of nan is NAN, {:.3f} is nan
    line = (
        " [2026-11-21 00:17:14] iteration        7/       8 | consumed samples:           56 | elapsed time per iteration "
        "(ms): 520.8 | throughput per GPU (TFLOP/s/GPU): 412.3 | learning rate: 9.657458E-05 | global batch size:     8 "
        "| lm loss: NAN | loss scale: 1.0 | grad norm: nan "
        "| number of skipped iterations:   0 | number of nan iterations:   1 |"
    )

    (fact,) = swift_log.read_line(line, None)

    assert isinstance(fact, Iteration)
    numbers = dict(fact.metrics)
    assert math.isnan(numbers["lm loss"]) and math.isnan(numbers["grad norm"])
    assert numbers["throughput per GPU (TFLOP/s/GPU)"] == 412.3


def test_two_dictionaries_in_one_line_are_one_step() -> None:
    (fact,) = swift_log.read_line("[{'loss': 0.1, 'iteration': '3/12'}, {'loss': 0.2}]", None)

    assert isinstance(fact, Iteration) and fact.iteration == 3


def test_save_behind_a_bar_on_the_same_line_is_seen() -> None:
    text = "Train:  50%|██  | 4/8 [00:01<00:01,  2.42it/s][INFO:swift] Saving model checkpoint to /out/checkpoint-4"

    step, saved = swift_log.read_line(text, None)

    assert isinstance(step, Iteration) and step.iteration == 4
    assert isinstance(saved, SaveFinished) and saved.path == "/out/checkpoint-4"


def test_number_of_any_length_is_no_error() -> None:
    assert list(swift_log.read_line(f" iteration {'9' * 5000}/ 8 | lm loss: 1.2.3 |", None)) == []


def test_line_of_a_hundred_thousand_beginnings_of_a_dict_is_read_once() -> None:
    """With a search from each of them this would take minutes."""
    assert list(swift_log.read_line("{'loss': " * 100_000, 0)) == []
