"""Findings of single nodes, passed up: equal ones of many nodes are one, with all their ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from diag.detectors.contract import Detector
from diag.detectors.precedence import PRECEDENCE
from diag.model import JOB, Finding, NotChecked
from diag.state.cluster import NodeState
from diag.state.view import JobView
from diag.text.units import format_seconds

_MOST_EVIDENCE = 8
# subjects that another node has too, and that are not the same there
_OF_A_NODE = ("rank ", "GPU ", "port ", "NVSwitch ")
_MOST_NAMED = 4


class NodeFindingsDetector(Detector):
    """What each node's hub found out about its own machine and ranks. Ranks are the job's; other subjects get
    its name."""

    name = "node-findings"

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        alike: dict[tuple[str, str, str, str, str, str], list[tuple[NodeState, Finding]]] = {}
        nodes = job.cluster.current()
        for node in nodes:
            for finding in node.digest.findings:
                if finding.id in PRECEDENCE.whole_job and not finding.rule:
                    continue
                # Of one rank, or of one device of a node, each is by itself; of a whole node or a
                # variable they are alike.
                place = node.digest.run_id if finding.subject.startswith(_OF_A_NODE) else ""
                key = (finding.id, finding.klass, finding.cause, finding.rule, finding.subject, place)
                alike.setdefault(key, []).append((node, finding))
        known: set[tuple[str, str]] = set()
        for same in sorted(alike.values(), key=lambda same: min(one.since for _, one in same)):
            finding = _united(same, len(nodes))
            if finding.key in known:  # the same trouble of another cause elsewhere
                name = same[0][0].name
                subject = name if finding.subject == JOB else f"{finding.subject} on {name}"
                finding = replace(finding, subject=subject)
            known.add(finding.key)
            yield finding

    def not_checked(self, job: JobView) -> Iterable[NotChecked]:
        """The same reason on many nodes is one line."""
        alike: dict[tuple[str, str, str], list[str]] = {}
        nodes = job.cluster.current()
        for node in nodes:
            for line in node.digest.not_checked:
                alike.setdefault((line.what, line.reason, line.remedy), []).append(node.name)
        for (what, reason, remedy), names in alike.items():
            where = "" if len(names) == len(nodes) else f" on {_names(names)}"
            yield NotChecked(f"{what}{where}", reason, remedy)
        for node in nodes:
            if node.digest.skew_seconds is not None and abs(node.digest.skew_seconds) > _SKEW_SECONDS:
                ahead = "ahead of" if node.digest.skew_seconds > 0 else "behind"
                yield NotChecked(
                    f"times in the logs of {node.name}",
                    f"its clock is {format_seconds(abs(node.digest.skew_seconds))} {ahead} that of the job hub",
                    "set the clocks by NTP (`chronyc tracking`, `timedatectl`); diag itself compares no clocks of two nodes",
                )


_SKEW_SECONDS = 5.0  # ours: below it logs of two nodes can still be read side by side


def _united(same: list[tuple[NodeState, Finding]], nodes: int) -> Finding:
    same.sort(key=lambda pair: (-pair[1].severity.level, pair[1].since))
    first = same[0][1]
    hosts = tuple(dict.fromkeys(node.digest.host for node, _ in same))
    subject = first.subject
    if subject.startswith(_OF_A_NODE) and not subject.startswith("rank "):
        subject = f"{subject} on {same[0][0].name}"
    summary = first.summary
    if len(same) > 1:
        others = _names([node.name for node, _ in same[1:]]) if len(same) < nodes else f"all {nodes} nodes"
        summary += f" (the same on {others})"
    elif nodes > 1 and same[0][0].digest.host not in summary:
        summary += f" ({same[0][0].name})"
    each = max(1, _MOST_EVIDENCE // len(same))
    return replace(
        first,
        subject=subject,
        summary=summary,
        hosts=hosts,
        since=min(one.since for _, one in same),
        ranks=tuple(sorted({rank for _, one in same for rank in one.ranks})),
        waiting_ranks=tuple(sorted({rank for _, one in same for rank in one.waiting_ranks})),
        evidence=tuple(item for _, one in same for item in one.evidence[:each])[:_MOST_EVIDENCE],
    )


def _names(names: list[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more nodes" if more > 0 else "")
