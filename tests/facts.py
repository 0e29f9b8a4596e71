"""Builders for facts that detectors are told; defaults are those of a quiet two-rank job."""

from __future__ import annotations

from collections.abc import Sequence

from diag.detectors.contract import Detector
from diag.detectors.precedence import PRECEDENCE
from diag.engine.engine import Engine
from diag.model import Finding, Placement
from diag.model.observations import (
    Frame,
    Observation,
    ProcessSample,
    ProcessTree,
    RankExited,
    RankFound,
    RunStarted,
    StackSample,
    ThreadStack,
)

TICKS = 777


def process(
    pid: int,
    *,
    state: str = "S",
    cpu: float = 0.0,
    comm: str = "python3",
    wchan: str = "",
    chars: int | None = 0,
    rss: int = 1 << 30,
    ppid: int = 1,
) -> ProcessSample:
    return ProcessSample(pid, ppid, comm, state, cpu, 40, rss, TICKS, chars, 0, 0, 0, wchan)


def pid_of(rank: int) -> int:
    return 1000 + rank


def found(rank: int, world: int = 2, nodes: int = 1) -> RankFound:
    """With several nodes the ranks seen are those of the first: it has `world / nodes` of them."""
    place = Placement(rank, rank, world, "node-0", pid_of(rank), TICKS, 0, world // nodes, "torchrun")
    return RankFound(rank, place, "python train.py")


def tree(
    rank: int,
    at: float,
    *children: ProcessSample,
    state: str = "S",
    cpu: float = 0.0,
    wchan: str = "",
    chars: int = 0,
    open_files: int | None = 50,
    rss: int = 1 << 30,
) -> ProcessTree:
    main = process(pid_of(rank), state=state, cpu=cpu, wchan=wchan, chars=chars, rss=rss)
    return ProcessTree(rank, main, tuple(children), at, open_files, None, None, None, cpu)


def frames(*innermost_last: str) -> tuple[Frame, ...]:
    """ "function file:line" strings, outermost first."""
    made = []
    for text in innermost_last:
        function, _, place = text.partition(" ")
        file, _, line = place.rpartition(":")
        made.append(Frame(function, file, int(line)))
    return tuple(made)


TRAIN = ("<module> /app/train.py:300", "main /app/train.py:250", "train /app/train.py:200")
ALL_REDUCE = (
    *TRAIN,
    "wrapper torch/distributed/c10d_logger.py:83",
    "all_reduce torch/distributed/distributed_c10d.py:3173",
)
DATA = (
    *TRAIN,
    "__next__ torch/utils/data/dataloader.py:741",
    "_next_data torch/utils/data/dataloader.py:1520",
    "_try_get_data torch/utils/data/dataloader.py:1295",
    "get python3.11/queue.py:180",
    "wait python3.11/threading.py:331",
)
SLEEP = (*TRAIN, "wait_for_leader /app/train.py:120")
WORKER = (
    "_worker_loop torch/utils/data/_utils/worker.py:349",
    "fetch torch/utils/data/_utils/fetch.py:54",
    "read_record /app/reader.py:12",
)


def stack(
    rank: int,
    at: float,
    lines: Sequence[str],
    *others: ThreadStack,
    pid: int | None = None,
    owns_gil: bool = False,
) -> StackSample:
    main = ThreadStack(pid or pid_of(rank), "MainThread", frames(*lines), False, owns_gil)
    parent = None if pid is None else pid_of(rank)
    return StackSample(rank, pid or pid_of(rank), (main, *others), "pyspy", at, parent)


class Story:
    """Tells an engine facts at told times, the way a hub would, without sources."""

    def __init__(
        self,
        detectors: Sequence[Detector] | None = None,
        world: int = 2,
        start: float = 1000.0,
        nodes: int = 1,
    ) -> None:
        from diag.detectors import make_detectors

        self.engine = Engine({}, make_detectors() if detectors is None else detectors, PRECEDENCE)
        self.now = start
        self.world = world
        self.tell(RunStarted(None, ("torchrun", "train.py"), 999, "node-0", world))
        for rank in range(world // nodes):
            self.tell(found(rank, world, nodes))

    def tell(self, *facts: Observation) -> None:
        self.engine.advance(self.now)
        for fact in facts:
            self.engine._dispatch(fact)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.engine.advance(self.now)

    def still(
        self,
        seconds: float,
        stacks: dict[int, Sequence[str]],
        *,
        step: float = 2.0,
        trees: dict[int, dict[str, object]] | None = None,
    ) -> None:
        """Nothing moves for so long: the same stacks and process states come again and again."""
        end = self.now + seconds
        while self.now < end:
            for rank, lines in stacks.items():
                self.tell(tree(rank, self.now, **((trees or {}).get(rank, {}))))  # type: ignore[arg-type]
                self.tell(stack(rank, self.now, lines))
            self.wait(step)

    def exit(self, rank: int, code: int | None = None, signal: int | None = None) -> None:
        self.tell(RankExited(rank, pid_of(rank), code, signal, "pidfd"))

    def findings(self) -> list[Finding]:
        return self.engine.active()

    def the(self, finding_id: str) -> Finding:
        return next(finding for finding in self.findings() if finding.id == finding_id)

    def hang(self) -> Finding:
        """Who holds the job up, and why, whether it is known to be for good or not."""
        return next(finding for finding in self.findings() if finding.id in ("hang", "held-up"))
