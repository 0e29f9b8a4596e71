"""What the last message says of a run: how far it came, and from where it can go on."""

from __future__ import annotations

from dataclasses import replace

from diag.model.observations import Iteration, RunEnded, SaveStarted
from diag.outputs.notify.outcome import outcome
from tests.detectors.ckptfacts import ROOT, folder, seen
from tests.facts import Story


def test_last_whole_checkpoint_is_named_with_the_flags_and_not_the_one_cut_off() -> None:
    story = Story()
    story.tell(
        Iteration(None, 4, 20, "it"),
        seen(folder(2)),
        Iteration(None, 6, 20, "it"),
        SaveStarted(None, "saving"),
    )
    story.tell(seen(folder(2), folder(6)))
    story.exit(0, signal=9)
    story.tell(seen(folder(2), folder(6)), RunEnded(None, 137))
    story.wait(2)

    found = outcome(story.engine)

    assert found["step"] == "iteration 6 of 20"
    path = f"{ROOT}/checkpoint-2"
    assert (found["checkpoint"]["path"], found["checkpoint"]["iteration"]) == (path, 2)
    assert found["checkpoint"]["flags"].startswith(f"--mcore_model {path} --finetune false")


def test_checkpoint_that_misses_a_file_is_none_to_go_on_from() -> None:
    story = Story()
    story.tell(seen(folder(2, "iter_0000002/.metadata"), replace(folder(4), damaged=("model: cut short",))))

    assert outcome(story.engine) == {"open": []}


def test_newest_whole_checkpoint_is_the_one() -> None:
    story = Story()
    story.tell(seen(folder(2), folder(4), folder(3)))

    assert outcome(story.engine)["checkpoint"]["iteration"] == 4
