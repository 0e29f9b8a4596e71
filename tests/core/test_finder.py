"""Ranks among real processes: launchers, shells, workers, restarts, and what only looks like a rank."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diag.agent.rank_finder import _SHELL_SCANS, Found, RankFinder

# A launcher that does what it is told on stdin: [what, name, argv, environment]. It says "did NAME" on
# stdout.
LAUNCHER = """
import ctypes, json, os, signal, subprocess, sys
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER, as slurmstepd, tini and other inits: orphans come to it
started = {}
print("did launcher", os.getpid(), flush=True)
for line in sys.stdin:
    what, name, argv, env = json.loads(line)
    if what == "start":
        started[name] = subprocess.Popen(argv, env={**os.environ, **env}, stdin=subprocess.PIPE)
    elif what == "fork":  # and exec only when told
        r, w = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(w)
            os.read(r, 1)
            os.execve(argv[0], argv, {**os.environ, **env})
        started[name] = w
        print("did", name, pid, flush=True)
    elif what == "exec":
        os.close(started[name])
    elif what == "kill":
        started[name].kill()
        started[name].wait()
        print("did", name, 0, flush=True)
"""
# A process that says its pid and waits; "workers" forks children that keep its environment, as a DataLoader
# does.
WAIT = "import os, sys; print('did', sys.argv[1], os.getpid(), flush=True); sys.stdin.read()"
WORKERS = """
import os, sys
r, w = os.pipe()
for number in range(2):
    if os.fork() == 0:
        os.close(w)
        os.read(r, 1)
        os.read(os.open(sys.argv[2], os.O_RDONLY), 1)
        os._exit(0)
print("did", sys.argv[1], os.getpid(), flush=True)
sys.stdin.read()
"""
CLEAN = {
    k: v
    for k, v in os.environ.items()
    if not k.startswith(("RANK", "LOCAL_RANK", "SLURM_", "OMPI_", "PMI", "TORCHELASTIC"))
}


class Job:
    """A launcher and what it started, by name."""

    def __init__(self, launcher: list[str], env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            launcher,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**CLEAN, **env},
            start_new_session=True,
        )
        self.pids = {"launcher": self.said("launcher")}

    def said(self, name: str) -> int:
        """Wait until `name` says that it is up (or done); its pid."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            word, who, pid = line.split()
            if (word, who) == ("did", name):
                return int(pid)
        raise AssertionError(f"{name} never came")

    def order(
        self, what: str, name: str, argv: list[str] | None = None, env: dict[str, str] | None = None
    ) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([what, name, argv or [], env or {}]) + "\n")
        self.process.stdin.flush()

    def start(self, name: str, argv: list[str], env: dict[str, str]) -> int:
        self.order("start", name, argv, env)
        self.pids[name] = self.said(name)
        return self.pids[name]

    def rank(self, rank: int, name: str = "", world: int = 2, **env: str) -> int:
        name = name or f"rank{rank}"
        return self.start(name, [sys.executable, "-c", WAIT, name], {**torchrun(rank, world), **env})

    def kill(self, name: str) -> None:
        self.order("kill", name)
        self.said(name)

    def end(self) -> None:
        for pid in RankFinder(self.process.pid, "host")._tree.scan(full=True):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.communicate()


def torchrun(rank: int, world: int = 2) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "TORCHELASTIC_RUN_ID": "x",
    }


@contextlib.contextmanager
def a_job(launcher: list[str] | None = None, env: dict[str, str] | None = None) -> Iterator[Job]:
    job = Job(launcher or [sys.executable, "-c", LAUNCHER], env or {})
    try:
        yield job
    finally:
        job.end()


@pytest.fixture
def job() -> Iterator[Job]:
    with a_job() as started:
        yield started


def finder_of(job: Job) -> RankFinder:
    return RankFinder(job.process.pid, "host")


def pids(found: list[Found]) -> dict[int, int]:
    return {item.placement.rank: item.placement.pid for item in found}


def test_ranks_below_a_launcher_are_found_once_with_all_that_is_known_of_them(job: Job) -> None:
    # given two ranks of torchrun
    zero, one = job.rank(0, NCCL_DEBUG="INFO", WANDB_API_KEY="hunter2"), job.rank(1)
    finder = finder_of(job)

    # when it looks twice
    found = finder.scan()

    # then each is told once, and no secret of theirs
    assert pids(found) == {0: zero, 1: one}
    place = found[0].placement
    assert (place.world_size, place.local_rank, place.launcher, place.host) == (2, 0, "torchrun", "host")
    assert place.start_ticks == int(Path(f"/proc/{zero}/stat").read_text().rpartition(")")[2].split()[19])
    assert found[0].variables["NCCL_DEBUG"] == "INFO"
    assert "hunter2" not in repr(found)
    assert finder.scan() == []


def test_node_rank_of_kubeflow_does_not_make_its_launcher_a_rank() -> None:
    with a_job(env={"RANK": "1", "WORLD_SIZE": "2", "PET_NNODES": "2"}) as job:
        finder = finder_of(job)
        assert finder.scan() == []

        zero = job.rank(0)

        assert pids(finder.scan()) == {0: zero}


