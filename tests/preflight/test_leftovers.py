"""What earlier jobs left: processes that are really orphaned, files that nobody has open; and jobs that run,
which are not."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from diag.preflight.job_processes import Process, group, processes_here
from diag.preflight.launch_facts import launch_facts
from diag.preflight.leftovers import check_shm_files, heap_of, in_use, process_lines
from diag.preflight.line import Line
from tests.preflight.test_storage import doctor_after, needs_mounts

# An agent (python, named as torchrun is) that starts two ranks, says so, and waits; the ranks wait for a
# pipe's end.
AGENT = textwrap.dedent("""
    import os, subprocess, sys
    ranks = []
    for rank in range(2):
        env = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": sys.argv[1],
               "TORCHELASTIC_RUN_ID": "leftover-test"}
        ranks.append(subprocess.Popen([sys.executable, "-c", "import sys; print(1, flush=True); sys.stdin.read()", "train.py"],
                                      env=env, stdout=subprocess.PIPE))
    for rank in ranks:
        rank.stdout.readline()
    print(*[rank.pid for rank in ranks], flush=True)
    sys.stdin.read()
""")


class Job:
    def __init__(self, agent: subprocess.Popen[str], ranks: list[int], keep: int) -> None:
        self.agent, self.ranks, self._keep = agent, ranks, keep

    def kill_agent(self) -> None:
        self.agent.kill()
        self.agent.wait()

    def lines(self) -> list[Line]:
        """What doctor says of this job; others may run on this machine."""
        mine = {self.agent.pid, *self.ranks}
        groups = [
            one
            for one in group(processes_here(), own=1 << 30)
            if mine & {member.pid for member in one.members}
        ]
        return [
            line for line in process_lines(groups, dict.fromkeys(self.ranks, 3 << 30)) if line.status != "ok"
        ]

    def end(self) -> None:
        os.close(self._keep)  # the ranks' standard input ends
        for pid in (self.agent.pid, *self.ranks):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.agent.wait()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    program = tmp_path / "torchrun"
    program.write_text(AGENT)
    reading, writing = os.pipe()
    agent = subprocess.Popen(
        [sys.executable, str(program), "29544"], stdin=reading, stdout=subprocess.PIPE, text=True
    )
    os.close(reading)
    assert agent.stdout is not None
    job = Job(agent, [int(word) for word in agent.stdout.readline().split()], writing)
    yield job
    job.end()


def test_job_that_runs_is_a_note_and_not_left_over(job: Job) -> None:
    (line,) = job.lines()

    assert (line.status, line.what, line.id) == ("note", "other jobs", "")
    assert f"rank 0 pid {job.ranks[0]}, rank 1 pid {job.ranks[1]} below process {job.agent.pid}" in line.said


def test_ranks_whose_launcher_was_killed_are_left_over(job: Job) -> None:
    if "python" in Path("/proc/1/comm").read_text():
        pytest.skip("process 1 is a Python program here, which may have started them itself")
    job.kill_agent()

    (line,) = job.lines()

    assert (line.status, line.id, line.level) == ("problem", "leftover-process", "warning")
    assert line.said.startswith(
        f"2 processes of an earlier job are left over (rank 0 pid {job.ranks[0]}, rank 1 pid {job.ranks[1]};"
    )
    assert "what started them is gone" in line.said and "6 GiB of GPU memory" in line.said
    assert line.remedy.startswith(f"kill {job.ranks[0]} {job.ranks[1]};")


@pytest.mark.live
def test_ranks_of_a_torchrun_that_was_killed(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    if "python" in Path("/proc/1/comm").read_text():
        pytest.skip("process 1 is a Python program here, which may have started them itself")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    script = tmp_path / "train.py"
    script.write_text(
        f"import os\nwith open({str(fifo)!r}, 'w') as f: f.write(str(os.getpid()))\nimport signal\nsignal.pause()\n"
    )
    agent = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "1", str(script)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with fifo.open() as told:
        rank = int(told.read())
    job = Job(agent, [rank], os.open(os.devnull, os.O_RDONLY))
    try:
        running = job.lines()
        job.kill_agent()
        left = job.lines()
    finally:
        job.end()

    assert [line.status for line in running] == ["note"]
    assert [line.id for line in left] == ["leftover-process"] and f"rank 0 pid {rank}" in left[0].said


def process(
    pid: int,
    parent: int,
    comm: str = "python3",
    argv: tuple[str, ...] = ("python3", "train.py"),
    **more: object,
) -> Process:
    return Process(pid, parent, comm, argv, **more)  # type: ignore[arg-type]


def said(*processes: Process, own: int = 99) -> list[tuple[str, str]]:
    all_ = {
        one.pid: one
        for one in (process(1, 0, "systemd", ("/sbin/init",)), process(99, 1, "bash", ("bash",)), *processes)
    }
    return [(line.status, line.what) for line in process_lines(group(all_, own), {})]


def test_machine_without_jobs_is_ok() -> None:
    assert said(
        process(5, 1, "sshd", ("sshd",)), process(6, 5, "python3", ("python3", "-m", "http.server"))
    ) == [("ok", "left-over processes")]


def test_rank_that_somebody_started_with_nohup_runs() -> None:
    assert said(process(5, 1, rank=0, job=("env",))) == [
        ("note", "other jobs"),
        ("ok", "left-over processes"),
    ]


def test_workers_whose_rank_is_gone_are_left_over() -> None:
    worker = process(7, 1, "pt_data_worker", rank=3, job=("torchrun",), by_agent=True)
    vllm = process(8, 1, "VLLM::EngineCor", ("VLLM::EngineCore",))

    assert said(worker) == [("problem", "left-over processes")] and said(vllm) == [
        ("problem", "left-over processes")
    ]


def test_what_a_killed_rank_left_is_told_by_its_own_program() -> None:
    # as the asynchronous save of ms-swift 4 leaves it: the helper of multiprocessing, a spawned writer, a
    # fork of the rank
    common = {"rank": 1, "job": ("torchrun",), "by_agent": True}
    tracker = ("python", "-B", "-c", "from multiprocessing.resource_tracker import main;main(120)")
    spawned = (
        "python",
        "-B",
        "-c",
        "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=121, pipe_handle=123)",
    )
    left = [
        process(7, 1, argv=tracker, **common),
        process(8, 1, argv=spawned, **common),
        process(9, 1, argv=("python", "-u", "rlhf.py"), **common),
    ]
    all_ = {one.pid: one for one in (process(1, 0, "systemd", ("/sbin/init",)), *left)}

    (line,) = process_lines(group(all_, 99), {})

    assert "(rank 1 pid 9, 2 workers; python -u rlhf.py)" in line.said
    assert line.remedy.startswith("kill 7 8 9;")


def test_workers_of_a_job_that_runs_are_not_left_over() -> None:
    alone = process(6, 5, "python3", ("python3", "train.py"))
    assert said(process(5, 1, "tmux", ("tmux",)), alone, process(7, 6, "pt_data_worker")) == [
        ("ok", "left-over processes")
    ]


def test_those_that_led_to_doctor_are_no_other_job() -> None:
    rank = {"rank": 0, "job": ("torchrun",), "by_agent": True}
    mine = (
        process(5, 1, "torchrun", ("python3", "/bin/torchrun")),
        process(6, 5, "python3", **rank),
        process(98, 6, "python3", **rank),
    )

    assert said(*mine, own=98) == [("ok", "left-over processes")]


def test_rank_that_hangs_in_the_kernel_is_told() -> None:
    stuck = process(5, 1, rank=0, job=("torchrun",), by_agent=True, state="D")
    (line,) = process_lines(group({1: process(1, 0, "systemd", ("/sbin/init",)), 5: stuck}, 99), {})

    assert "5 hangs in the kernel (state D)" in line.remedy


def test_python_as_process_1_may_have_started_them() -> None:
    one = {
        1: process(1, 0, "python3", ("python3", "entry.py")),
        5: process(5, 1, rank=0, job=("torchrun",), by_agent=True),
    }

    assert [(line.status, line.id) for line in process_lines(group(one, 99), {})] == [
        ("note", "leftover-process"),
        ("ok", ""),
    ][:1]


# --- /dev/shm
# ---------------------------------------------------------------------------------------------------


SHM = (
    "mount -t tmpfs -o size=64m tmpfs /dev/shm && for n in 1 2 3; do "
    "dd if=/dev/zero of=/dev/shm/torch_4194400_77_$n bs=1M count=20 status=none; done && "
    ": > /dev/shm/sem.mp-abcdefgh && touch -d '2 hours ago' /dev/shm/*"
)


@needs_mounts
def test_small_shared_memory_that_files_of_earlier_jobs_fill() -> None:
    document = doctor_after(SHM, "python", "t.py")

    by_what = {line["what"]: line for line in document["checks"]}
    assert by_what["shared memory"]["status"] == "problem" and "64 MiB" in by_what["shared memory"]["said"]
    assert by_what["left-over files"]["status"] in ("problem", "note")
    assert (
        "4 files in /dev/shm take 60 MiB of its 64 MiB (torch_4194400_* 3, sem.mp-* 1)"
        in by_what["left-over files"]["said"]
    )
    assert by_what["left-over files"]["remedy"].startswith("rm /dev/shm/torch_4194400_* /dev/shm/sem.mp-*")
    assert "leftover-process" in [one["id"] for one in document["findings"]]


HOLD = """
import ctypes, mmap, sys, time
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG: it ends with doctor
files = [open(f"/dev/shm/torch_4194400_77_{n}", "r+b") for n in (1, 2, 3)]
kept = [mmap.mmap(file.fileno(), 0) for file in files]
for file in files:
    file.close()  # mapped is enough
