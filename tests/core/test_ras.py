"""When RAS is asked: decisions, a real server, real processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from diag.agent.samplers.ras import (
    RasSampler,
)
from diag.agent.samplers.sampler import Reporter
from diag.model import Record
from diag.model.observations import (
    Observation,
    RasReading,
    SourceFailed,
    SourceWorks,
)
from diag.settings import Settings
from diag.sources.collectives import nccl_ras
from diag.sources.parsers import PARSERS
from diag.state.job import JobState
from tests.rasjobs import COMPLETE, START, job_of, say, with_nccl
from tests.rasserver import captured, ras_server

# --- the watch: decisions, a real server, real processes


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
    assert watched.errors == [("nccl_ras", "refused")] and "nothing listens" in watched.reasons()[0]


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
