"""The phase that the stacks tell, of the ranks that live now."""

from __future__ import annotations

from diag.model import Placement
from diag.model.observations import Iteration, RankFound
from tests.facts import ALL_REDUCE, SLEEP, TRAIN, Story, pid_of, stack

SAVE = (*TRAIN, "save_checkpoint /app/megatron/training/checkpointing.py:500")


def steady() -> Story:
    story = Story([], world=2)
    story.tell(Iteration(None, 1, 10, "iteration 1/10"))
    return story


def test_stack_inside_a_save_begins_it_and_the_last_one_out_ends_it() -> None:
    story = steady()
    story.tell(stack(0, story.now, SAVE), stack(1, story.now, SAVE))
    assert story.engine.job.phase == "ckpt_save"

    story.tell(stack(0, story.now, ALL_REDUCE))
    assert story.engine.job.phase == "ckpt_save"
    story.tell(stack(1, story.now, ALL_REDUCE))
    assert story.engine.job.phase == "steady"


def test_stack_of_a_save_that_is_older_than_the_step_made_since_begins_no_other_save() -> None:
    story = steady()
    story.tell(stack(0, story.now, SAVE), stack(1, story.now, SAVE))
    story.wait(3.0)
    story.tell(Iteration(None, 2, 10, "iteration 2/10"))
    story.tell(stack(0, story.now, ALL_REDUCE))  # rank 1's next stack comes later

    assert (story.engine.job.phase, story.engine.job.save_log.count) == ("steady", 1)


def test_stack_of_a_save_that_came_before_the_line_of_the_step_before_it_counts() -> None:
    story = steady()
    story.tell(stack(0, story.now, SAVE))
    story.wait(0.3)
    story.tell(Iteration(None, 2, 10, "iteration 2/10"), stack(1, story.now, SAVE))

    assert story.engine.job.phase == "ckpt_save"


def test_rank_that_died_while_saving_saves_no_more() -> None:
    story = steady()
    story.tell(stack(0, story.now, SAVE), stack(1, story.now, ALL_REDUCE))
    story.exit(0, signal=9)
    story.tell(stack(1, story.now, ALL_REDUCE))

    assert story.engine.job.phase == "steady"


def test_rank_that_was_started_anew_saves_no_more() -> None:
    story = steady()
    story.tell(stack(0, story.now, SAVE))
    story.tell(RankFound(0, Placement(0, 0, 2, "node-0", pid_of(7), 5), "python train.py"))
    story.tell(stack(1, story.now, ALL_REDUCE))

    assert story.engine.job.phase == "training"  # of a new attempt, whose steps are yet to come


def test_training_stack_ends_a_rendezvous_that_no_line_ended() -> None:
    story = Story([], world=2)
    story.tell(stack(0, story.now, SLEEP))
    assert story.engine.job.phase == "rendezvous"

    story.tell(stack(1, story.now, ALL_REDUCE))
    assert story.engine.job.phase == "training"
