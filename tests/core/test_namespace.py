"""The job among all processes that are seen: real ones, in a view of /proc that has only those of the test."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from diag.agent.job_search import Chosen, JobSearch
from diag.agent.process_namespace import Namespace
from diag.text.errors import DiagError

# Starts what it is told to, line by line, and says its pid: VAR=value ... -- word ...
LAUNCHER = """
import os, subprocess, sys
print(os.getpid(), flush=True)
for line in sys.stdin:
    words = line.split("\\t")
    cut = words.index("--")
    env = {**os.environ, **dict(word.split("=", 1) for word in words[:cut])}
    argv = [word.rstrip("\\n") for word in words[cut + 1:]]
    child = subprocess.Popen(argv, env=env, stdin=-1, stdout=-1, start_new_session="SESSION=own" in words)
    child.stdout.readline()
    print(child.pid, flush=True)
"""
WAIT = "import sys; print(flush=True); sys.stdin.read()"
TORCH = f"import mmap, sys; file = open(sys.argv[1]); kept = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ); {WAIT}"
_OF_RANKS = ("RANK", "LOCAL_", "WORLD_", "SLURM", "OMPI_", "PMI", "TORCHELASTIC", "MASTER_")
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(_OF_RANKS)}


class World:
    """Processes of a test, and a /proc that shows them alone."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder / "proc"
        self.proc.mkdir()
        self.torchrun = folder / "torchrun"
        self.torchrun.write_text(LAUNCHER)
        (self.proc / "uptime").symlink_to("/proc/uptime")
        self.started: list[subprocess.Popen[str]] = []
        self.now = 1000.0
        self.own = self.process([sys.executable, "-c", WAIT], {}).pid  # stands for diag

    def show(self, pid: int) -> int:
        (self.proc / str(pid)).symlink_to(f"/proc/{pid}")
        return pid

    def process(
        self, argv: list[str], env: Mapping[str, str], *, session: bool = True
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            argv,
            env={**CLEAN, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=session,
        )
        self.started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        self.show(process.pid)
        return process

    def launcher(
        self, argv: list[str] | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        return self.process(argv or [sys.executable, str(self.torchrun)], env or {})

    def below(
        self, launcher: subprocess.Popen[str], env: Mapping[str, str], argv: list[str] | None = None
    ) -> int:
        """A process that `launcher` starts."""
        assert launcher.stdin is not None and launcher.stdout is not None
        words = argv or [sys.executable, "-c", WAIT]
        launcher.stdin.write(
            "\t".join([*(f"{name}={value}" for name, value in env.items()), "--", *words]) + "\n"
        )
        launcher.stdin.flush()
        return self.show(int(launcher.stdout.readline()))

    def end(self, process: subprocess.Popen[str]) -> None:
        process.kill()
        process.communicate()
        (self.proc / str(process.pid)).unlink()

    def search(
        self, environ: Mapping[str, str] | None = None, *, shared: bool = False, own: int | None = None
    ) -> JobSearch:
        space = Namespace(self.proc, own or self.own, environ or {})
        return JobSearch("host", 15.0, space, lambda: self.now, shared)

    def close(self) -> None:
        for process in self.started:
            process.kill()
        for entry in self.proc.iterdir():  # what they started
            if entry.is_symlink() and entry.name.isdigit():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(entry.name), 9)
        for process in self.started:
            process.communicate()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def torchrun(rank: int, port: str = "29500") -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "SESSION": "own",
        "TORCHELASTIC_RUN_ID": "x",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": port,
    }


def slurm(task: int, step: str = "0", job: str = "7") -> dict[str, str]:
    return {
        "SLURM_JOB_ID": job,
        "SLURM_STEP_ID": step,
        "SLURM_PROCID": str(task),
        "SLURM_LOCALID": str(task),
        "SLURM_NTASKS": "2",
        "SLURM_NODEID": "0",
    }


def taken(search: JobSearch) -> Chosen:
    chosen = search.look()
    assert chosen is not None
    return chosen


# -- one job
# ------------------------------------------------------------------------------------------------------------