open(sys.argv[1], "w").write("up")
time.sleep(60)
"""


@needs_mounts
def test_files_that_a_process_has_mapped_are_not_left_over(tmp_path: Path) -> None:
    (tmp_path / "hold.py").write_text(HOLD)
    os.mkfifo(tmp_path / "fifo")
    setup = f'{SHM} && {{ "$0" {tmp_path}/hold.py {tmp_path}/fifo > /dev/null & }} && timeout 30 cat {tmp_path}/fifo > /dev/null'

    document = doctor_after(setup, "python", "t.py")

    assert "left-over files" not in {line["what"] for line in document["checks"]}


def old(folder: Path, name: str, size: int) -> Path:
    path = folder / name
    path.write_bytes(b"x" * size)
    os.utime(path, (time.time() - 7200, time.time() - 7200))
    return path


def test_files_of_other_names_young_ones_and_those_of_living_processes_are_let_be(tmp_path: Path) -> None:
    old(tmp_path, "my-data", 5000)
    old(tmp_path, f"torch_{os.getpid()}_1_1", 5000)
    (tmp_path / "nccl-abcdef").write_bytes(b"x" * 5000)
    gone = old(tmp_path, "psm_12345678", 5000)

    heap = heap_of(str(tmp_path))
    assert heap is not None
    held, _ = in_use(heap)

    assert {name for name, _, _ in heap.without(held).files} == {gone.name}


def test_few_bytes_are_not_worth_a_line(tmp_path: Path) -> None:
    old(tmp_path, "psm_12345678", 5000)

    assert list(check_shm_files(launch_facts((), {}), str(tmp_path))) == []
