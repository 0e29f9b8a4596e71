"""rank-died: what it quotes is true. The last exception is quoted whoever knows it; what explains a death is
referred to."""

from __future__ import annotations

import pytest

from diag.detectors.last_words import _before_it, exceptions
from diag.detectors.signatures import SignatureDetector
from diag.model import Severity
from diag.model.observations import (
    CudaErrorRaised,
    Iteration,
    KernelLine,
    PhaseMarked,
    RunEnded,
    SaveFinished,
    SourceFailed,
)
from diag.sources.logs.line_facts import read_text
from tests.facts import TRAIN, Story, stack

# CPython 3.11, 2026-11-23
STOP = (
    "Traceback (most recent call last):",
    '  File "/app/train.py", line 5, in <module>',
    "    batch = next(batches)",
    "            ^^^^^^^^^^^^^",
    "StopIteration",
)
# torch 2.13.0, RANK=1 WORLD_SIZE=2 and an address without a route, 2026-11-23
UNREACHABLE = (
    "Traceback (most recent call last):",
    '  File "/app/store.py", line 3, in <module>',
    "    TCPStore(sys.argv[1], int(sys.argv[2]), 2, False, timeout=datetime.timedelta(seconds=int(sys.argv[3])))",
    "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of (10.9.9.9, 29500). "
    "The client socket has failed to connect to 94.85.0.0:1529 (errno: 101 - Network is unreachable).",
)
# libstdc++ 12 below torch 2.13.0, a std::thread that nobody joined, 2026-11-23
ABORTED = "terminate called without an active exception"
# A Triton store out of bounds, torch 2.11 and CUDA 13 on an H200
ILLEGAL = "RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered"


def says(story: Story, rank: int | None, *lines: str) -> None:
    for line in lines:
        story.tell(*read_text(line, "stderr", rank))


def dies(story: Story, rank: int, *, code: int | None = None, signal: int | None = None) -> None:
    story.exit(rank, code=code, signal=signal)
    story.wait(0.5)
    for other in range(story.world):
        if other != rank:
            story.exit(other, signal=15)
    story.tell(RunEnded(None, 1))
    story.wait(5)


@pytest.mark.parametrize("rank", [1, None], ids=["own-output", "shared-output"])
def test_exception_that_no_rule_knows_is_quoted_also_where_the_line_has_no_rank(rank: int | None) -> None:
    story = Story()

    says(story, rank, "step 1 of 8", *STOP)
    dies(story, 1, code=1)

    assert 'it printed: "StopIteration"' in story.the("rank-died").summary


@pytest.mark.parametrize(
    "bar",
    [
        " 38%|███▊      | 3/8 [00:00<00:01,  3.31it/s]",
        " 37%|###       | 3/8 ",
        "Train:  38%|███▊      | 3/8 [00:00<00:01, loss=0.7]",
    ],
)
@pytest.mark.parametrize("behind", [0, 4])
def test_exception_behind_a_bar_that_nobody_ended_is_quoted(bar: str, behind: int) -> None:
    story = Story()
    lines = list(STOP)
    lines[behind] = bar + lines[behind]

    says(story, None, *lines)
    dies(story, 1, code=1)

    assert 'it printed: "StopIteration"' in story.the("rank-died").summary


def test_bar_with_a_word_of_the_program_behind_it_stays_one_line() -> None:
    line = " 38%|███▊      | 3/8 [00:00<00:01,  3.31it/s]{'loss': 0.7}"

    assert next(iter(read_text(line, "stderr", None))).text == line  # type: ignore[attr-defined]


def test_of_an_exception_in_a_thread_and_of_one_that_is_ignored_nothing_is_quoted() -> None:
    # CPython 3.11
    ignored = ("Exception ignored in: <function Pool.__del__ at 0x7f2c>", *STOP)
    thread = ("Exception in thread Thread-1 (poll):", *STOP)

    assert exceptions([*ignored, "next", *thread]) == []
    assert exceptions([*ignored, *STOP]) == ["StopIteration"]


def test_launchers_own_exception_is_not_taken_for_the_ranks() -> None:
    # torch 2.13.0, elastic agent
    launcher = (
        "Traceback (most recent call last):",
        '  File "/opt/venv/bin/torchrun", line 8, in <module>',
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    )

    assert exceptions([*STOP, *launcher]) == ["StopIteration"]


def test_rank_whose_output_was_not_read_is_not_said_to_have_been_silent() -> None:
    unread, silent = Story(), Story()
    unread.tell(SourceFailed(1, "output", "standard output is a pipe", ""))
    says(silent, 1, "step 1 of 8")
    for story in (unread, silent):
        dies(story, 1, code=1)

    assert "none of its output was read" in unread.the("rank-died").summary
    assert 'its output holds no exception, and ends: "step 1 of 8"' in silent.the("rank-died").summary


def test_error_in_an_output_of_several_ranks_that_all_failed_is_not_laid_to_one() -> None:
    story = Story()

    says(story, None, *STOP)
    story.exit(1, code=1)
    story.exit(0, code=1)
    story.wait(5)

    assert 'the output that the ranks share shows: "StopIteration"' in story.the("rank-died").summary


def test_native_codes_last_word_is_quoted_with_the_text_of_its_exception() -> None:
    story = Story()

    says(
        story,
        1,
        "terminate called after throwing an instance of 'std::logic_error'",
        "  what():  basic_string: construction from null is not valid",
    )
    dies(story, 1, signal=6)

    assert "'std::logic_error': basic_string: construction from null" in story.the("rank-died").summary