def test_job_of_a_launcher_is_found_with_its_launcher_as_the_root(world: World) -> None:
    torch = world.launcher()
    ranks = {rank: world.below(torch, torchrun(rank)) for rank in range(2)}

    chosen = taken(world.search())

    assert (chosen.root, chosen.pid, chosen.ranks) == (torch.pid, torch.pid, (0, 1))
    assert set(ranks.values()) <= set(chosen.processes.scan())


@pytest.mark.parametrize("typed", [False, True], ids=["script", "typed in"])
def test_script_that_starts_the_ranks_is_the_root_and_a_shell_that_is_typed_in_is_not(
    world: World, typed: bool
) -> None:
    # given ranks that are started with &: a shell that is typed in gives each a group of its own
    variables = "LOCAL_RANK=$RANK WORLD_SIZE=2 MASTER_PORT=1"
    rank = f"{variables} {sys.executable} -c 'import time; time.sleep(1000)' &"
    script = f"{'set -m;' if typed else ''} RANK=0 {rank} RANK=1 {rank} echo; wait".replace("$RANK", "0")
    shell = world.process(["bash", "-c", script], {})
    children = [
        int(child) for child in Path(f"/proc/{shell.pid}/task/{shell.pid}/children").read_text().split()
    ]
    for child in children:
        world.show(child)

    # when they are looked for until both have become Python
    search = world.search()
    while (chosen := search.look()) is None or len(chosen.ranks) < 2:
        os.sched_yield()

    # then the script's end is the job's, and the shell's is not
    assert chosen.root == (None if typed else shell.pid)
    assert set(children) <= {*chosen.processes.roots, *chosen.processes.scan()}


def test_tasks_of_srun_have_no_root_of_their_own_and_are_found_as_they_come(world: World) -> None:
    # given tasks in sessions of their own, below a daemon that is not the job's
    first = world.process([sys.executable, "-c", WAIT], slurm(0))
    search = world.search(slurm(0, step="1"))
    assert search.look() is None

    # when nothing else comes
    world.now += 15.0
    chosen = taken(search)

    # then they are the job, the second one too
    second = world.process([sys.executable, "-c", WAIT], slurm(1))
    assert (chosen.root, chosen.ranks) == (None, (0,))
    assert chosen.processes.scan() == tuple(sorted((first.pid, second.pid)))


def test_launcher_that_nobody_knows_is_the_root_of_the_ranks_that_it_started(world: World) -> None:
    own = world.launcher([sys.executable, "-c", LAUNCHER])
    for rank in range(2):
        world.below(own, torchrun(rank))

    assert taken(world.search()).root == own.pid


def test_torchrun_as_a_task_of_srun_and_its_ranks_are_one_job(world: World) -> None:
    torch = world.launcher(env=slurm(0))
    ranks = [world.below(torch, torchrun(rank)) for rank in range(2)]

    chosen = taken(world.search(slurm(0, step="1")))

    assert (chosen.root, chosen.ranks) == (torch.pid, (0, 1))
    assert set(ranks) <= set(chosen.processes.scan())


def test_process_that_becomes_a_rank_later_is_seen_then(world: World) -> None:
    script = f"echo; read word; RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 exec {sys.executable} -c '{WAIT}'"
    shell = world.process(["bash", "-c", script], {})
    search = world.search()
    assert search.look() is None

    assert shell.stdin is not None and shell.stdout is not None
    shell.stdin.write("go\n")
    shell.stdin.flush()
    shell.stdout.readline()

    assert taken(search).pid == shell.pid


# -- what is not the job
# ------------------------------------------------------------------------------------------------


def test_what_is_diags_own_is_no_rank(world: World) -> None:
    # given a diag that was started with a rank's variables (srun does), what it started, another diag, and
    # tasks of the same step
    ours = world.launcher([sys.executable, "-c", LAUNCHER], slurm(0, step="1"))
    world.below(ours, {})
    world.process(["bash", "-c", f"exec -a diag {sys.executable} -c '{WAIT}'"], slurm(0))
    world.process([sys.executable, "-c", WAIT], slurm(1, step="1"))
    search = world.search(slurm(0, step="1"), own=ours.pid)

    for _ in range(3):
        world.now += 20.0
        assert search.look() is None


