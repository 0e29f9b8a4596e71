"""Words of errors in what a job prints of its data: no finding, neither while it lives nor when it dies of
something else."""

from __future__ import annotations

import pytest

from diag.model.observations import RunEnded
from diag.sources.logs.line_facts import read_text
from tests.facts import Story

# Dolly's users, 2023; torch 2.13; CPython: as they stand in data sets of programming questions, one line each
QUOTED = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 984.00 MiB (GPU 0; 47.50 GiB total capacity; 22.15 GiB "
    "already allocated; 68.88 MiB free; 22.16 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try",
    "RuntimeError: CUDA error: device-side assert triggered",
    "OSError: [Errno 28] No space left on device",
    "MemoryError",
    "OSError: [Errno 24] Too many open files: 'x'",
    "RuntimeError: DataLoader worker (pid 1234) is killed by signal: Bus error. It is possible that dataloader's workers are "
    "out of shared memory. Please try to raise your shared memory limit.",
    "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge",
    "size mismatch for a.weight: copying a param with shape torch.Size([4, 2]) from checkpoint",
    "OSError: [Errno 30] Read-only file system: '/out/x'",
    "AssertionError: Rank 13: found NaN in local grad norm in backward pass before data-parallel communication collective.",
    "my run says: found NaN in local forward loss calculation",
)
REAL = (
    "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 16.00 GiB. GPU 1 has a total capacity of 139.80 GiB "
    "of which 10.14 GiB is free. Including non-PyTorch memory, this process has 129.65 GiB memory in use. Of the allocated "
    "memory 128.09 GiB is allocated by PyTorch, and 17.97 MiB is reserved by PyTorch but unallocated."
)


def prints(story: Story, *lines: str, rank: int | None = None) -> None:
    for line in lines:
        story.tell(*read_text(line, "stderr", rank))


def steps(story: Story, first: int, last: int) -> None:
    for number in range(first, last + 1):
        loss = 0.69 - number * 1e-4
        prints(
            story,
            f"{{'loss': {loss:.6f}, 'grad_norm': 1.1, 'learning_rate': 1e-06, 'iteration': '{number}/1000'}}",
        )
        story.wait(1)


def sample(story: Story, text: str) -> None:
    """ms-swift 4.6.0 prints the first sample of the data, with its line feeds."""
    prints(story, "[INFO:swift] [INPUT] <|im_start|>user", "Why do I get", text, "in my run?<|im_end|>")


def dies(story: Story, *lines: str) -> None:
    prints(story, *lines)
    story.exit(1, code=1)
    story.wait(2)
    story.exit(0, signal=15)
    story.tell(RunEnded(None, 1))
    story.wait(3)


@pytest.mark.parametrize("text", QUOTED)
def test_error_in_a_sample_of_the_data_is_none_of_a_job_that_trains_on(text: str) -> None:
    story = Story()
    sample(story, text)
    story.wait(20)
    steps(story, 1, 30)

    assert story.findings() == []


@pytest.mark.parametrize("text", QUOTED)
def test_error_in_a_sample_of_the_data_is_not_what_a_rank_dies_of_that_says_something_else(text: str) -> None:
    story = Story()
    sample(story, text)
    story.wait(20)
    dies(
        story,
        "[rank1]: Traceback (most recent call last):",
        '[rank1]:   File "/app/train.py", line 3, in main',
        "[rank1]: ValueError: 16 heads cannot be divided by 3",
    )

    assert [finding.id for finding in story.findings()] == ["rank-died"]


@pytest.mark.parametrize("quoted", [QUOTED[0], REAL.removeprefix("[rank1]: ")])
def test_error_that_steps_came_after_does_not_hide_the_one_that_ends_the_job(quoted: str) -> None:
    story = Story()
    sample(story, quoted)
    steps(story, 1, 20)
    dies(story, REAL)

    oom = story.the("cuda-oom")
    assert (oom.ranks, oom.severity.value) == ((1,), "critical")
    assert "after iteration 20: it asked for 16 GiB of GPU 1" in oom.summary


def test_survived_shortage_of_files_is_no_more_than_a_warning() -> None:
    story = Story()
    prints(story, "Traceback (most recent call last):", '  File "/app/cache.py", line 3, in put', QUOTED[4])
    steps(story, 1, 5)

    assert story.the("fd-limit").severity.value == "warning"


def test_full_disk_is_told_after_a_hundred_words_about_full_disks() -> None:
    story = Story()
    for _ in range(100):
        sample(story, QUOTED[2])
    steps(story, 1, 130)
    dies(story, "[rank1]: OSError: [Errno 28] No space left on device: '/out/checkpoint-4/optimizer.pt'")

    assert (story.the("disk-full").ranks, story.the("disk-full").severity.value) == ((1,), "critical")


def test_error_without_a_prefix_is_believed_under_its_traceback_beside_the_words_of_the_main_process() -> (
    None
):
    # megatron-core 0.16.1: the writer is a child, whose traceback has no prefix
    story = Story()
    steps(story, 1, 4)
    dies(
        story,
        "Traceback (most recent call last):",
        '  File "/app/writer.py", line 66, in run',
        "OSError: [Errno 28] No space left on device",
        "[rank1]: RuntimeError: the writer has ended",
    )

    assert story.the("disk-full").severity.value == "critical"


def test_error_that_a_program_prints_itself_before_it_ends_is_believed_beside_a_peer_that_lost_it() -> None:
    story = Story()
    steps(story, 1, 4)
    prints(story, REAL.removeprefix("[rank1]: "), rank=1)
    story.exit(1, code=1)
    prints(
        story,
        "[rank0]: RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:17577",
    )
    story.wait(1)
    story.exit(0, code=1)
    story.wait(3)

    assert story.the("cuda-oom").ranks == (1,)