def test_death_beside_a_gpu_fault_refers_to_it() -> None:
    story = Story()
    fault = CudaErrorRaised(1, "an illegal memory access was encountered", f"[rank1]: {ILLEGAL}")
    story.tell(fault)
    says(story, 1, ABORTED)
    dies(story, 1, signal=6)

    died = story.the("rank-died")
    assert story.the("gpu-fault").ranks == died.ranks == (1,)
    assert "gpu-fault" in died.advice and "/dev/shm" not in died.advice
    assert story.findings()[0].id == "gpu-fault", "the cause is read first"


def test_death_of_another_rank_than_the_one_with_the_gpu_fault_keeps_its_own_words() -> None:
    story = Story(world=3)
    says(story, 0, *STOP)
    story.exit(0, code=1)
    story.wait(5)
    story.tell(CudaErrorRaised(1, "an illegal memory access was encountered", f"[rank1]: {ILLEGAL}"))
    dies(story, 1, code=1)

    assert "StopIteration" in story.the("rank-died").summary


def at_the_end(*, saved: bool = True, marked: bool = False) -> Story:
    story = Story()
    for step in range(1, 9):
        story.tell(Iteration(0, step, 8, f"{step}/8"))
        story.wait(1)
    if saved:
        story.tell(SaveFinished(0, "Saving model checkpoint to /out/checkpoint-8", "/out/checkpoint-8"))
    if marked:
        story.tell(
            PhaseMarked(0, "teardown", "[INFO:swift] End time of running main: 2026-11-20 23:29:22.296012")
        )
    story.wait(2)
    return story


@pytest.mark.parametrize(
    "story", [at_the_end(), at_the_end(saved=False, marked=True)], ids=["saved", "marked"]
)
def test_crash_at_the_exit_after_a_finished_training_is_told_as_one(story: Story) -> None:
    says(story, 1, ABORTED)
    dies(story, 1, signal=6)

    died = story.the("rank-died")
    assert (died.cause, died.severity) == ("crash_at_exit", Severity.WARNING)
    assert "after the training had finished" in died.summary and "The training is complete" in died.advice


def test_crash_at_the_exit_is_known_by_the_stack_too() -> None:
    story = at_the_end()
    story.tell(stack(1, story.now, TRAIN))
    story.tell(
        stack(1, story.now, ("_exitfunc python3.11/weakref.py:667", "join python3.11/threading.py:1112"))
    )
    dies(story, 1, signal=11)

    assert story.the("rank-died").cause == "crash_at_exit"


@pytest.mark.parametrize(
    "story", [at_the_end(saved=False), Story()], ids=["last-save-is-missing", "at-the-start"]
)
def test_abort_before_the_training_is_complete_stays_a_crash(story: Story) -> None:
    says(story, 1, ABORTED)
    dies(story, 1, signal=6)

    died = story.the("rank-died")
    assert (died.cause, died.severity) == ("signal_6", Severity.CRITICAL)


@pytest.mark.parametrize("rank", [1, None], ids=["own-output", "shared-output"])
def test_rank_that_could_not_reach_the_rendezvous_lost_no_connection(rank: int | None) -> None:
    story = Story()

    says(story, rank, *UNREACHABLE)
    dies(story, 1, code=1)

    reached, died = story.the("rendezvous-failure"), story.the("rank-died")
    assert "could not reach 10.9.9.9:29500" in reached.summary and reached.cause == "connect_timeout"
    assert "lost a connection" not in died.advice and "rendezvous-failure" in died.advice


def test_rendezvous_that_one_rank_could_not_reach_is_no_cause_where_another_failed_of_its_own() -> None:
    story = Story()

    says(story, None, *STOP, *UNREACHABLE)
    story.exit(0, code=1)
    story.exit(1, code=1)
    story.wait(5)

    assert "rendezvous-failure" not in [finding.id for finding in story.findings()]


# Linux 6.18, 2026-11-23, of another job's process on the machine
SEGFAULT = ("[ 2702.748399] python3.11[{}]: segfault at 8 ip 00007f19c917c1ac sp 00007ffe3c5b5a10 error 4 in "
            "libpython3.11.so.1.0[7f19c9000000+1c0000] likely on CPU 1 (core 1, socket 0)")  # fmt: skip


@pytest.mark.parametrize(
    ("pid", "host_pids", "signal", "ours"),
    [
        (4242, True, None, False),
        (4242, False, None, False),
        (4242, True, 11, False),
        (4242, False, 11, True),
        (1001, True, 11, True),
    ],
)
def test_kernels_word_of_a_segfault_counts_where_the_process_is_the_jobs(
    pid: int, host_pids: bool, signal: int | None, ours: bool
) -> None:
    story = Story()
    story.tell(KernelLine(None, SEGFAULT.format(pid), host_pids))
    dies(story, 1, code=None if signal else 1, signal=signal)

    detector = SignatureDetector()
    detector.observe(story.now - 5, KernelLine(None, SEGFAULT.format(pid), host_pids))
    assert bool(list(detector.check(story.now, story.engine.job))) is ours


def test_shell_s_word_for_a_crash_is_not_taken_for_the_program_s_last() -> None:
    lines = [
        "step 3",
        "Memory access fault by GPU node-1. Reason: Page not present.",
        "Aborted (core dumped)",
    ]

    assert _before_it(lines, lines[-1]) == lines[1]
    assert _before_it(["step 3", lines[-1]], lines[-1]) == ""
