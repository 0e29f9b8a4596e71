"""What each fault does, on one rank of the small job: nothing is waited for but the job's own output."""

import os
import re
import signal
import time
from pathlib import Path

import pytest

from .conftest import Start

pytestmark = pytest.mark.matrix  # what they do to a job; `make matrix` lets diag look at it


def test_data_worker_killed(rank: Start) -> None:
    run = rank("data-worker-killed:rank=0")

    pid = re.search(r"pid (\d+)", run.struck())

    assert run.end() == 1
    assert pid is not None
    assert f"DataLoader worker (pid {pid[1]}) is killed by signal: Killed" in run.output.replace("(s)", "")


def test_lock_deadlock(rank: Start) -> None:
    run = rank("lock-deadlock:rank=0")

    run.struck()

    stack = run.stack()
    assert '"metrics-flush"' in stack
    assert "_lock_deadlock.<locals>.flush" in stack


def test_gil_held_keeps_every_other_thread_out_for_its_seconds(rank: Start) -> None:
    run = rank("gil-held:rank=0,seconds=1")

    run.struck()

    assert "_gil_held" in run.stack()
    assert run.end() == 0, run.output


def test_skip_collective_is_in_code_of_its_own_until_released(rank: Start) -> None:
    run = rank("skip-collective:rank=0,step=1")

    run.struck()

    assert "'iteration': '1/3'" in run.output
    assert "_skip_collective" in run.stack()
    run.release()
    assert run.end() == 0, run.output


def test_sigstop(rank: Start) -> None:
    run = rank("sigstop:rank=0")

    run.struck()

    _, status = os.waitpid(run.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    os.kill(run.pid, signal.SIGCONT)
    assert run.end() == 0, run.output


def test_rank_crash(rank: Start) -> None:
    run = rank("rank-crash:rank=0,step=1")

    run.struck()

    assert run.end() == 1
    assert "RuntimeError: fault rank-crash: raised on purpose in rank 0 at step 1" in run.output


def test_slow_rank_is_slower_by_its_factor(rank: Start) -> None:
    run = rank("slow-rank:rank=0,step=1,factor=5")

    line = run.struck()

    step = re.search(r"step_seconds=([0-9.]+)", line)
    assert step is not None
    run.until("'iteration': '3/3'")
    struck = re.search(r"at=([0-9.]+)", line)
    assert struck is not None
    # Steps 1 and 2 each sleep four times the quickest step before they begin; the quickest may get quicker
    # yet.
    assert time.time() - float(struck[1]) >= 4 * float(step[1])


def test_save_stall_is_in_megatrons_writer_until_released(rank: Start, tmp_path: Path) -> None:
    run = rank("save-stall:rank=0", "--save-steps", "3")
    metadata = tmp_path / "out" / "checkpoint-3" / "iter_0000003" / ".metadata"

    line = run.struck()

    assert "__0_0.distcp" in line
    assert "write_preloaded_data_multiproc" in run.stack()
    assert not metadata.exists()
    run.release()
    assert run.end() == 0, run.output
    assert metadata.exists()


def test_slow_save_goes_on_and_leaves_a_whole_checkpoint(rank: Start, tmp_path: Path) -> None:
    run = rank("slow-save:rank=0,seconds=1", "--save-steps", "3")

    run.struck()

    assert run.end() == 0, run.output
    assert "Successfully saved Megatron model weights" in run.output
    assert {path.suffix for path in (tmp_path / "out" / "checkpoint-3" / "iter_0000003").glob("__*")} == {
        ".distcp"
    }


def test_disk_full_is_the_kernels_own_word_to_megatrons_writer_and_no_other_process_sees_that_disk(
    rank: Start, tmp_path: Path
) -> None:
    run = rank("disk-full:rank=0", "--save-steps", "3")

    run.struck()

    assert run.end() != 0
    assert re.search(
        r"\[Errno 28\] No space left on device|inline_container\.cc:\d+\] \. unexpected pos", run.output
    )
    shards = tmp_path / "out" / "checkpoint-3" / "iter_0000003"
    assert not (shards / "__0_0.distcp").exists() and not (shards / ".metadata").exists()
    assert not Path("/proc/self/mountinfo").read_text().count(str(tmp_path))


def test_save_killed_leaves_half_a_file_and_no_metadata(rank: Start, tmp_path: Path) -> None:
    run = rank("save-killed:rank=0", "--save-steps", "3")

    run.struck()

    # not its output's end: Megatron's Manager process outlives a killed rank
    assert run.process.wait() == -signal.SIGKILL
    shards = tmp_path / "out" / "checkpoint-3" / "iter_0000003"
    assert (shards / "__0_0.distcp").stat().st_size == 300_000
    assert not (shards / ".metadata").exists()


def test_shm_full_fails_the_worker_and_leaves_the_machines_shm_alone(rank: Start) -> None:
    free = os.statvfs("/dev/shm").f_bavail
    run = rank("shm-full:rank=0")

    run.struck()

    run.until("unable to allocate shared memory(shm)")
    assert not Path("/dev/shm/left-by-another-job").exists()
    assert os.statvfs("/dev/shm").f_bavail > free // 2


def test_host_oom_is_killed_by_the_kernel_or_refused_by_its_limit(rank: Start) -> None:
    run = rank("host-oom:rank=0", "--save-steps", "3")

    line = run.struck()

    status = run.process.wait()  # not its output's end: Megatron's Manager process outlives a killed rank
    group = re.search(r"cgroup=(\S+)", line)
    if group is None:  # this user may not make cgroups
        assert status == 1
        run.until("can't allocate memory")
        return
    assert status == -signal.SIGKILL
    counters = [Path(group[1], name) for name in ("memory.oom_control", "memory.events")]
    text = "".join(path.read_text() for path in counters if path.exists())
    assert re.search(r"^oom_kill [1-9]", text, re.MULTILINE)


def test_fd_exhaust_ends_in_the_genuine_error(rank: Start) -> None:
    run = rank("fd-exhaust:rank=0")

    assert "errno=24" in run.struck()

    assert run.end() == 1
    assert "Too many open files" in run.output


def test_preprocess_on_rank_0_moves_and_ends(rank: Start) -> None:
    run = rank("preprocess-on-rank-0:seconds=1")

    run.struck()

    assert run.end() == 0, run.output
    assert re.search(r"Map: +\d+%\| \d+/2000", run.output)


def test_long_compile_runs_a_compiler_and_ends(rank: Start) -> None:
    run = rank("long-compile:rank=0,seconds=1")

    assert "compiler=/" in run.struck()

    assert run.end() == 0, run.output
    assert "'iteration': '3/3'" in run.output


def test_exception_then_teardown_hangs_after_its_traceback(rank: Start) -> None:
    run = rank("exception-then-teardown:rank=0")

    run.struck()
    run.until("RuntimeError: fault exception-then-teardown")

    assert run.process.poll() is None
    run.release()
    assert run.end() == 1


def test_rendezvous_is_not_entered_until_released(rank: Start) -> None:
    run = rank("rendezvous:rank=0")

    run.struck()

    assert "[INFO:swift]" not in run.output
    run.release()
    assert run.end() == 0, run.output