def test_other_job_of_the_machine_is_left_alone(world: World) -> None:
    other = world.launcher(env={"SLURM_JOB_ID": "8"})
    world.below(other, {**torchrun(0), **slurm(0, job="8")})
    search = world.search(slurm(0, step="1", job="7"))

    world.now += 60.0

    assert search.look() is None


def test_monitor_that_srun_started_is_not_the_job_beside_ranks_of_torchrun(world: World) -> None:
    world.process([sys.executable, "-c", WAIT], slurm(0, step="3"))
    torch = world.launcher()
    for rank in range(2):
        world.below(torch, {**torchrun(rank), "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"})
    search = world.search(slurm(0, step="1"))
    world.now += 60.0

    assert taken(search).root == torch.pid


def test_python_service_of_the_machine_is_not_the_job_and_one_that_loads_torch_in_a_pod_is(
    world: World, tmp_path: Path
) -> None:
    # given `python train.py` without ranks
    (tmp_path / "libtorch_cpu.so").write_bytes(b"x")
    train = world.process([sys.executable, "-c", TORCH, str(tmp_path / "libtorch_cpu.so")], {})
    world.process([sys.executable, "-c", WAIT], {})

    def seen(*, shared: bool) -> Chosen | None:
        search = world.search(shared=shared)
        assert search.look() is None
        world.now += 15.0
        return search.look()

    # then it is taken in a namespace of containers, after a while, and never on a machine
    assert seen(shared=False) is None
    chosen = seen(shared=True)
    assert chosen is not None and chosen.lone is not None
    assert (chosen.root, chosen.lone.placement.pid, chosen.lone.distributed) == (train.pid, train.pid, False)


def test_launcher_that_waits_for_other_nodes_is_taken_without_ranks(world: World) -> None:
    torch = world.launcher()
    search = world.search()
    assert search.look() is None

    world.now += 15.0

    assert (taken(search).root, taken(search).ranks, taken(search).lone) == (torch.pid, (), None)


# -- several jobs
# -------------------------------------------------------------------------------------------------------


def test_two_jobs_are_refused_with_the_pids_to_choose_from(world: World) -> None:
    # given two launchers with ranks of the same numbers
    torch = [world.launcher(), world.launcher()]
    for launcher, port in zip(torch, ("29500", "29501"), strict=True):
        world.below(launcher, torchrun(0, port))
    search = world.search()

    # when it looks: not at once, since a job that ends and the next may be there together
    assert search.look() is None
    world.now += 5.0
    with pytest.raises(DiagError) as refused:
        search.look()

    # then it says what to type for each
    said = str(refused.value)
    assert said.startswith("2 jobs run here") and all(
        re.search(rf"pid {one.pid} \(.*\): rank 0", said) for one in torch
    )
    assert {f"diag watch --pid {one.pid}" for one in torch} == set((refused.value.hint or "").split(" or "))


def test_second_job_that_ends_soon_leaves_the_first(world: World) -> None:
    torch, old = world.launcher(), world.process([sys.executable, "-c", WAIT], torchrun(0, "29501"))
    world.below(torch, torchrun(0))
    search = world.search()
    assert search.look() is None

    world.end(old)
    world.now += 5.0

    assert taken(search).root == torch.pid


# -- what it says while it waits
# ----------------------------------------------------------------------------------------


def test_nobody_seen_says_how_to_share_processes(world: World) -> None:
    search = world.search(shared=True)
    assert search.look() is None

    state, remedy = search.state()

    assert state == "no processes but diag's own are visible" and "shareProcessNamespace: true" in remedy


def test_processes_that_may_not_be_read_are_counted_with_their_user_and_the_line_to_add(world: World) -> None:
    # given a process whose variables are closed (root reads all, so this one is written down)
    hidden = world.proc / "77"
    hidden.mkdir()
    (hidden / "stat").write_text(f"77 (python3) S 0 77 77 {' '.join(['0'] * 15)} 100 {' '.join(['0'] * 30)}")
    (hidden / "status").write_text("Name:\tpython3\nUid:\t4242\t4242\t4242\t4242\n")
    world.process([sys.executable, "-c", WAIT], {})
    search = world.search(shared=True)
    assert search.look() is None

    state, remedy = search.state()

    assert (
        state
        == "no rank yet; 2 processes seen, 1 unreadable (of uid 4242): diag needs the same user or SYS_PTRACE"
    )
    assert "capabilities: {add: [SYS_PTRACE]}" in remedy and "--cap-add SYS_PTRACE" in remedy


