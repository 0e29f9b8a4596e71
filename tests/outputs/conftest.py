"""A hub as the outputs see it, around a real engine that is told observations directly.

Stacks are those of the H200 capture of a blocked DataLoader worker (torch 2.11, Python 3.12), paths as
captured.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from diag.engine.engine import Engine
from diag.launch.service_discovery import Target
from diag.model import Confidence, Evidence, Finding, NotChecked, Placement, Record, Severity
from diag.model.observations import (
    CgroupMemory,
    EpochStarted,
    Frame,
    GpuSample,
    LimitsSeen,
    Observation,
    ProcessSample,
    ProcessTree,
    RankFound,
    RunStarted,
    SharedMemory,
    StackSample,
    ThreadStack,
)
from diag.outputs.report import report
from diag.outputs.view.view import AgentProcess, Counters, FlameWanted
from diag.state.job import JobState
from tests.hubview import AloneHub

PACKAGES = "/usr/local/lib/python3.12/site-packages/"
MAIN = (Frame("<module>", "/app/train.py", 83),)
IN_ALL_REDUCE = (
    *MAIN,
    Frame("main", "/app/train.py", 64),
    Frame("wrapper", PACKAGES + "torch/distributed/c10d_logger.py", 83),
    Frame("all_reduce", PACKAGES + "torch/distributed/distributed_c10d.py", 3173),
)
IN_DATALOADER = (
    *MAIN,
    Frame("main", "/app/train.py", 50),
    Frame("__next__", PACKAGES + "torch/utils/data/dataloader.py", 741),
    Frame("_next_data", PACKAGES + "torch/utils/data/dataloader.py", 1524),
    Frame("_get_data", PACKAGES + "torch/utils/data/dataloader.py", 1483),
    Frame("_try_get_data", PACKAGES + "torch/utils/data/dataloader.py", 1310),
    Frame("get", "/usr/lib/python3.12/multiprocessing/queues.py", 113),
    Frame("poll", "/usr/lib/python3.12/multiprocessing/connection.py", 257),
)
WORKER = (
    *MAIN,
    Frame("_bootstrap", "/usr/lib/python3.12/multiprocessing/process.py", 314),
    Frame("_worker_loop", PACKAGES + "torch/utils/data/_utils/worker.py", 358),
)
WORKER_STUCK = (
    *WORKER,
    Frame("fetch", PACKAGES + "torch/utils/data/_utils/fetch.py", 54),
    Frame("__getitem__", "/app/train.py", 19),
)
WORKER_IDLE = (*WORKER[:-1], Frame("_worker_loop", PACKAGES + "torch/utils/data/_utils/worker.py", 293),
               Frame("get", "/usr/lib/python3.12/multiprocessing/queues.py", 113))  # fmt: skip

GIB = 2**30


def finding(**changed: Any) -> Finding:
    told: dict[str, Any] = {
        "id": "hang",
        "subject": "job",
        "severity": Severity.CRITICAL,
        "confidence": Confidence.HIGH,
        "summary": "rank 3 waits for its DataLoader since 40 s; ranks 0-2 wait in all_reduce (4 of 4 ranks seen)",
        "advice": "look at what __getitem__ of /app/train.py:19 reads",
        "since": 1000.0,
        "klass": "data_loading",
        "cause": "dataloader_worker_blocked",
        "ranks": (3,),
        "waiting_ranks": (0, 1, 2),
        "evidence": (Evidence("pyspy", "_try_get_data (torch/utils/data/dataloader.py:1310)", 1040.0, 3),),
    }
    return Finding(**{**told, **changed})


class Scripted:
    """A detector that says what the test wants said."""

    name = "scripted"

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.lines: list[NotChecked] = []

    def observe(self, at: float, fact: Observation) -> None: ...

    def check(self, now: float, job: JobState) -> Iterable[Finding]:
        return self.findings

    def not_checked(self, job: JobState) -> Iterable[NotChecked]:
        return self.lines


@dataclass
class FakeHub(AloneHub):
    """Satisfies HubView; `tell` feeds an observation as the record of a source would."""

    says: Scripted = field(default_factory=Scripted)
    lock: Any = field(default_factory=threading.RLock)
    run_id: str = "run-1"
    version: str = "0.1.0"
    started_at: float = 1000.0
    counters: Counters = field(default_factory=Counters)
    token: str | None = None
    bound_beyond_loopback: bool = False
    on_dump: Callable[[float], Any] | None = None
    flame_error: Exception | None = None
    known_targets: tuple[Target, ...] = ()

    def __post_init__(self) -> None:
        def parse(record: Record) -> Iterator[Observation]:
            yield record.payload

        self.engine = Engine({"told": parse}, [self.says])

    def tell(self, at: float, *facts: Observation) -> None:
        for fact in facts:
            self.engine.feed(Record("told", fact, fact.rank, at=at))

    def report(self) -> dict[str, Any]:
        return report(self.engine)

    def targets(self) -> tuple[Target, ...]:
        return self.known_targets

    async def dump(self, deadline: float, *, native: bool = False, scope: str = "job") -> dict[str, Any]:
        if self.on_dump is not None:
            return await self.on_dump(deadline)  # type: ignore[no-any-return]
        return {"schema": "diag.dump/1", "deadline": deadline, "report": self.report()}

    async def flame(self, place: Placement, wanted: FlameWanted) -> bytes:
        if self.flame_error is not None:
            raise self.flame_error
        return f"{place.pid} {wanted}".encode()


def process(pid: int, cpu: float, **changed: Any) -> ProcessSample:
    told: dict[str, Any] = {"ppid": 1, "comm": "python3", "state": "S", "threads": 19, "rss_bytes": 4 * GIB}
    return ProcessSample(**{"pid": pid, "cpu_seconds": cpu, "start_ticks": pid, **told, **changed})


def found(rank: int, world: int, host: str = "node0") -> RankFound:
    return RankFound(rank, Placement(rank, rank, world, host, 750 + rank, 750 + rank))


def stack(rank: int, frames: tuple[Frame, ...], pid: int | None = None) -> StackSample:
    own = 750 + rank
    thread = ThreadStack(pid or own, "MainThread", frames, active=False, owns_gil=False)
    return StackSample(rank, pid or own, (thread,), "pyspy", 0.0, own if pid else None)


def tell_job(hub: FakeHub, world: int) -> None:
    """A job of `world` ranks in its first step: the last rank's DataLoader worker is stuck, the others wait
    for it."""
    hub.tell(1000.0, RunStarted(None, ("megatron", "rlhf"), 700, "node0", world))
    for rank in range(world):
        culprit = rank == world - 1
        children = tuple(process(10_000 + 10 * rank + n, 1.0) for n in range(2))
        hub.tell(
            1000.0,
            found(rank, world),
            LimitsSeen(rank, 750 + rank, (("Max locked memory", 65536), ("Max open files", 1024), ("Max processes", None))),
            CgroupMemory(rank, 2, "/job", 30 * GIB, 64 * GIB, 33 * GIB, 0),
            SharedMemory(rank, 64 * 2**20, 60 * 2**20),
            GpuSample(None, rank, f"GPU-{rank}", f"0000:{rank:02x}:00.0", "H200", 0.0 if culprit else 1.0, 6 * GIB, 141 * GIB,
                      120.0, 700.0, 1_980_000_000, 39.0, 0, (750 + rank,)),
            ProcessTree(rank, process(750 + rank, 10.0), children, 1000.0, 214, 5 * GIB, 2 * GIB, 0),
        )  # fmt: skip
    hub.tell(1001.0, EpochStarted(None, 0, "The training of Epoch 0 starts..."))
    for at in (1005.0, 1035.0):
        for rank in range(world):
            culprit = rank == world - 1
            hub.tell(at, stack(rank, IN_DATALOADER if culprit else IN_ALL_REDUCE))
            hub.tell(at, stack(rank, WORKER_STUCK if culprit else WORKER_IDLE, 10_000 + 10 * rank))
            hub.tell(at, stack(rank, WORKER_IDLE, 10_001 + 10 * rank))
    hub.counters.sampled("pyspy", 0.25)
    hub.counters.sampler_errors[("pyspy", "denied")] += 1
    hub.counters.records_total = hub.engine.records
    hub.counters.processes[("hub", None)] = AgentProcess(1.5, 80 * 2**20)
    hub.counters.processes[("sidecar", 0)] = AgentProcess(0.5, 20 * 2**20)


@pytest.fixture
def hub() -> FakeHub:
    """Four ranks in their first step; nothing judged yet."""
    made = FakeHub()
    tell_job(made, 4)
    return made


@pytest.fixture
def hung(hub: FakeHub) -> FakeHub:
    """The same, and the hang was found."""
    hub.says.findings = [finding()]
    hub.engine.advance(1040.0)
    return hub


@pytest.fixture
def empty() -> FakeHub:
    return FakeHub()


@pytest.fixture(scope="session")
def kit() -> Any:
    """The builders above, for tests that shape their own job (there is no package to import them from)."""
    return sys.modules[__name__]
