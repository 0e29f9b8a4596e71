"""A node whose hub fell silent while the job does not go on: the node is gone, or cut off, or this one is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from diag.detectors.contract import Detector
from diag.detectors.findings import finding, row, with_words
from diag.model import JOB, Evidence, Finding, NotChecked, numbered
from diag.state.cluster import NodeState
from diag.state.view import JobView
from diag.text.units import format_ranks, format_seconds

# So long nothing of the ranks that are seen may have moved: a job that goes on has lost no node, only a hub
# of ours.
_STANDS_SECONDS = 12.0
# Where no node that is heard reports the steps: ranks that mostly wait look as if they stood for several
# samples in a row.
_UNTOLD_SECONDS = 35.0
_GONE = ("timeout", "unreachable", "unresolved")
_ANSWERS = {
    "connected": "its port accepts connections, but nothing answers",
    "refused": "its host answers, but diag no longer listens there",
    "timeout": "no answer from its address",
    "unreachable": "there is no route to its address",
    "unresolved": "its name no longer resolves",
}


class NodeFailureDetector(Detector):
    """The hub of each node sends a digest every few seconds; one that misses three is tried. Nothing is reported while
    ranks of other nodes go on: then only diag's hub there is gone."""

    name = "node-failure"

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        silent = job.cluster.silent(now)
        if not silent or job.returncode is not None or job.interrupted_at is not None:
            return
        speaking = [node for node in job.cluster.current() if node not in silent and not node.gone]
        if not speaking or _moves(job, speaking, now) or _ends_well(job, speaking):
            return
        gone = [node for node in silent if _answer(node) in _GONE]
        here = [node for node in silent if _answer(node) not in ("", *_GONE)]
        if len(gone) > 1 and len(speaking) <= 1 and len(gone) == len(silent):
            yield _cut_off(gone, speaking, job)
        elif gone:
            yield _finding(gone, job, "node_unreachable")
        if here:
            yield _finding(here, job, "hub_unreachable")

    def not_checked(self, job: JobView) -> Iterable[NotChecked]:
        # `now` is not given here: the newest thing heard is used.
        now = max((node.heard_at for node in job.cluster.nodes.values()), default=0.0)
        for node in job.cluster.silent(now):
            answer = _ANSWERS.get(node.probe.answer, "") if node.probe is not None else ""
            ranks = _ranks([node], job)
            silent = f"its hub has not been heard for {format_seconds(now - node.heard_at)}"
            yield NotChecked(
                f"{node.name} ({format_ranks(ranks) if ranks else 'no ranks yet'})",
                f"{silent}: {answer}" if answer else silent,
                "check that diag runs there (`ps`) and that its port is reachable from this node",
            )


def _answer(node: NodeState) -> str:
    """What came when it was tried, since it fell silent; "" where it was not."""
    return node.probe.answer if node.probe is not None and node.probe_at > node.heard_at else ""


def _moves(job: JobView, speaking: Sequence[NodeState], now: float) -> bool:
    """Something of the job went on lately, as far as it is seen."""
    seen = {node.digest.run_id for node in speaking}
    moved = [rank.last_moved() for rank in job.alive_ranks() if rank.node in seen]
    moved.append(job.progress.log_moved_at or 0.0)
    tells_steps = any(node.digest.iteration is not None for node in speaking)
    return now - max(moved) <= (_STANDS_SECONDS if tells_steps else _UNTOLD_SECONDS)


def _ends_well(job: JobView, speaking: Sequence[NodeState]) -> bool:
    """A rank that is seen came through to its end: the job does not stand still, it is over."""
    seen = {node.digest.run_id for node in speaking}
    # its code may be unread
    return any(not rank.alive and not rank.failed for rank in job.ranks.values() if rank.node in seen)


def _ranks(nodes: Sequence[NodeState], job: JobView) -> tuple[int, ...]:
    ids = {node.digest.run_id for node in nodes}
    known = [rank.rank for rank in job.ranks.values() if rank.node in ids]
    return tuple(sorted(known + _ranks_left(ids, job)))


def _ranks_left(ids: set[str], job: JobView) -> list[int]:
    """A hub that took over may know the node, and not yet the ranks found there: where all
    other nodes reported theirs, what is left of the world size are they."""
    current = job.cluster.current()
    homes = {rank.node for rank in job.ranks.values()}
    empty = [node.digest.run_id for node in current if node.digest.run_id not in homes]
    left = sorted(set(range(job.world_size)) - set(job.ranks))
    share = job.world_size // max(len(current), 1)
    if len(empty) != 1 or empty[0] not in ids or len(current) < job.cluster.expected() or len(left) != share:
        return []
    return left


def _finding(nodes: list[NodeState], job: JobView, cause: str) -> Finding:
    ranks = _ranks(nodes, job)
    names = ", ".join(node.name for node in nodes[:4])
    names += f" and {len(nodes) - 4} more" if len(nodes) > 4 else ""
    whose = f" with {format_ranks(ranks)}" if ranks else ""
    answer = _ANSWERS[nodes[0].probe.answer] if nodes[0].probe is not None else ""
    what = with_words(numbered(row("node-failure", cause)["what"], len(nodes)), {"answer": answer})
    return finding(
        "node-failure",
        cause,
        subject=nodes[0].digest.host if len(nodes) == 1 else JOB,
        since=max(node.heard_at for node in nodes),
        summary=f"{names}{whose} {what}",
        words={"names": names},
        count=len(nodes),
        ranks=ranks,
        waiting_ranks=tuple(sorted({rank.rank for rank in job.alive_ranks()} - set(ranks))),
        evidence=[_evidence(node) for node in nodes[:4]],
    )


def _cut_off(gone: list[NodeState], speaking: Sequence[NodeState], job: JobView) -> Finding:
    own = speaking[0] if speaking else None
    name = own.name if own is not None else "this node"
    return finding(
        "node-failure",
        "this_node_cut_off",
        subject=own.digest.host if own is not None else JOB,
        since=min(node.heard_at for node in gone),
        ranks=_ranks(speaking, job),
        waiting_ranks=_ranks(gone, job),
        summary=f"none of the other {len(gone)} nodes answers {name}: this node is cut off from the network, or all of "
        "them are",
        words={"names": name},
        evidence=[_evidence(node) for node in gone[:4]],
    )


def _evidence(node: NodeState) -> Evidence:
    probe = node.probe
    text = f"{node.name} at {node.digest.url or '?'}: last heard in phase {node.digest.phase}"
    if probe is not None:
        text += f"; tried: {_ANSWERS.get(probe.answer, probe.answer)} ({format_seconds(probe.seconds)})"
    return Evidence("digest", text, node.heard_at)
