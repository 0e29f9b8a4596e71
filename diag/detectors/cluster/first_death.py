"""Of the first deaths that the nodes name, each its own: which was the job's first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import urlsplit

from diag.detectors.contract import Detector
from diag.detectors.echoed_errors import CASCADE
from diag.detectors.findings import finding
from diag.model import Finding
from diag.state.cluster import NodeState
from diag.state.view import JobView
from diag.text.units import format_ranks

# Ours: other nodes' ranks fail at once when a connection closes; their nodes wait 2 s for who was first among
# them, and report.
_SETTLE_SECONDS = 5.0
# And so long where all that died say that a peer of theirs was gone before: its node's report is on its way.
_VICTIMS_SECONDS = 15.0
# Moments of two nodes are as exact as the exchange of digests.
_NEAR_SECONDS = 1.0
# gloo of torch 2.13, four nodes, 2026-11-22:
#   RuntimeError: [.../gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.77.0.1]:43440. This is typically ...
#   RuntimeError: [.../gloo/transport/tcp/pair.cc:537] Read error [10.77.0.1]:32168: Connection reset by peer. This is ...
_PEER = re.compile(r"(?:by peer|Read error|Write error) \[([0-9a-fA-F.:]{2,45})\]:\d")


class FirstDeathDetector(Detector):
    """As `rank-died` of one node, over all of them: a rank that reports a lost connection is a victim of
    another node's."""

    name = "first-death"

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        reported = [(node, death) for node in job.cluster.nodes.values() for death in node.digest.deaths]
        if not reported:
            return
        deaths = [death for _, death in reported]
        first = min(death.since for death in deaths)
        current = job.cluster.current()
        waited_for = [node for node in current if not node.gone and not node.digest.deaths]
        node, root = min(reported, key=lambda pair: _order(pair[1], first))
        victim = _is_victim(root)
        lost = _lost_peer(job, deaths, first) if victim else None
        if lost is not None and now - first >= _SETTLE_SECONDS:
            yield _gone(lost, job, deaths, first)
            return
        settle = _VICTIMS_SECONDS if victim else _SETTLE_SECONDS
        if (waited_for or len(current) < job.cluster.expected()) and now - first < settle:
            return
        summary = _summary(root, node if len(current) > 1 else None, job)
        yield replace(root, summary=summary, waiting_ranks=_waiting(root, deaths, job))


def _waiting(root: Finding, deaths: list[Finding], job: JobView) -> tuple[int, ...]:
    waiting = {rank.rank for rank in job.ranks.values() if rank.alive or rank.failed}
    waiting.update(root.waiting_ranks, *(death.ranks for death in deaths))
    return tuple(sorted(waiting.difference(root.ranks)))


def _summary(root: Finding, node: NodeState | None, job: JobView) -> str:
    """As its node reports it, with the node's name, and with what the job knows and that node does not."""
    summary = root.summary
    if node is not None and summary.startswith(f"{root.subject} "):
        summary = f"{root.subject} on {node.digest.host}{summary.removeprefix(root.subject)}"
    if job.iteration is not None and " in phase " in summary:  # that node's own log does not show the steps
        head, _, rest = summary.partition(" in phase ")
        summary = f"{head} after {job.progress.step_words()};{rest.partition(';')[2]}"
    return summary


def _lost_peer(job: JobView, deaths: list[Finding], first: float) -> NodeState | None:
    """The node at whose address the connections of those that died ended, and of which nothing was heard
    since."""
    texts = [text for death in deaths for text in (death.summary, *(item.excerpt for item in death.evidence))]
    named = {address for text in texts for address in _PEER.findall(text)}
    for node in job.cluster.current():
        host = urlsplit(node.digest.url).hostname
        # Of `seq` 0: known from the job hub before, and never heard by this one.
        unheard = node.digest.seq == 0 or node.heard_at <= first + _NEAR_SECONDS
        if host in named and unheard and not node.gone and not node.digest.deaths:
            return node
    return None


def _gone(node: NodeState, job: JobView, deaths: list[Finding], first: float) -> Finding:
    ranks = tuple(sorted(job.cluster.ranks_on(node.digest.run_id, job.ranks)))
    others = {rank for death in deaths for rank in (*death.ranks, *death.waiting_ranks)}
    victims = tuple(sorted(others.difference(ranks)))
    address = urlsplit(node.digest.url).hostname
    one = len(ranks) == 1
    who = f"{format_ranks(ranks)} on {node.digest.host}" if ranks else f"the ranks of {node.digest.host}"
    after = f" after {job.progress.step_words()}" if job.iteration is not None else ""
    return finding(
        "rank-died",
        "node_silent",
        subject=f"rank {ranks[0]}" if one else node.digest.host,
        ranks=ranks,
        waiting_ranks=victims,
        since=first,
        summary=f"{who} {'is' if one else 'are'} gone{after}, and diag there with {'it' if one else 'them'}: "
        f"{format_ranks(victims)} lost the connection to {address}, and nothing has been heard from {node.digest.host} since",
        words={"host": node.digest.host},
        evidence=tuple(item for death in deaths[:3] for item in death.evidence if item.kind == "output")[:6],
    )


def _order(death: Finding, first: float) -> tuple[bool, bool, float]:
    """Its own failure before one that reports another's; then who was first. Within a second that means
    nothing."""
    return (_is_victim(death), death.since - first >= _NEAR_SECONDS, death.since)


def _is_victim(death: Finding) -> bool:
    last = death.summary.partition("it printed: ")[2]
    output = [item.excerpt for item in death.evidence if item.kind == "output"]
    return any(CASCADE.search(text) for text in ([last] if last else output))
