"""The log of saves, told by lines and stacks in the orders that real jobs have."""

from __future__ import annotations

from diag.model import Placement
from diag.model.observations import (
    Iteration,
    Observation,
    RankFound,
    RunEnded,
    RunStarted,
    SaveFinished,
    SaveStarted,
)
from diag.sources.logs.line_facts import read_text
from diag.state.job import JobState
from diag.state.saves import SaveLog

# ms-swift 4.6.0 with --async_save true on two gloo ranks, 2026-11-21: the order of its lines, shortened
ASYNC = """\
{'loss': 0.69314718, 'iteration': '4/12', 'elapsed_time': '1s'}
Saving:  25%|##5       | 1/4 [00:00<00:00,  8.81it/s]
[INFO:swift] Successfully saved `safetensors` model weights in `/out/v0-20261120-233814/checkpoint-4`.
{'loss': 0.69, 'iteration': '5/12', 'elapsed_time': '4s'}
{'loss': 0.69, 'iteration': '6/12', 'elapsed_time': '5s'}
{'loss': 0.69, 'iteration': '7/12', 'elapsed_time': '6s'}
[INFO:swift] Successfully saved Megatron model weights in `/out/v0-20261120-233814/checkpoint-4`.
"""


def told(job: JobState, text: str, at: float = 100.0) -> float:
    """A line a second; bars as bars."""
    for line in text.splitlines():
        at += 1.0
        for fact in read_text(line, "stderr", None, bar="%|" in line):
            job.observe(at, fact)
    return at


def job(*words: str) -> JobState:
    state = JobState()
    state.observe(99.0, RunStarted(None, ("megatron", "rlhf", *words), 1, "node-0", 1))
    state.observe(99.5, RankFound(0, Placement(0, 0, 1, "node-0", 10)))
    return state


def test_asynchronous_save_is_unwritten_until_the_line_that_comes_steps_later() -> None:
    state = job("--async_save", "true")
    head, tail = ASYNC.rsplit("[INFO:swift]", 1)

    at = told(state, head)
    before = state.saves.log.unwritten
    told(state, "[INFO:swift]" + tail, at)

    assert before is not None and before.iteration == 4
    assert state.saves.log.unwritten is None
    assert [(save.iteration, save.seconds, save.written) for save in state.saves.log.saves] == [
        (4, 1.0, 107.0)
    ]


def test_weights_and_safetensors_of_one_step_are_one_save_with_both_parts_in_its_time() -> None:
    # ms-swift 4.6.0 without --async_save: the Megatron weights come first
    state = job()
    state.observe(100.0, Iteration(None, 4, 12, "4/12"))
    state.observe(101.0, SaveStarted(None, "seen"))
    told(state, "[INFO:swift] Successfully saved Megatron model weights in `/out/checkpoint-4`.", 104.0)
    told(state, "Saving:  25%|##5       | 1/4 [00:00<00:00,  8.81it/s]", 105.0)
    told(state, "[INFO:swift] Successfully saved `safetensors` model weights in `/out/checkpoint-4`.", 108.0)

    (save,) = state.saves.log.saves
    assert (save.seconds, save.path, save_is_whole(state)) == (8.0, "/out/checkpoint-4", True)


def save_is_whole(state: JobState) -> bool:
    return state.saves.log.unwritten is None and state.saves.log.current is None


def test_megatron_names_its_root_in_every_line_and_each_save_is_still_its_own() -> None:
    # Megatron-LM core_r0.13, megatron/training/checkpointing.py
    state = job()
    for step in (500, 1000):
        state.observe(step + 0.0, Iteration(None, step, 2000, "it"))
        told(state, f"saving checkpoint at iteration    {step} to /save in torch_dist format", step + 1.0)
        told(
            state,
            f"  successfully saved checkpoint from iteration    {step} to /save [ t 1/1, p 1/1 ]",
            step + 5.0,
        )

    assert [(save.iteration, save.seconds) for save in state.saves.log.finished] == [(500, 4.0), (1000, 4.0)]


def test_scheduled_save_of_megatron_is_asynchronous() -> None:
    # Megatron-LM core_r0.13, megatron/training/checkpointing.py
    state = job()
    state.observe(1.0, Iteration(None, 4, 8, "it"))
    told(state, "saving checkpoint at iteration       4 to /save in torch_dist format", 2.0)
    told(state, "  scheduled an async checkpoint save at iteration       4 to /save", 3.0)
    state.observe(6.0, Iteration(None, 5, 8, "it"))

    assert state.saves.log.unwritten is not None


def test_save_of_which_only_the_end_was_told_has_no_duration() -> None:
    log = SaveLog()
    log.ended(20.0, 4, 15.0, "/out/checkpoint-4")

    assert [(save.told_by, save.seconds, save.after, save.written) for save in log.saves] == [
        ("end", None, 15.0, 20.0)
    ]


def test_save_that_the_job_died_in_is_cut_off_and_not_finished() -> None:
    facts: list[Observation] = [
        Iteration(None, 4, 8, "it"),
        SaveStarted(None, "s", "/save"),
        RunEnded(None, 1),
    ]
    state = job()
    for at, fact in enumerate(facts, 100):
        state.observe(float(at), fact)

    assert state.saves.log.saves[-1].cut_off and not state.saves.log.finished


def test_line_that_only_ends_a_save_twice_is_one_save() -> None:
    state = job()
    state.observe(1.0, Iteration(None, 4, 8, "it"))
    for at in (2.0, 2.5):
        state.observe(at, SaveFinished(None, "saved", "/out/checkpoint-4"))

    assert state.saves.log.count == 1


def test_node_whose_log_tells_of_no_save_does_not_wait_for_the_line_that_rank_0_prints_elsewhere() -> None:
    log = SaveLog()
    log.asynchronous = True
    for step in (4, 8):
        log.began(step * 10.0, step, step * 10.0, "stacks")
        log.ended(step * 10.0 + 2, step, step * 10.0)

    assert log.unwritten is None
