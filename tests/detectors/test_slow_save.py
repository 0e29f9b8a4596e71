"""A save that is under way: slow, hung or killed, and in the report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diag.model.observations import (
    CgroupMemory,
    Iteration,
    RunEnded,
    SaveFinished,
    SaveStarted,
)
from diag.outputs.report import report
from diag.outputs.view.sentence import job_sentence
from tests.detectors.ckptfacts import GIB, ROOT, folder, ids, seen
from tests.facts import ALL_REDUCE, TRAIN, Story

# --- the save under way
# --------------------------------------------------------------------------------------


def saves(story: Story, *durations: float) -> None:
    for number, seconds in enumerate(durations, 1):
        story.tell(Iteration(None, 100 * number, 9999, "it"), SaveStarted(None, "saving", "/save"))
        story.wait(seconds)
        story.tell(SaveFinished(None, "saved", "/save"))
        story.wait(1)


def test_save_that_takes_five_times_as_long_as_any_before_it_is_called_slow_until_it_ends() -> None:
    story = Story()
    saves(story, 20, 25, 22)
    story.tell(Iteration(None, 400, 9999, "it"), SaveStarted(None, "saving", "/save"))
    story.wait(120)
    early = ids(story)
    story.tell(seen(folder(300), root="/save"))
    story.wait(20)
    slow = story.the("slow")
    story.tell(SaveFinished(None, "saved", "/save"))
    story.wait(2)

    assert early == set()
    assert (slow.klass, slow.severity.value) == ("checkpoint_save", "warning")
    assert "the longest of 3 before it took 25 s" in slow.summary
    assert ids(story) == set()


@pytest.mark.parametrize("earlier", [(), (20.0, 25.0), (100.0, 30.0, 30.0)])
def test_long_save_is_not_called_slow_by_too_few_or_by_longer_ones_before(earlier: tuple[float, ...]) -> None:
    story = Story()
    saves(story, *earlier)
    story.tell(Iteration(None, 900, 9999, "it"), SaveStarted(None, "saving", "/save"))
    story.wait(400)

    assert "slow" not in ids(story)


def test_save_whose_folder_grows_is_not_hung_though_no_rank_here_moves_and_one_that_stands_is_with_its_bytes_told() -> (
    None
):
    # other nodes write: only the folder on shared storage tells of it
    grows, stands = Story(), Story()
    write = (
        *TRAIN,
        "save_checkpoint /env/megatron/training/checkpointing.py:400",
        "write /env/torch/serialization.py:900",
    )
    for story in (grows, stands):
        story.tell(Iteration(None, 100, 9999, "it"), SaveStarted(None, "saving", "/save"))
        for number in range(1, 60):
            size = number * GIB if story is grows else GIB
            story.tell(
                seen(
                    replace(folder(100), path="/save/iter_0000100", size_bytes=size, changed_at=1000.0),
                    root="/save",
                )
            )
            story.still(5.0, {0: write, 1: ALL_REDUCE})

    assert ids(grows) == set()
    assert stands.hang().klass == "checkpoint_io"
    assert any(
        item.kind == "checkpoint" and "1 GiB on disk, and not a byte more for" in item.excerpt
        for item in stands.hang().evidence
    )
    save = grows.engine.job.saves.log.current
    assert save is not None and save.bytes_per_second == pytest.approx(GIB / 6)


def test_report_has_the_save_under_way_in_numbers_and_in_words_and_none_afterwards() -> None:
    story = Story()
    saves(story, 20)
    story.tell(Iteration(None, 400, 9999, "it"), SaveStarted(None, "saving", "/save"))
    for size in (GIB, 3 * GIB):
        story.tell(seen(replace(folder(400), path="/save/iter_0000400", size_bytes=size), root="/save"))
        story.wait(4)
    document = report(story.engine)
    story.tell(SaveFinished(None, "saved", "/save"))

    save = document["job"]["save"]
    assert (save["seconds"], save["usual_seconds"], save["written_bytes"], save["asynchronous"]) == (
        8.0,
        20.0,
        3 * GIB,
        False,
    )
    assert "saving for 8 s (usually 20 s), 3 GiB written, 512 MiB/s" in job_sentence(document)
    assert report(story.engine)["job"]["save"] is None


def test_kill_for_memory_in_a_save_is_read_before_what_it_left() -> None:
    story = Story()
    story.tell(seen(), Iteration(None, 500, 1500, "500/1500"))
    story.wait(5)
    story.tell(SaveFinished(None, "saved", f"{ROOT}/checkpoint-500"), seen(folder(500, at=story.now)))
    story.tell(Iteration(None, 1000, 1500, "1000/1500"))
    story.tell(SaveStarted(None, "saving checkpoint", ROOT))
    story.wait(4)
    left = seen(
        folder(500),
        folder(1000, ".metadata", at=story.now, files=3),
        tracker=("last-checkpoint", "checkpoint-1000"),
    )
    story.tell(CgroupMemory(1, 2, "/pod", 9 * GIB, 9 * GIB, 9 * GIB, 0), left)
    story.wait(4)
    story.tell(CgroupMemory(1, 2, "/pod", 4 * GIB, 9 * GIB, 9 * GIB, 1))
    story.exit(1, signal=9)
    story.wait(5)
    story.exit(0, signal=15)
    story.tell(left, RunEnded(None, 1))
    story.wait(3)

    read = [finding.id for finding in story.findings()]

    assert read == ["host-oom", "rank-died", "checkpoint-corrupt", "checkpoint-missing"]
