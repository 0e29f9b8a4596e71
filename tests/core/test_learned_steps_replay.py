"""Plain loops recorded live, whose lines no reader of a trainer knows: replay learns their steps."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from diag.engine.replay import replay
from diag.outputs.report import report

CAPTURES = Path(__file__).parents[1] / "captures"
LOOPS = CAPTURES / "plain-loops"


@pytest.mark.parametrize(
    ("name", "iteration", "words"),
    [
        ("text", 131, "iter 131"),
        ("json", 132, "step 132"),
        ("epoch-batch", 143, "batch 3 of epoch 7"),
        ("bar", 138, "step 138"),
    ],
)
def test_steps_of_a_plain_loop_are_learned_from_its_own_lines(name: str, iteration: int, words: str) -> None:
    engine = replay([LOOPS / f"{name}.jsonl.gz"])[0]
    document = report(engine)

    job = engine.job
    assert (job.iteration, document["job"]["step_words"]) == (iteration, words)
    assert words in document["sentence"]
    assert "steady" in {phase for _, phase in job.phases.history}
    assert job.progress.steps.counted > 60 and 0.2 < (job.progress.steps.median() or 0) < 0.6
    assert 0.3 < (job.progress.rhythm.p95() or 0) < 1.5
    assert list(engine.all_findings()) == []


def test_heartbeat_beside_a_training_that_prints_nothing_counts_no_steps() -> None:
    job = replay([LOOPS / "heartbeat.jsonl.gz"])[0].job

    assert (job.iteration, job.progress.log_moved_at) == (None, None)
    assert "steady" not in {phase for _, phase in job.phases.history}


@pytest.mark.parametrize("name", ["lines", "chatter", "heartbeat", "same", "download", "files"])
def test_lines_of_ranks_that_sleep_or_wait_count_no_steps(name: str) -> None:
    job = replay([CAPTURES / "printing" / f"{name}.jsonl.gz"])[0].job

    assert job.iteration is None and "steady" not in {phase for _, phase in job.phases.history}


def test_gpu_loop_that_prints_once_a_second_is_known_without_its_trainers_words(tmp_path: Path) -> None:
    """The lines of a run on two H200 in words that no reader knows; the loss never changes there."""
    run = CAPTURES / "h200-live" / "loop-slow"
    for path in run.glob("journal-*.jsonl.gz"):
        text = gzip.decompress(path.read_bytes()).decode()
        plain = re.sub(r" iteration +(\d+)/10000000 \| loss: 1.0 \| grad norm: 2.0 \|", r"iter \1 done", text)
        (tmp_path / path.name).write_bytes(gzip.compress(plain.encode()))

    job = replay([tmp_path])[0].job

    # 109 were made; the last lines have no growth that a timer would not have
    assert job.progress.step_words().startswith("iter ") and (job.iteration or 0) > 80
    assert job.phase == "steady"
