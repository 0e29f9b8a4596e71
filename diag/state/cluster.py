"""The nodes of the job as their hubs report them, and what the job hub reports to this one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from diag.model.observations import Frame, FramesSeen, JobVerdict, NodeDigest, NodeProbed, VerdictLost
from diag.state.rank_view import RankView
from diag.state.reducer import Reducer, takes

# Ours: three digests and their way; a busy node's hub may be a little late, a dead one stays silent.
_SILENT_DIGESTS, _SILENT_SECONDS = 3.0, 15.0
# No digest at all for so long: another hub judged the job, and what is known of the nodes is old.
_BLIND_SECONDS = 60.0
MOST_FRAMES = 1 << 17
_MOST_NODES = 1 << 15
# Behind this nothing says that the verdict still holds: the node judges by itself again.
_VERDICT_SECONDS = 45.0

_ORDER = (
    "launch", "rendezvous", "model_load", "data_prep", "comm_init", "compile", "training", "first_step", "steady", "eval",
    "ckpt_save", "teardown", "ended",
)  # fmt: skip


@dataclass(slots=True, eq=False)
class NodeState:
    """A node's hub as last heard."""

    digest: NodeDigest
    first_at: float
    heard_at: float
    probe: NodeProbed | None = None
    probe_at: float = 0.0

    @property
    def gone(self) -> bool:
        """It announced its end, or that its command has ended."""
        return self.digest.leaving or self.digest.returncode is not None

    @property
    def name(self) -> str:
        """How a person knows it: host and number."""
        number = self.digest.node_rank
        return self.digest.host if number is None else f"{self.digest.host} (node {number})"

    def silent_after(self) -> float:
        return max(_SILENT_SECONDS, _SILENT_DIGESTS * self.digest.every_seconds)

    def is_silent(self, now: float) -> bool:
        return not self.gone and now - self.heard_at > self.silent_after()


class Cluster(Reducer):
    """Owns what hubs report. Of the job hub: all nodes. Of any other: the last verdict."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeState] = {}  # by run id
        self._seen_at = 0.0  # when any hub was last heard
        self.frames: dict[str, tuple[Frame, ...]] = {}  # of the stacks that digests name by their hash
        self.verdict: JobVerdict | None = None  # what the job hub reported last
        self.verdict_at = 0.0  # and when
        self.why_lost = ""  # why there is no verdict any more, where there was one
        self._current: list[NodeState] | None = None  # what `current` gave; None: to be found anew
        self._doubled = False  # some number has two hubs

    # -- observing ---------------------------------------------------------------------------------------

    @takes(NodeDigest)
    def see(self, at: float, fact: NodeDigest) -> None:
        if at - self._seen_at > _BLIND_SECONDS:
            self.nodes.clear()
        self._seen_at = at
        known = self.nodes.get(fact.run_id)
        if known is not None:
            if fact.seq >= known.digest.seq:
                same = (known.digest.node_rank, known.digest.host) == (fact.node_rank, fact.host)
                known.digest, known.heard_at = fact, at
                # of two of one number it matters who spoke last, and whether one has left
                if self._doubled or not same:
                    self._current = None
            return
        if len(self.nodes) >= _MOST_NODES:  # hubs that others have taken the place of
            self.nodes = {node.digest.run_id: node for node in self._find_current()}
        if len(self.nodes) < _MOST_NODES:
            self.nodes[fact.run_id] = NodeState(fact, at, at)
            self._current = None

    @takes(FramesSeen)
    def see_frames(self, at: float, fact: FramesSeen) -> None:
        if len(self.frames) >= MOST_FRAMES:
            # the oldest; where they are still shown they come again
            for key in list(islice(self.frames, MOST_FRAMES // 4)):
                del self.frames[key]
        self.frames[fact.key] = fact.frames

    @takes(NodeProbed)
    def see_probe(self, at: float, fact: NodeProbed) -> None:
        if (node := self.nodes.get(fact.run_id)) is not None:
            node.probe, node.probe_at = fact, at

    @takes(JobVerdict)
    def see_verdict(self, at: float, fact: JobVerdict) -> None:
        self.verdict, self.verdict_at, self.why_lost = fact, at, ""

    @takes(VerdictLost)
    def lose_verdict(self, at: float, fact: VerdictLost) -> None:
        self.verdict, self.why_lost = None, fact.reason

    # -- reading ------------------------------------------------------------------------------------------

    def joined(self, now: float) -> bool:
        """Another judges the whole job, and was heard of lately."""
        return self.verdict is not None and now - self.verdict_at <= _VERDICT_SECONDS

    def current(self) -> list[NodeState]:
        """One of each node: a hub that took the place of one that is silent or gone replaces it. Two that
        speak under one number are both there."""
        if self._current is None:
            self._current = self._find_current()
        return self._current

    def _find_current(self) -> list[NodeState]:
        by_rank: dict[int, list[NodeState]] = {}
        for node in self.nodes.values():
            if node.digest.node_rank is not None:
                by_rank.setdefault(node.digest.node_rank, []).append(node)
        self._doubled = any(len(same) > 1 for same in by_rank.values())
        found = [node for node in self.nodes.values() if node.digest.node_rank is None]
        for same in by_rank.values():
            newest = max(same, key=lambda node: node.heard_at)
            found += [
                one for one in same if one is newest or (not one.gone and one.heard_at > newest.first_at)
            ]
        return sorted(
            found, key=lambda one: (one.digest.node_rank is None, one.digest.node_rank or 0, one.digest.host)
        )

    def silent(self, now: float) -> list[NodeState]:
        """Those that should have reported."""
        return [node for node in self.current() if node.is_silent(now)]

    def expected(self) -> int:
        """Nodes that the job has, as its launchers say."""
        return max((node.digest.nodes for node in self.nodes.values()), default=0)

    def ranks_on(self, run_id: str, ranks: Mapping[int, RankView]) -> set[int]:
        return {rank.rank for rank in ranks.values() if rank.node == run_id}

    def node_of(self, rank: RankView) -> NodeState | None:
        return self.nodes.get(rank.node) if rank.node else None

    def has_left(self, rank: RankView) -> bool:
        """Its node's hub ended while the rank went on: no hub reports on it any more, and that is not a failure."""
        node = self.node_of(rank)
        return node is not None and node.digest.leaving and node.digest.returncode is None

    def is_lost(self, rank: RankView, now: float) -> bool:
        """Its node is silent: what is known of it is old."""
        node = self.node_of(rank)
        return node is not None and node.is_silent(now)


def furthest(nodes: list[NodeState]) -> NodeDigest | None:
    """The node whose word on the job's phase counts: one that saves, one that knows the step, the one that is
    furthest."""

    def key(node: NodeState) -> tuple[bool, int, int]:
        digest = node.digest
        place = _ORDER.index(digest.phase) if digest.phase in _ORDER else 0
        return (digest.phase == "ckpt_save", -1 if digest.iteration is None else digest.iteration, place)

    return max(nodes, key=key).digest if nodes else None