def test_workers_that_inherit_the_environment_are_not_the_rank(job: Job, tmp_path: Path) -> None:
    rank = job.start("rank0", [sys.executable, "-c", WORKERS, "rank0", str(tmp_path / "fifo")], torchrun(0))
    finder = finder_of(job)

    assert len(finder._tree.scan()) == 3
    assert pids(finder.scan()) == {0: rank}
    assert finder.scan() == []


def test_workers_that_outlive_their_rank_are_not_that_rank_started_again(job: Job, tmp_path: Path) -> None:
    # given a rank with workers below a launcher that adopts orphans
    os.mkfifo(tmp_path / "fifo")
    job.start("rank0", [sys.executable, "-c", WORKERS, "rank0", str(tmp_path / "fifo")], torchrun(0))
    finder = finder_of(job)
    finder.scan()

    # when the rank is killed and its workers are adopted
    job.kill("rank0")
    assert len(finder._tree.scan(full=True)) == 2

    # then they are not the rank, and the rank's next process is
    assert finder.scan() == []
    again = job.rank(0, "again")
    assert pids(finder.scan()) == {0: again}


def test_rank_below_a_shell_that_has_its_variables_is_the_python_process(job: Job) -> None:
    # given `bash -c 'python train.py; ...'` as srun starts it
    script = f'"{sys.executable}" -c "{WAIT}" rank0; read forever'
    job.order("start", "shell", ["bash", "-c", script], torchrun(0))
    rank = job.said("rank0")
    finder = finder_of(job)

    # when it is found, and then dies below its shell
    assert pids(finder.scan()) == {0: rank}
    os.kill(rank, signal.SIGKILL)
    while Path(f"/proc/{rank}").exists():
        os.sched_yield()

    # then the shell that is left is not the rank
    assert [finder.scan() for _ in range(_SHELL_SCANS + 2)] == [[]] * (_SHELL_SCANS + 2)


def test_shell_that_sets_up_its_environment_is_not_told_before_its_python_comes(job: Job) -> None:
    script = f'echo did shell $$; read go; "{sys.executable}" -c "{WAIT}" rank0; read forever'
    job.start("shell", ["bash", "-c", script], torchrun(0))
    finder = finder_of(job)

    assert [finder.scan() for _ in range(_SHELL_SCANS)] == [[]] * _SHELL_SCANS


def test_rank_that_is_no_python_is_taken_when_nothing_else_comes(job: Job) -> None:
    rank = job.start("rank0", ["bash", "-c", "echo did rank0 $$; read forever"], torchrun(0))
    finder = finder_of(job)

    scans = [pids(finder.scan()) for _ in range(_SHELL_SCANS + 2)]

    assert scans == [*[{}] * _SHELL_SCANS, {0: rank}, {}]


def test_elastic_restart_gives_the_rank_its_new_process_and_leaves_the_others_alone(job: Job) -> None:
    job.rank(0)
    job.rank(1)
    finder = finder_of(job)
    finder.scan()

    job.kill("rank1")
    assert finder.scan() == []
    again = job.rank(1, "again")

    assert pids(finder.scan()) == {1: again}


def test_process_between_fork_and_exec_is_found_once_it_is_the_rank(job: Job) -> None:
    # given a process that shows its parent's environment still
    finder = finder_of(job)
    job.order("fork", "rank0", [sys.executable, "-c", WAIT, "rank0"], torchrun(0))
    pid = job.said("rank0")
    assert finder.scan() == []

    # when it becomes the rank
    job.order("exec", "rank0")
    job.said("rank0")

    # then it is found, although its pid was seen before
    assert pids(finder.scan()) == {0: pid}


def slurm(task: int) -> dict[str, str]:
    return {
        "SLURM_PROCID": str(task),
        "SLURM_LOCALID": "0",
        "SLURM_STEP_ID": "0",
        "SLURM_NTASKS": "2",
        "SLURM_NODEID": str(task),
    }


@pytest.mark.parametrize("before", [True, False], ids=["alone", "with its ranks"])
def test_torchrun_as_a_task_of_srun_is_not_the_rank_of_its_task(before: bool, tmp_path: Path) -> None:
    # given `srun torchrun` on the second of two nodes: torchrun has SLURM_PROCID=1, which is no rank
    (tmp_path / "torchrun").write_text(LAUNCHER)
    with a_job([sys.executable, str(tmp_path / "torchrun")], env=slurm(1)) as job:
        finder = finder_of(job)
        if before:
            assert finder.scan() == []

        # when its ranks come
        two, three = job.rank(2, world=4), job.rank(3, world=4)

        # then these are the ranks
        assert pids(finder.scan()) == {2: two, 3: three}
        assert finder.scan() == []


def test_unknown_launcher_as_a_task_of_srun_is_known_by_the_ranks_below_it() -> None:
    with a_job(env=slurm(0)) as job:
        ranks = {0: job.rank(0), 1: job.rank(1)}

        assert pids(finder_of(job).scan()) == ranks


