"""The phase that the stacks tell, of the ranks that live now."""

from __future__ import annotations

from diag.model import Placement
from diag.model.observations import Iteration, PhaseMarked, RankFound, RunStarted
from diag.outputs.report import report
from tests.facts import ALL_REDUCE, SLEEP, TICKS, TRAIN, Story, found, pid_of, stack

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

    assert (story.engine.job.phase, story.engine.job.saves.log.count) == ("steady", 1)


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


def test_training_stack_ends_a_loading_that_was_only_guessed_and_none_that_the_log_marks() -> None:
    """The first that is found of a launcher which is slow to start may be a process without a group."""
    story = silent(world=0)
    story.tell(RankFound(0, Placement(0, 0, 1, "node-0", pid_of(0), TICKS), "python train.py", False))
    assert story.engine.job.phase == "model_load"

    story.tell(found(0), found(1), stack(1, story.now, ALL_REDUCE))
    assert story.engine.job.phase == "training"

    marked = Story([], world=2)
    marked.tell(PhaseMarked(None, "model_load", "building GPT model ..."), stack(1, marked.now, ALL_REDUCE))
    assert marked.engine.job.phase == "model_load"


# --- what people are told


def said(story: Story) -> tuple[str, str]:
    job = report(story.engine)["job"]
    return job["state"], job["phase"]


def silent(world: int = 2) -> Story:
    """Ranks of a launcher whose log and stacks tell no phase."""
    story = Story([], world=world)
    story.tell(stack(0, story.now, SLEEP))
    return story


def test_start_that_nothing_shows_is_believed_for_ten_minutes() -> None:
    story = silent()
    assert said(story) == ("starting", "rendezvous")

    story.wait(3 * 3600.0)

    assert said(story) == ("running", "not_known")
    assert "phase not known" in report(story.engine)["sentence"]


def test_ranks_that_have_a_process_group_are_in_no_rendezvous() -> None:
    story = silent(world=0)
    place = Placement(0, 0, 2, "node-0", pid_of(0), TICKS, launcher="group")
    story.tell(RankFound(0, place, "python train.py", True, 1))

    assert said(story) == ("starting", "not_known")


def test_process_without_ranks_is_in_no_known_phase() -> None:
    story = silent(world=0)
    story.tell(RankFound(0, Placement(0, 0, 1, "node-0", pid_of(0), TICKS), "python train.py", False))

    assert said(story) == ("starting", "not_known")


def test_phase_of_a_job_that_ran_before_diag_came_is_not_known() -> None:
    story = Story([], world=0)
    story.tell(RunStarted(None, ("python", "train.py"), 999, "node-0", 2, "", True), found(0), found(1))

    assert said(story) == ("running", "not_known")


def test_phase_that_the_log_marks_is_known_for_as_long_as_it_lasts() -> None:
    story = silent()
    story.tell(PhaseMarked(None, "model_load", "[INFO:swift] Loading the model"))

    story.wait(3 * 3600.0)

    assert said(story) == ("starting", "model_load")


def test_phase_that_stacks_show_is_known() -> None:
    story = Story([], world=2)
    story.tell(stack(0, story.now, ALL_REDUCE), stack(1, story.now, ALL_REDUCE))

    assert said(story) == ("running", "training")
