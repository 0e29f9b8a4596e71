"""When NCCL RAS is asked: by version and setting, under suspicion, twice at most, never while communicators
are made."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diag.agent.samplers.ras import (
    RasSampler,
    creating,
)
from diag.agent.samplers.sampler import Reporter
from diag.model import Placement, Record
from diag.model.observations import (
    Iteration,
    Observation,
    PhaseMarked,
    RankFound,
    RasReading,
    SourceFailed,
    SourceWorks,
    StackSample,
    ThreadStack,
)
from diag.settings import Settings
from diag.sources.collectives import nccl_ras
from diag.sources.host.versions import library_of, version_of
from diag.sources.logs import output
from diag.sources.parsers import PARSERS
from diag.state.job import JobState
from tests.facts import frames
from tests.rasserver import captured, ras_server


def job_of(*pids: int, node_rank: int = 0, first: int = 0, steps: int = 5) -> JobState:
    job = JobState()
    for number, pid in enumerate(pids):
        place = Placement(
            first + number, number, first + len(pids), "node-0", pid, 7, node_rank, len(pids), "torchrun"
        )
        job.observe(10.0, RankFound(first + number, place, "python train.py"))
    if steps:
        job.observe(20.0, Iteration(None, steps, 100, f"iteration {steps}"))
    return job


def say(job: JobState, line: str, at: float = 30.0) -> None:
    """A line of output, through the parsers that the hub uses."""
    for fact in PARSERS[output.SOURCE](
        Record(output.SOURCE, {"stream": "stderr", "lines": [[line, False]]}, at=at)
    ):
        job.observe(at, fact)


def stand(job: JobState, rank: int, *lines: str) -> None:
    pid = job.ranks[rank].placement.pid
    job.observe(
        30.0, StackSample(rank, pid, (ThreadStack(pid, "MainThread", frames(*lines)),), "pyspy", 30.0)
    )


# NCCL 2.28.9, H200, 2026-11-20 (tests/captures/logs/nccl/healthy_rank0.log)
START = (
    "gpu-node-0:566:566 [0] NCCL INFO ncclCommInitRankConfig comm 0x400879c0 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 60 "
    "commId 0x67f05fb031510889 - Init START"
)


COMPLETE = START.replace("START", "COMPLETE")


def test_line_of_an_unfinished_init_forbids_asking_until_it_is_complete() -> None:
    job = job_of(566, 567)
    assert creating(job) is None

    say(job, START)
    refused = creating(job)
    assert refused is not None and "rank 0" in refused.reason
    assert job.nccl.being_made(566) == 30.0 and job.nccl.being_made(567) is None

    say(job, COMPLETE, 31.0)
    assert creating(job) is None


def test_real_log_ends_with_no_communicator_under_way_and_tells_version_and_address() -> None:
    job = job_of(566)
    lines = (
        (Path(__file__).parents[1] / "captures" / "logs" / "nccl" / "healthy_rank0.log")
        .read_text()
        .splitlines()
    )
    made = []
    for line in lines:
        say(job, line)
        made.append(job.nccl.being_made(566) is not None)

    assert (job.nccl.version, job.nccl.ras_address) == ("2.28.9", "127.0.0.1<28028>")
    assert any(made) and not made[-1]


def test_stack_in_a_rendezvous_or_in_the_making_of_a_communicator_forbids_asking() -> None:
    job = job_of(1, 2)
    stand(job, 1, "main /app/train.py:5", "new_group torch/distributed/distributed_c10d.py:5000")
    assert creating(job) is not None

    stand(job, 1, "main /app/train.py:5", "all_reduce torch/distributed/distributed_c10d.py:3173")
    assert creating(job) is None


@pytest.mark.parametrize("phase", ["rendezvous", "comm_init"])
def test_early_phase_forbids_asking(phase: str) -> None:
    job = job_of(1, 2, steps=0)
    job.observe(40.0, PhaseMarked(None, phase, "a line"))
    refused = creating(job)
    assert refused is not None and phase in refused.reason


def test_first_step_of_a_job_whose_nccl_says_nothing_forbids_asking() -> None:
    job = job_of(566, 567)
    job.observe(40.0, PhaseMarked(None, "first_step", "a line"))
    assert creating(job) is not None

    say(job, "gpu-node-0:566:566 [0] NCCL INFO NCCL version 2.28.9+cuda13.0")
    assert creating(job) is None


def test_other_nodes_leave_it_to_the_node_of_rank_0() -> None:
    assert creating(job_of(1, 2, node_rank=1, first=2)) is not None
    assert creating(job_of(1, 2, node_rank=0)) is None


class Watched:
    """A RasSampler whose clock is told; each `second` is one look of the hub."""

    def __init__(
        self, job: JobState, address: str | None = None, proc: Path = Path("/proc"), **settings: Any
    ) -> None:
        self.now = 1000.0
        self.job = job
        self.records: list[Record] = []
        self.samples: list[str] = []
        self.errors: list[tuple[str, str]] = []
        self.watch = RasSampler(
            Settings(**settings),
            Reporter(
                self.records.append, "node-0", sampled=lambda source, seconds: self.samples.append(source)
            ),
            address=address,
            proc=proc,
            steady=lambda: self.now,
            erred=lambda *error: self.errors.append(error),
        )

    def seconds(self, count: int, suspicious: bool = True) -> None:
        for _ in range(count):
            self.now += 1.0
            self.watch.tend(suspicious, self.job)
            worker = self.watch._worker
            if worker is not None:
                worker.join(30.0)
                assert not worker.is_alive()

    def facts(self) -> list[Observation]:
        return [fact for record in self.records for fact in PARSERS[record.source](record)]

    def readings(self) -> list[RasReading]:
        return [fact for fact in self.facts() if isinstance(fact, RasReading)]

    def reasons(self) -> list[str]:
        return [fact.reason for fact in self.facts() if isinstance(fact, SourceFailed)]


@contextlib.contextmanager
def with_nccl(tmp_path: Path, version: str) -> Iterator[int]:
    """A process that has mapped a file called libnccl.so.2 with this version in it; its pid."""
    library = tmp_path / "libnccl.so.2"
    library.write_bytes(
        b"\x7fELF" + b"\0" * (1 << 20) + f"NCCL version {version}+cuda13.0\0".encode() + b"\0" * 5000
    )
    code = (
        "import mmap, sys; file = open(sys.argv[1], 'rb'); kept = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ);"
        "print('ready', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(library)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        try:
            yield process.pid
        finally:
            process.kill()


def answer_of(*pids: int) -> str:
    text = captured("skip_collective/ras_json.txt")
    for old, new in zip((1005, 1006), pids, strict=True):
        text = text.replace(f'"pid": {old}', f'"pid": {new}')
    return text


def test_hang_is_asked_about_twice_and_both_answers_are_kept() -> None:
    job = job_of(1005, 1006)
    job.nccl.version = "2.28.9"
    with ras_server(json=captured("skip_collective/ras_json.txt")) as server:
        watched = Watched(job, server.address)
        watched.seconds(600, suspicious=False)
        assert server.connections == 0
        watched.seconds(7)
        assert server.connections == 0
        watched.seconds(600)
        assert (server.connections, server.reports) == (2, 2)

    first, second = watched.readings()
    assert first.communicators == second.communicators and first.host == "node-0"
    assert "127.0.0.1" in first.addresses
    assert watched.samples == ["nccl_ras"] * 2 and watched.errors == [] and watched.reasons() == []


def test_nccl_too_old_to_be_asked_safely_is_not_asked_and_that_is_said_until_the_suspicion_is_over(
    tmp_path: Path,
) -> None:
    with (
        with_nccl(tmp_path, "2.27.3") as pid,
        ras_server(captured("skip_collective/ras_verbose.txt")) as server,
    ):
        watched = Watched(job_of(pid), server.address)
        watched.seconds(60)
        assert server.connections == 0
        (reason,) = watched.reasons()
        assert "2.27.3" in reason

        watched.seconds(1, suspicious=False)
        assert isinstance(watched.facts()[-1], SourceWorks)  # withdrawn


def test_forced_it_is_asked_all_the_same(tmp_path: Path) -> None:
    with with_nccl(tmp_path, "2.27.3") as pid, ras_server(json=answer_of(pid, 6)) as server:
        watched = Watched(job_of(pid), server.address, ras="force")
        watched.seconds(60)
        assert server.reports == 2 and len(watched.readings()) == 2


def test_version_of_the_library_that_a_rank_has_loaded_lets_it_be_asked(tmp_path: Path) -> None:
    with with_nccl(tmp_path, "2.28.9") as pid, ras_server(json=answer_of(pid, 6)) as server:
        watched = Watched(job_of(os.getpid(), pid), server.address)
        watched.seconds(60)
        assert server.reports == 2


def test_job_without_nccl_is_neither_asked_nor_spoken_of() -> None:
    with ras_server(json=captured("skip_collective/ras_json.txt")) as server:
        for mode in ("auto", "force", "off"):
            watched = Watched(job_of(os.getpid()), server.address, ras=mode)
            watched.seconds(60)
            assert watched.records == []
        assert server.connections == 0


def test_off_is_said_of_a_job_with_nccl() -> None:
    job = job_of(1005, 1006)
    job.nccl.version = "2.28.9"
    with ras_server(json=captured("skip_collective/ras_json.txt")) as server:
        watched = Watched(job, server.address, ras="off")
        watched.seconds(60)
        assert server.connections == 0
    assert watched.reasons() == ["switched off"]


def test_ras_that_the_job_switched_off_is_not_asked() -> None:
    job = job_of(1005, 1006)
    job.nccl.version = "2.28.9"
    with ras_server(json=captured("skip_collective/ras_json.txt")) as server:
        watched = Watched(job, server.address)
        watched.watch.rank_found(job.ranks[0].placement, {"NCCL_RAS_ENABLE": "0"})
        watched.seconds(60)
        assert server.connections == 0
    (reason,) = watched.reasons()
    assert "NCCL_RAS_ENABLE=0" in reason


def test_asked_as_soon_as_no_communicator_is_made_any_more() -> None:
    job = job_of(566, 567)
    job.nccl.version = "2.28.9"
    say(job, START)
    with ras_server(json=answer_of(566, 567)) as server:
        watched = Watched(job, server.address)
        watched.seconds(60)
        assert server.connections == 0
        (reason,) = watched.reasons()  # said once
        assert "communicator" in reason

        say(job, COMPLETE)
        watched.seconds(1)
        assert server.connections == 1
        assert isinstance(watched.facts()[-2], SourceWorks)


def test_address_of_the_ranks_is_asked_and_that_of_the_log_before_it() -> None:
    job = job_of(1005, 1006)
    job.nccl.version = "2.28.9"
    with (
        ras_server(json=captured("skip_collective/ras_json.txt")) as ranks,
        ras_server(json=captured("skip_collective/ras_json.txt")) as log,
    ):
        watched = Watched(job, "localhost:1")
        watched.watch.rank_found(
            job.ranks[0].placement, {"NCCL_RAS_ADDR": ranks.address, "NCCL_DEBUG": "INFO"}
        )
        watched.seconds(9)
        assert ranks.connections == 1

        say(job, f"gpu-node-0:1005:1005 [0] NCCL INFO RAS client listening socket at 127.0.0.1<{log.port}>")
        watched.seconds(9)
        assert (ranks.connections, log.connections) == (1, 1)


def test_line_of_the_log_cannot_send_diag_to_another_machine() -> None:
    job = job_of(1005, 1006)
    job.nccl.version = "2.28.9"
    asked: list[str] = []
    watched = Watched(job, "localhost:5")
    watched.watch._ask = lambda address, **kwargs: (
        asked.append(address) or {"failed": "refused", "detail": ""}
    )
    say(job, "gpu-node-0:1005:1005 [0] NCCL INFO RAS client listening socket at 198.51.100.7<80>")
    watched.seconds(30)
    assert asked == ["localhost:5"]


def test_default_address_is_that_of_nccl() -> None:
    job = job_of(1005, 1006)
    job.nccl.version = "2.28.9"
    asked: list[str] = []
    watched = Watched(job)
    watched.watch._ask = lambda address, **kwargs: (
        asked.append(address) or {"failed": "refused", "detail": ""}
    )
    watched.seconds(30)
    assert asked == [nccl_ras.DEFAULT_ADDRESS]
    assert watched.errors == [("nccl_ras", "refused")] and "nothing is listening" in watched.reasons()[0]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_fault_of_the_client_is_counted_and_not_repeated_each_second() -> None:
    job = job_of(1005, 1006)
    job.nccl.version = "2.28.9"
    asked: list[str] = []

    def ask(address: str, **kwargs: object) -> None:
        asked.append(address)
        raise ValueError("a bug")

    watched = Watched(job, "localhost:5")
    watched.watch._ask = ask
    watched.seconds(60)
    assert len(asked) == 1 and watched.errors == [("nccl_ras", "error")]


def test_another_jobs_answer_is_refused_and_not_kept() -> None:
    job = job_of(41, 42)
    job.nccl.version = "2.28.9"
    with ras_server(json=captured("skip_collective/ras_json.txt")) as server:
        watched = Watched(job, server.address)
        watched.seconds(60)
        assert server.connections == 1
    assert watched.readings() == [] and "another job" in watched.reasons()[0]


def test_large_job_is_asked_for_text() -> None:
    job = job_of(1005, 1006)
    job.nccl.version = "2.28.9"
    job.ranks.world_size = 4096
    with ras_server(
        captured("skip_collective/ras_verbose.txt"), captured("skip_collective/ras_json.txt")
    ) as server:
        Watched(job, server.address).seconds(9)
        assert "SET FORMAT json" not in server.commands and server.reports == 1


def test_job_that_ended_or_was_interrupted_is_not_asked() -> None:
    from diag.model.observations import Interrupted

    job = job_of(1005, 1006)
    job.nccl.version = "2.28.9"
    job.observe(50.0, Interrupted(None, 15))
    with ras_server(json=captured("skip_collective/ras_json.txt")) as server:
        Watched(job, server.address).seconds(60)
        assert server.connections == 0


def test_library_is_found_in_the_map_of_a_real_process_and_its_version_in_the_file(tmp_path: Path) -> None:
    with with_nccl(tmp_path, "2.28.9") as pid:
        library = library_of(pid)
        assert library == str(tmp_path / "libnccl.so.2")
        assert version_of(pid, library) == "2.28.9"


def test_library_that_was_replaced_on_disk_is_still_seen(tmp_path: Path) -> None:
    with with_nccl(tmp_path, "2.28.9") as pid:
        (tmp_path / "libnccl.so.2").unlink()
        assert library_of(pid) == str(tmp_path / "libnccl.so.2")


def test_process_without_it_has_none_and_one_that_is_gone_cannot_be_seen() -> None:
    assert library_of(os.getpid()) == ""
    assert library_of(1 << 22) is None


def test_words_that_cross_two_reads_are_found(tmp_path: Path) -> None:
    words = b"NCCL version 2.28.19+cuda13.0\0"
    for shift in range(len(words) + 2):
        path = tmp_path / "libnccl.so.2"
        path.write_bytes(b"\0" * ((1 << 20) - shift) + words)
        assert version_of(os.getpid(), str(path)) == "2.28.19"


def test_version_in_the_name_or_of_the_wheel_beside_it_needs_no_look_into_the_file(tmp_path: Path) -> None:
    assert version_of(1, "/usr/lib/x86_64-linux-gnu/libnccl.so.2.27.7") == "2.27.7"
    folder = tmp_path / "site-packages" / "nvidia" / "nccl" / "lib"
    folder.mkdir(parents=True)
    (folder / "libnccl.so.2").write_bytes(b"nothing of it")
    (tmp_path / "site-packages" / "nvidia_nccl_cu12-2.28.9.dist-info").mkdir()
    assert version_of(os.getpid(), str(folder / "libnccl.so.2")) == "2.28.9"


def test_file_without_the_words_or_gone_tells_no_version(tmp_path: Path) -> None:
    (tmp_path / "libnccl.so.2").write_bytes(b"NCCL version two")
    assert version_of(os.getpid(), str(tmp_path / "libnccl.so.2")) == ""
    assert version_of(os.getpid(), "/no/such/libnccl.so.2") == ""
    assert version_of(1 << 22, "/usr/lib/libnccl.so.2") == ""
