"""Builders for what hubs tell of their nodes: defaults are those of a healthy node of two with one rank."""

from __future__ import annotations

from typing import Any

from diag.detectors.cluster import make_job_detectors
from diag.detectors.precedence import PRECEDENCE
from diag.engine.engine import Engine
from diag.model import JOB, Confidence, Evidence, Finding, Placement, Severity
from diag.model.observations import NodeDigest, NodeProbed, Observation, RankDigest, RankExited, RankFound

START = 1000.0


def node(number: int | None, **changes: Any) -> NodeDigest:
    values: dict[str, Any] = {
        "rank": None, "run_id": f"run-{number}", "host": f"gpu-{number}", "node_rank": number, "url": f"http://10.0.0.{number}:9095",
        "seq": 1, "nodes": 2, "rendezvous": "10.0.0.0:29500", "ranks": 1, "local_world_size": 1, "world_size": 2,
        "phase": "steady", "marked_phase": "steady", "phase_at": START, "phase_line": "", "iteration": 5, "total_iterations": 100,
        "iteration_at": START, "log_moved_at": START, "save_moved_at": None, "started_at": START - 100, "step_seconds": 1.0,
        "line_seconds": 1.0, "silence_seconds": 0.0, "phase_seconds": 0.0, "returncode": None, "interrupted": False,
        "round_trip_seconds": 0.001, "skew_seconds": None, "every_seconds": 5.0, **changes,
    }  # fmt: skip
    return NodeDigest(**values)


def rank(
    number: int,
    at: float,
    *,
    of: int | None = None,
    moved: float | None = None,
    exited: RankExited | None = None,
    world: int = 2,
    **changes: Any,
) -> RankDigest:
    """`of`: the number of its node."""
    home = number if of is None else of
    place = Placement(number, 0, world, f"gpu-{home}", 1000 + number, 777, home, 1, "torchrun")
    values: dict[str, Any] = {
        "rank": number, "placement": place, "run_id": f"run-{home}", "at": at,
        "moved": (("log", moved if moved is not None else at),), "alive": exited is None, "state": "S", "comm": "python",
        "tree_at": at, "cpu_ratio": 0.1, "main_cpu_ratio": 0.1, "rss_bytes": 1 << 30, "stopped_at": None, "stack_at": at,
        "stack_since": at, "stack_samples": 1, "stack_how": "pyspy", "exited": exited, **changes,
    }  # fmt: skip
    return RankDigest(**values)


def finding(kind: str = "ib-fallback", **changes: Any) -> Finding:
    values: dict[str, Any] = {
        "id": kind,
        "subject": JOB,
        "severity": Severity.WARNING,
        "confidence": Confidence.HIGH,
        "summary": f"{kind} it is",
        "advice": "mend it",
        "since": START,
        **changes,
    }
    return Finding(**values)


def death(number: int, since: float, said: str = "", **changes: Any) -> Finding:
    words = f'; it printed: "{said}"' if said else "; it said nothing that tells why"
    evidence = (
        Evidence("exits", "status", since, number),
        *((Evidence("output", said, since, number),) if said else ()),
    )
    return finding("rank-died", subject=f"rank {number}", severity=Severity.CRITICAL, since=since, ranks=(number,),
                   cause="exit_1", summary=f"rank {number} (pid {1000 + number}) ended with exit code 1{words}",
                   evidence=evidence, final=True, **changes)  # fmt: skip


class Reports:
    """An engine as the job hub's, told what nodes say."""

    def __init__(self) -> None:
        self.engine = Engine({}, make_job_detectors(), PRECEDENCE)
        self.now = START
        self._seq = 1

    def tell(self, *facts: Observation) -> None:
        self.engine.advance(self.now)
        for fact in facts:
            self.engine._dispatch(fact)
            if isinstance(fact, RankDigest) and fact.exited is not None:
                self.engine._dispatch(fact.exited)

    def hear(
        self, number: int, *, moved: float | None = None, ranks: tuple[int, ...] | None = None, **changes: Any
    ) -> None:
        """A digest of this node with a rank of its number; both moved just now unless told otherwise."""
        self._seq += 1
        last = self.now if moved is None else moved
        self.tell(node(number, seq=self._seq, **{"log_moved_at": last, **changes}))
        for one in (number,) if ranks is None else ranks:
            place = rank(one, self.now, of=number, moved=last)
            self.tell(RankFound(one, place.placement, "python train.py"), place)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.engine.advance(self.now)

    def probe(self, number: int, answer: str) -> None:
        self.tell(NodeProbed(None, f"run-{number}", f"gpu-{number}", answer, 3.0))

    def findings(self) -> list[Finding]:
        return self.engine.active()

    def ids(self) -> list[str]:
        return [one.id for one in self.findings()]

    def the(self, kind: str) -> Finding:
        return next(one for one in self.findings() if one.id == kind)

    def hang(self) -> Finding:
        """Who holds the job up, whether it is known to be for good or not."""
        return next(one for one in self.findings() if one.id in ("hang", "held-up"))

    def notes(self) -> str:
        return " | ".join(f"{line.what}: {line.reason} ({line.remedy})" for line in self.engine.not_checked())