def test_task_of_srun_stays_the_rank_when_what_it_starts_has_variables_of_torchrun() -> None:
    # given a rank of srun that set RANK and LOCAL_RANK for itself: its compile workers show them, it does not
    with a_job(env=slurm(1)) as job:
        finder = finder_of(job)
        assert pids(finder.scan()) == {1: job.process.pid}

        job.start("helper", [sys.executable, "-c", WAIT, "helper"], {"RANK": "1", "LOCAL_RANK": "0"})

        assert finder.scan() == []


def test_command_without_ranks_is_its_topmost_python_process() -> None:
    with a_job(["bash", "-c", f"\"{sys.executable}\" -c '{LAUNCHER}'; read forever"]) as job:
        found = finder_of(job).sole_process()

        assert found is not None
        assert (found.placement.pid, found.placement.rank, found.distributed) == (
            job.pids["launcher"],
            0,
            False,
        )
        assert found.command.startswith(sys.executable)


def test_command_line_tool_that_starts_one_process_and_waits_for_it_is_not_the_job(tmp_path: Path) -> None:
    # given `swift sft` on one GPU: the tool waits for `python .../swift/cli/sft.py`
    (tmp_path / "swift").write_text(LAUNCHER)
    with a_job([sys.executable, str(tmp_path / "swift"), "sft"]) as job:
        alone = finder_of(job).sole_process()
        assert alone is not None and alone.placement.pid == job.process.pid

        trainer = job.start("trainer", [sys.executable, "-c", WAIT, "trainer"], {})

        found = finder_of(job).sole_process()
        assert found is not None and found.placement.pid == trainer


@pytest.mark.parametrize("library", ["libtorch_cpu.so", "libz.so"])
def test_of_two_ends_of_a_pipe_the_one_with_torch_is_the_job(tmp_path: Path, library: str) -> None:
    """`python feed.py | python train.py`: the first is only older."""
    (tmp_path / library).write_bytes(b"x")
    (tmp_path / "feed.py").write_text("import sys; print(flush=True); sys.stdin.read()")
    (tmp_path / "train.py").write_text(
        "import mmap, os, sys; sys.stdin.readline(); file = open(sys.argv[1]); "
        "kept = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ); print(os.getpid(), flush=True); sys.stdin.read()"
    )
    script = f'"{sys.executable}" feed.py | "{sys.executable}" train.py {library}; true'
    with subprocess.Popen(["bash", "-c", script], stdin=-1, stdout=-1, cwd=tmp_path) as job:
        assert job.stdout is not None and job.stdin is not None
        trainer = int(job.stdout.readline())
        found = RankFinder(job.pid, "host").sole_process()
        job.stdin.close()

    assert found is not None
    assert (found.placement.pid == trainer) is ("torch" in library)


def test_command_without_python_is_nobody() -> None:
    with a_job(["bash", "-c", "echo did launcher $$; read forever"]) as job:
        assert finder_of(job).sole_process() is None


def test_files_that_a_rank_prints_to_are_named_and_pipes_are_not(job: Job, tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    code = "import os, sys; os.write(1, b'did rank0 %d' % os.getpid() + bytes([10])); sys.stdin.read()"
    script = f'exec "{sys.executable}" -c "{code}" 2>>{log}'
    rank = job.start("rank0", ["bash", "-c", script], torchrun(0))

    # appended to: what stands in it may be older
    assert list(finder_of(job).output_files(rank)) == [("stderr", log, True)]
    assert list(finder_of(job).output_files(0)) == []


def test_root_that_is_gone_is_no_error() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()

    finder = RankFinder(gone.pid, "host")

    assert (finder.scan(), finder.sole_process()) == ([], None)


def test_stat_that_is_garbage_is_no_error(tmp_path: Path) -> None:
    folder = tmp_path / "7" / "task" / "7"
    folder.mkdir(parents=True)
    (folder / "children").write_text("8 x")
    for name, text in (("stat", "7 (python) S"), ("environ", "RANK=0\0LOCAL_RANK=0\0"), ("cmdline", "")):
        (tmp_path / "7" / name).write_text(text)

    assert RankFinder(7, "host", tmp_path).scan() == []


def test_rank_of_a_reused_pid_is_told_again(tmp_path: Path) -> None:
    # given a rank that ended, and another process of the same rank and pid but a later start
    def write(ticks: int) -> None:
        fields: list[Any] = ["S", 1, *[0] * 17, ticks, *[0] * 30]
        (tmp_path / "7").mkdir(exist_ok=True)
        (tmp_path / "7" / "stat").write_text(f"7 (python) {' '.join(map(str, fields))}")
        (tmp_path / "7" / "environ").write_text("RANK=0\0LOCAL_RANK=0\0")
        (tmp_path / "7" / "cmdline").write_text("python\0train.py\0")
        (tmp_path / "7" / "exe").unlink(missing_ok=True)
        (tmp_path / "7" / "exe").symlink_to("/usr/bin/python3")

    write(100)
    finder = RankFinder(7, "host", tmp_path)
    assert [found.placement.start_ticks for found in finder.scan()] == [100]

    write(200)

    assert [found.placement.start_ticks for found in finder.scan()] == [200]
