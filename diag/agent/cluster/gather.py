"""A dump of the whole job: every node's hub is asked at once, what does not come in time is reported as missing."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from diag.agent.cluster.post import Failed, Sender
from diag.agent.cluster.roster import Entry
from diag.detectors.precedence import PRECEDENCE
from diag.engine.engine import Engine
from diag.engine.importers.policy import JOB
from diag.model import Record
from diag.sources import digest as digest_source
from diag.text.units import format_seconds

if TYPE_CHECKING:
    from diag.agent.cluster.member import Member

_THREADS = 128
_ROSTER_SECONDS = 2.0
_REASONS = {
    "timeout": "did not answer in time",
    "refused": "refuses the connection: no diag listens there any more",
    "unreachable": "cannot be reached",
    "unresolved": "its name is not known",
    "no_hub": "did not give an answer of diag",
}


def other_hubs(member: Member) -> list[Entry]:
    """Those that live; of a large job only the job hub has all of them, and is asked."""
    entries, job_hub = member.roster, member.asks_for_roster
    if job_hub:
        try:
            rows = member.sender.get(job_hub, "/nodes", _ROSTER_SECONDS)["nodes"]
            entries = [member.known.placed(_entry_of_row(row), member.heard_from, job_hub) for row in rows]
        except (Failed, KeyError, TypeError):
            pass  # those that are known here
    own = member.known.me.run_id
    return [entry for entry in entries if entry["run_id"] != own and not entry.get("gone")]


def _entry_of_row(row: dict[str, Any]) -> Entry:
    known = {name: row[name] for name in ("run_id", "host", "node_rank", "url")}
    return {**known, "gone": row["state"] == "gone", "ranks": [[rank] for rank in row["ranks"]]}


@dataclass(slots=True)
class NodeAnswer:
    """One node's part. `document` is None where it did not come; then `reason` says why."""

    entry: dict[str, Any]
    document: dict[str, Any] | None = None
    reason: str = ""
    seconds: float = 0.0


@dataclass(slots=True)
class Gathering:
    """Asks all nodes, on threads of its own that are not waited for after the deadline."""

    sender: Sender
    entries: Sequence[dict[str, Any]]
    until: float
    native: bool = False
    answers: dict[str, NodeAnswer] = field(default_factory=dict)
    _left: list[dict[str, Any]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _done: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        self._left = list(self.entries)
        if not self._left:
            self._done.set()
        for number in range(min(_THREADS, len(self._left))):
            threading.Thread(target=self._work, name=f"gather-{number}", daemon=True).start()

    def wait(self) -> list[NodeAnswer]:
        """One of each node, in order."""
        self._done.wait(max(0.0, self.until - time.monotonic()))
        with self._lock:
            return [
                self.answers.get(entry["run_id"])
                or NodeAnswer(entry, None, f"its hub at {entry['url']} {_REASONS['timeout']}")
                for entry in self.entries
            ]

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._left:
                    return
                entry = self._left.pop(0)
            answer = self._ask(entry)
            with self._lock:
                self.answers[entry["run_id"]] = answer
                if len(self.answers) == len(self.entries):
                    self._done.set()

    def _ask(self, entry: dict[str, Any]) -> NodeAnswer:
        began = time.monotonic()
        left = self.until - began
        if not entry["url"]:
            return NodeAnswer(entry, None, "its hub's address is not known")
        if left <= 0.2:
            return NodeAnswer(entry, None, "there was no time left to ask it")
        try:
            query = f"/dump?scope=node&deadline={max(0.5, left - 0.3):.2f}" + (
                "&native=1" if self.native else ""
            )
            document = self.sender.get(entry["url"], query, left)
            if not isinstance(document, dict) or "digest" not in document:
                raise Failed("no_hub", "no dump of a node")
        except Failed as error:
            seconds = time.monotonic() - began
            return NodeAnswer(
                entry,
                None,
                f"its hub at {entry['url']} {_REASONS[error.word]} ({error}; {format_seconds(seconds)})",
                seconds,
            )
        return NodeAnswer(entry, document, "", time.monotonic() - began)


def job_engine(documents: Sequence[dict[str, Any]], at: float) -> Engine:
    """All nodes' digests of one moment, judged together."""
    engine = JOB.engine()
    for place, document in enumerate(documents):
        host = str(document["node"]["host"])
        engine.feed(Record(digest_source.SOURCE, document, host=host, at=at + 1e-6 * place))
    engine.finish()
    return engine


def with_verdict(report: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """What the job hub reported, which has seen more than one moment, in place of what this moment shows of the
    whole job."""
    reported = [finding for finding in own["findings"] if finding.get("told_by")]
    if not reported:
        return report
    kept = [
        finding
        for finding in report["findings"]
        if finding["id"] not in PRECEDENCE.whole_job or finding.get("rule")
    ]
    known = {(finding["id"], finding["subject"]) for finding in reported}
    kept = [finding for finding in kept if (finding["id"], finding["subject"]) not in known]
    return {**report, "findings": [*reported, *kept]}