def test_processes_of_other_users_of_a_machine_are_no_reason_to_ask_for_rights(world: World) -> None:
    (world.proc / "77").mkdir()
    (world.proc / "77" / "stat").write_text(
        f"77 (sshd) S 1 77 77 {' '.join(['0'] * 15)} 100 {' '.join(['0'] * 30)}"
    )
    search = world.search(shared=False)
    assert search.look() is None

    state, remedy = search.state()

    assert state == "no rank yet; 1 process seen, 1 of other users unreadable"
    assert "SYS_PTRACE" not in remedy and "run diag as that user" in remedy


def test_readable_processes_without_ranks_need_nothing(world: World) -> None:
    world.process([sys.executable, "-c", WAIT], {})
    search = world.search()
    assert search.look() is None

    assert search.state() == ("no rank yet; 1 process seen, all readable", "")


def test_second_process_of_a_container_is_not_the_kernels(world: World) -> None:
    """2 is kthreadd on a machine only."""
    (world.proc / "2").mkdir()
    (world.proc / "2" / "stat").write_text(
        f"2 (sleep) S 1 2 2 {' '.join(['0'] * 15)} 100 {' '.join(['0'] * 30)}"
    )
    (world.proc / "2" / "environ").write_text("A=b\0")
    search = world.search()
    assert search.look() is None

    assert search.state()[0] == "no rank yet; 1 process seen, all readable"


# -- one look at all that trains
# -----------------------------------------------------------------------------------------------------------


def test_one_look_gives_each_job_with_its_processes_and_apart_what_has_no_rank(world: World) -> None:
    # given two jobs, a launcher that waits, and a process with torch of its own
    jobs = [world.launcher(), world.launcher()]
    ranks = [
        world.below(launcher, torchrun(0, port))
        for launcher, port in zip(jobs, ("29500", "29501"), strict=True)
    ]
    waiting = world.launcher()
    library = world.proc.parent / "libtorch.so"
    library.write_bytes(b"x")
    alone = world.process([sys.executable, "-c", TORCH, str(library)], {})

    seen = world.search().seen()

    assert {job.pid for job in seen.jobs} == {one.pid for one in jobs}
    assert {one.pid for one in seen.others} == {waiting.pid, alone.pid}
    assert [job.pid for job in seen.holding([ranks[1]])] == [jobs[1].pid]
    assert seen.holding([alone.pid]) == ()


def test_one_look_leaves_out_helpers_of_ranks_and_programs_without_torch(world: World) -> None:
    torch = world.launcher()
    library = world.proc.parent / "libtorch.so"
    library.write_bytes(b"x")
    world.below(torch, torchrun(0))
    world.below(torch, {}, [sys.executable, "-c", TORCH, str(library)])
    world.process([sys.executable, "-c", WAIT], {})

    seen = world.search().seen()

    assert [job.pid for job in seen.jobs] == [torch.pid] and seen.others == ()


def test_launcher_of_another_user_is_named_with_its_owner(world: World) -> None:
    for pid, words in (
        ("77", "python3\0-m\0torch.distributed.run\0train.py\0"),
        ("78", "python3\0tool.py\0"),
    ):
        hidden = world.proc / pid
        hidden.mkdir()
        (hidden / "stat").write_text(
            f"{pid} (python3) S 0 77 77 {' '.join(['0'] * 15)} 100 {' '.join(['0'] * 30)}"
        )
        (hidden / "status").write_text("Name:\tpython3\nUid:\t4242\t4242\t4242\t4242\n")
        (hidden / "cmdline").write_text(words)

    seen = world.search().seen()

    assert (seen.jobs, seen.others, seen.foreign, seen.hidden) == ((), (), ((77, 4242),), 2)
