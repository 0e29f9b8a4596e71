"""Digests of many nodes, made by the real DigestMaker from real engines: one engine for all healthy nodes and
one for the node of the culprit, told facts as their hubs would be; of each node only names, numbers and what
it was told before differ."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from diag.agent.cluster.digest import Collector, DigestMaker, _fitting
from diag.agent.cluster.roster import WHOLE_ROSTER, Identity
from diag.detectors import make_detectors
from diag.detectors.precedence import PRECEDENCE
from diag.engine.engine import Engine
from diag.model import Placement
from diag.model.observations import (
    CollectiveEntry,
    CollectiveGroup,
    FlightRecorder,
    Iteration,
    NcclCommunicator,
    NcclLine,
    NcclNetChosen,
    Observation,
    RankFound,
    RunStarted,
    StackSample,
    StackSampleSummary,
    ThreadStack,
)
from diag.sources.digest import wire_all
from tests.facts import ALL_REDUCE, DATA, TRAIN, WORKER, frames, pid_of, process, tree

__all__ = ["CULPRIT", "RANKS", "STEP_SECONDS", "NodeTold", "Play", "packed"]

RANKS = 8
STEP_SECONDS = 4.0
CULPRIT = 3  # local rank
_CORE = "/opt/venv/lib/python3.11/site-packages/megatron/core"
_DEEP = tuple(f"__call__ {_CORE}/transformer/layer_{depth}.py:{100 + depth}" for depth in range(24))
_MOVING = tuple(
    (*TRAIN, *_DEEP, f"forward {_CORE}/models/gpt/gpt_model.py:{line}") for line in (311, 342, 377, 401)
)
_WAITING = (*ALL_REDUCE[:3], *_DEEP, *ALL_REDUCE[3:])
_STUCK = (*DATA[:3], *_DEEP[:4], *DATA[3:])
_SERVICE = (
    "_bootstrap python3.11/threading.py:1002",
    "run tqdm/_monitor.py:60",
    "wait python3.11/threading.py:331",
)
_IDLE = (WORKER[0], "get multiprocessing/queues.py:113")


def _threads(pid: int, lines: tuple[str, ...]) -> tuple[ThreadStack, ...]:
    kinds = [frames(_SERVICE[0], f"run app/thread_{place}.py:7", _SERVICE[2]) for place in range(4)]
    others = [
        ThreadStack(pid + 10_000 + place, f"Thread-{place}", kind, False, False)
        for place, kind in enumerate(kinds)
    ]
    return (ThreadStack(pid, "MainThread", frames(*lines), False, False), *others)


def _recorder(rank: int, world: int, at: float, pending: bool) -> FlightRecorder:
    """Four groups as of a Megatron job, 50 calls of each, which is what a hub keeps of a recorder."""
    groups = tuple(
        CollectiveGroup("nccl", str(number), desc, members, 900, 899)
        for number, (desc, members) in enumerate(
            (
                ("default_pg", tuple(range(world))),
                ("TENSOR_MODEL_PARALLEL_GROUP", tuple(range(8))),
                ("DATA_PARALLEL_GROUP", tuple(range(rank % 8, world, 8))),
                ("EXPERT_MODEL_PARALLEL_GROUP", tuple(range(8))),
            )
        )
    )
    entries = tuple(
        CollectiveEntry(
            "nccl",
            group.name,
            group.desc,
            850 + number,
            850 + number,
            False,
            "nccl:all_reduce",
            ((8192, 4096),),
            ((8192, 4096),),
            ("BFloat16",),
            "completed",
            True,
            False,
            850 + number,
            1.7e9 + rank,
        )
        for group in groups
        for number in range(49)
    )
    last = CollectiveEntry(
        "nccl",
        "0",
        "default_pg",
        900,
        900,
        False,
        "nccl:all_reduce",
        ((8192, 4096),),
        ((8192, 4096),),
        ("BFloat16",),
        "started",
        False,
        True,
        900,
        1.7e9,
    )
    return FlightRecorder(
        rank, at, "2.10", ("nccl",), groups, (*entries, last) if pending else entries, pid_of(rank)
    )


class _Looks(Collector):
    """Keeps what it gives: many nodes are told from one."""

    def take_looks(self, rank: int) -> tuple[StackSampleSummary, ...]:
        return tuple(self._looks.get(rank, ()))


@dataclass(slots=True)
class NodeTold:
    """What the job hub has been told of one node by the hub that it plays."""

    number: int  # from 0; its node rank is 2 higher
    run_id: str
    host: str
    culprit: bool = False
    frames: set[str] = field(default_factory=set)
    facts: int = -1  # stamp
    looks_until: float = 0.0
    seq: int = 0

    def forget(self) -> None:
        self.frames.clear()
        self.facts = -1


class _Template:
    """One node's engine."""

    def __init__(self, world: int, nodes: int, culprit: bool, started: float) -> None:
        self.world, self.nodes, self.culprit = world, nodes, culprit
        self.collector = _Looks()
        self.collector.joined = True
        self.engine = Engine({}, [*make_detectors(), self.collector], PRECEDENCE)
        self.step = 0
        self._made: dict[tuple[float, int], dict[str, Any]] = {}
        self._facts: dict[tuple[int, int], dict[str, Any]] = {}
        self.tell(started, RunStarted(None, ("torchrun", "train.py"), 999, "node-0", world))
        for rank in range(RANKS):
            place = Placement(rank, rank, world, "node-0", pid_of(rank), 777, 0, RANKS, "torchrun")
            self.tell(started, RankFound(rank, place, "python train.py --tensor_model_parallel_size 8"))
            for number in range(6):
                line = NcclLine(
                    rank,
                    "node-0",
                    pid_of(rank),
                    pid_of(rank),
                    rank,
                    "INFO",
                    "comm 0x20035e20 rank 1 nRanks 2 ...",
                )
                for stage in ("start", "topology", "complete"):
                    self.tell(
                        started, NcclCommunicator(rank, line, stage, f"0x{number}", rank, 8, f"0xc{number}")
                    )
                self.tell(started, NcclNetChosen(rank, line, "IB"))

    def tell(self, at: float, *facts: Observation) -> None:
        self.engine.advance(at)
        for fact in facts:
            self.engine._dispatch(fact)

    def move(self, at: float, second: int) -> None:
        """A healthy second."""
        if second % 2 == 0:
            self.tell(at, *(tree(rank, at, *self._children(), cpu=at % 1e6 * 0.9) for rank in range(RANKS)))
        if second % 5 == 0:
            path = _MOVING[second // 5 % len(_MOVING)]
            self.tell(
                at,
                *(
                    self._stack(rank, at, path if (second // 5 + rank) % 3 else _WAITING)
                    for rank in range(RANKS)
                ),
            )
        if second % STEP_SECONDS == 0:
            self.step += 1
            self.tell(at, Iteration(None, self.step, 100_000, f"iteration {self.step}", (("loss", 1.0),)))
        self.engine.advance(at)

    def stand(self, at: float, second: int, since: float) -> None:
        """A second of the hang. Looks come every two seconds, the recorders are read after 8 s and 20 s."""
        if second % 2 == 0:
            self.tell(at, *(tree(rank, at, *self._children(), cpu=since % 1e6) for rank in range(RANKS)))
            for rank in range(RANKS):
                stuck = self.culprit and rank == CULPRIT
                self.tell(at, self._stack(rank, at, _STUCK if stuck else _WAITING))
                for child in range(2):
                    pid = pid_of(rank) + 100 + child
                    waits = ThreadStack(pid, "MainThread", frames(*_IDLE), False, False)
                    self.tell(at, StackSample(rank, pid, (waits,), "pyspy", at, pid_of(rank)))
        waited = round(at - since)
        if waited in (8, 20, 50):
            self.tell(
                at,
                *(
                    _recorder(rank, self.world, at, not (self.culprit and rank == CULPRIT))
                    for rank in range(RANKS)
                ),
            )
        self.engine.advance(at)

    @staticmethod
    def _children() -> tuple[Any, ...]:
        return tuple(process(2000 + child) for child in range(4))

    @staticmethod
    def _stack(rank: int, at: float, lines: tuple[str, ...]) -> StackSample:
        return StackSample(rank, pid_of(rank), _threads(pid_of(rank), lines), "pyspy", at, None)

    def document(self, detail: int) -> dict[str, Any]:
        """The digest of this moment, all of it."""
        key = (self.engine.now, detail)
        if key not in self._made:
            self._made = {made: one for made, one in self._made.items() if made[0] == key[0]}
            me = Identity(
                "template",
                "node-0",
                "0.1",
                node_rank=2,
                nodes=self.nodes,
                rendezvous="10.0.0.1:29500",
                local_world_size=RANKS,
            )
            gpus = (
                {rank: "idle" if self.culprit and rank == CULPRIT else "spins" for rank in range(RANKS)}
                if detail
                else {}
            )
            self._made[key] = DigestMaker(self.collector).make(
                self.engine, me, self.engine.now, 5.0, gpus, detail=detail
            )
        return self._made[key]

    def facts(self, after: int) -> dict[str, Any]:
        """As DigestMaker writes them; many nodes are told the same."""
        key = (after, self.collector.stamp)
        if key not in self._facts:
            fitting = (_fitting(fact, self.world) for fact in self.collector.facts(after))
            self._facts[key] = wire_all(fitting, self.engine.now)
        return self._facts[key]


class Play:
    """All nodes of a job of `count` and two real hubs (nodes 0 and 1), of which the `culprit`th gets stuck."""

    def __init__(self, count: int, culprit: int, started: float) -> None:
        world = count * RANKS
        self.count, self.culprit = count, culprit
        self._kinds = {
            is_culprit: _Template(world, count + 2, is_culprit, started) for is_culprit in (False, True)
        }
        self.hangs_since: float | None = None
        self.last_moved = started
        self._second = 0

    @property
    def closer(self) -> bool:
        """As a hub that sees nothing move looks closer."""
        return (
            self.hangs_since is not None
            and self._kinds[False].engine.now - self.last_moved > 3 * STEP_SECONDS
        )

    @property
    def now(self) -> float:
        return self._kinds[False].engine.now

    def tick(self, at: float) -> None:
        self._second += 1
        for kind in self._kinds.values():
            if self.hangs_since is None:
                kind.move(at, self._second)
                self.last_moved = at
            else:
                kind.stand(at, self._second, self.hangs_since)

    def hang(self) -> None:
        self.hangs_since = self.now

    def digest(self, node: NodeTold, every: float, detail: int, *, facts: bool = True) -> dict[str, Any]:
        """What that node sends now: as its own DigestMaker, only what it has not told."""
        whole = self._kinds[node.culprit].document(detail)
        node.seq += 1
        sent = {key: whole["frames"][key] for key in whole["frames"] if key not in node.frames}
        node.frames.update(sent)
        document = {
            "schema": whole["schema"],
            "node": {**whole["node"], "every_seconds": every, "seq": node.seq, **_names(node)},
            "ranks": list(self._ranks(whole, node)),
            "frames": sent,
            "commands": {str(node.number * RANKS): text for text in whole["commands"].values()},
        }
        kind = self._kinds[node.culprit]
        if facts and kind.collector.stamp != node.facts:
            told = kind.facts(node.facts)
            document |= {**told, "facts": [_placed(row, node) for row in told["facts"]]}
            node.facts = kind.collector.stamp
        node.looks_until = self.now
        return document

    def dump(self, node: NodeTold) -> dict[str, Any]:
        node.forget()
        return {
            "schema": "diag.dump/1",
            "host": node.host,
            "at": self.now,
            "seconds": 0.3,
            "missing": {},
            "versions": {},
            "probes": [
                {
                    "rank": node.number * RANKS + local,
                    "probe": "stack",
                    "seconds": 0.05,
                    "paused_target": False,
                    "ok": True,
                    "reason": "",
                }
                for local in range(RANKS)
            ],
            "digest": self.digest(node, 5.0, 2, facts=self.count <= WHOLE_ROSTER),
        }

    def _ranks(self, whole: dict[str, Any], node: NodeTold) -> Iterator[dict[str, Any]]:
        first = node.number * RANKS
        for row in whole["ranks"]:
            number = first + row["rank"]
            place = {**row["placement"], "rank": number, "host": node.host, "node_rank": node.number + 2}
            looks = [look for look in row.get("looks", ()) if self.now + look["at"] > node.looks_until]
            yield {**row, "rank": number, "run_id": node.run_id, "placement": place, "looks": looks}


def _names(node: NodeTold) -> dict[str, Any]:
    return {"run_id": node.run_id, "host": node.host, "node_rank": node.number + 2}


def _placed(row: list[Any], node: NodeTold) -> list[Any]:
    name, fact = row
    fact = {**fact, "rank": node.number * RANKS + fact["rank"]}
    if "line" in fact:
        fact["line"] = {**fact["line"], "rank": fact["rank"], "host": node.host}
    return [name, fact]


def packed(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode("utf-8", "backslashreplace")
