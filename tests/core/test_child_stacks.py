"""What is kept of a rank's children, whose workers of every epoch are others."""

from __future__ import annotations

from tests.facts import TRAIN, Story, process, stack, tree

READS = (
    *TRAIN,
    "_worker_loop torch/utils/data/_utils/worker.py:300",
    "fetch torch/utils/data/_utils/fetch.py:50",
)


def test_stacks_of_workers_that_ended_with_their_epoch_are_forgotten_after_a_minute() -> None:
    story = Story([])
    for epoch in range(30):
        worker, helper = 5000 + epoch, 4000
        story.tell(tree(0, story.now, process(worker), process(helper)))
        story.tell(stack(0, story.now, READS, pid=worker), stack(0, story.now, READS, pid=helper))
        story.wait(120.0)

    assert set(story.engine.job.ranks[0].child_stacks) == {4000, 5029}


def test_stack_of_a_worker_that_died_a_moment_ago_is_kept_for_who_asks_what_it_was() -> None:
    story = Story([])
    story.tell(tree(0, story.now, process(5000), process(5001)))
    story.tell(stack(0, story.now, READS, pid=5000))
    story.wait(10.0)
    story.tell(tree(0, story.now, process(5001)), stack(0, story.now, READS, pid=5001))

    assert set(story.engine.job.ranks[0].child_stacks) == {5000, 5001}
