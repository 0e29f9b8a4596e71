"""A dump of the whole job: every node's hub is asked at once, what does not come in time is reported as missing, and
all that came is put into one `diag.dump/1` document, with the nodes beside the ranks."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from diag.agent.cluster.member import Member
from diag.agent.cluster.post import Failed, Sender
from diag.agent.cluster.roster import Entry
from diag.agent.dump import described
from diag.detectors.precedence import PRECEDENCE
from diag.engine.engine import Engine
from diag.engine.importers.policy import JOB
from diag.model import Record, found
from diag.outputs.view.sentence import retell
from diag.outputs.view.view import states_of_findings
from diag.sources import digest as digest_source
from diag.state.cluster import NodeState
from diag.text.units import format_seconds

_THREADS = 128
_ROSTER_SECONDS = 2.0
_REASONS = {
    "timeout": "did not answer in time",
    "refused": "refused the connection: diag no longer listens there",
    "unreachable": "cannot be reached",
    "unresolved": "has a name that cannot be resolved",
    "no_hub": "did not answer as a diag hub",
}


def other_hubs(member: Member) -> list[Entry]:
    """Those that live; of a large job only the job hub has all of them, and is asked."""
    entries, job_hub = member.roster, member.asks_for_roster
    if job_hub:
        try:
            rows = member.sender.get(job_hub, "/nodes", _ROSTER_SECONDS)["nodes"]
            names = ("run_id", "host", "node_rank", "url")
            known: list[Entry] = [
                {name: row[name] for name in names}
                | {"gone": row["state"] == "gone", "ranks": [[rank] for rank in row["ranks"]]}
                for row in rows
            ]
            entries = [member.known.placed(entry, member.heard_from, job_hub) for entry in known]
        except (Failed, KeyError, TypeError):
            pass  # those that are known here
    own = member.known.me.run_id
    return [entry for entry in entries if entry["run_id"] != own and not entry.get("gone")]


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
    _left: queue.SimpleQueue[dict[str, Any]] = field(default_factory=queue.SimpleQueue)
    _answers: queue.SimpleQueue[NodeAnswer] = field(default_factory=queue.SimpleQueue)

    def start(self) -> None:
        for entry in self.entries:
            self._left.put(entry)
        for number in range(min(_THREADS, len(self.entries))):
            threading.Thread(target=self._work, name=f"gather-{number}", daemon=True).start()

    def wait(self) -> list[NodeAnswer]:
        """One of each node, in order."""
        answers: dict[str, NodeAnswer] = {}
        with contextlib.suppress(queue.Empty):
            while len(answers) < len(self.entries):
                answer = self._answers.get(timeout=max(0.0, self.until - time.monotonic()))
                answers[answer.entry["run_id"]] = answer
        return [
            answers.get(entry["run_id"])
            or NodeAnswer(entry, None, f"its hub at {entry['url']} {_REASONS['timeout']}")
            for entry in self.entries
        ]

    def _work(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._answers.put(self._ask(self._left.get_nowait()))

    def _ask(self, entry: dict[str, Any]) -> NodeAnswer:
        began = time.monotonic()
        left = self.until - began
        if not entry["url"]:
            return NodeAnswer(entry, None, "the address of its hub is unknown")
        if left <= 0.2:
            return NodeAnswer(entry, None, "there was no time left to ask it")
        try:
            native = "&native=1" if self.native else ""
            query = f"/dump?scope=node&deadline={max(0.5, left - 0.3):.2f}{native}"
            document = self.sender.get(entry["url"], query, left)
            if not isinstance(document, dict) or "digest" not in document:
                raise Failed("no_hub", "no dump of a node")
        except Failed as error:
            seconds = time.monotonic() - began
            return NodeAnswer(
                entry,
                None,
                f"its hub at {entry['url']} {_REASONS[error.kind]} ({error}; {format_seconds(seconds)})",
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


def job_document(
    own: dict[str, Any], member: Member, answers: Sequence[NodeAnswer], host: str
) -> dict[str, Any]:
    """The own node's document widened to the job. A node that did not answer has its ranks under `missing`,
    with the reason."""
    documents = [answer.document for answer in answers if answer.document is not None]
    engine = job_engine([member.digest(2), *(other["digest"] for other in documents)], time.time())
    document = {**own, **described(engine)}
    document["report"] = with_verdict(document["report"], own["report"])
    lines = document["report"]["not_checked"]
    document["report"]["not_checked"] = lines + [
        line
        for line in own["report"]["not_checked"]
        if line not in lines and "the other nodes" in line["what"]
    ]
    document["report"]["past"] = own["report"].get("past", [])
    retell(document["report"])
    _mark_states(document)
    document["missing"] = _missing(own, document, answers)
    for other in documents:
        document["versions"] = {**document["versions"], **other.get("versions", {})}
    probes = [probe for other in documents for probe in other.get("probes", ())]
    document["probes"] = [*own["probes"], *(probe for probe in probes if probe["rank"] is not None)]
    native = [row for other in documents for row in other.get("native", ())]
    if native or "native" in own:
        document["native"] = [*own.get("native", ()), *native]
    document["found"] = found(document["report"])
    document["nodes"] = [
        {"host": host, "reason": "", "seconds": own["seconds"]},
        *(
            {
                "host": answer.entry["host"],
                "node_rank": answer.entry["node_rank"],
                "url": answer.entry["url"],
                "reason": answer.reason,
                "seconds": round(answer.seconds, 3),
            }
            for answer in answers
        ),
    ]
    return document


def _missing(
    own: dict[str, Any], document: dict[str, Any], answers: Sequence[NodeAnswer]
) -> dict[str, list[str]]:
    """Reasons by rank. What one node does not have another may."""
    elsewhere = ["not on this node, or not started"]
    placed = {rank["rank"] for rank in document["ranks"]}
    missing = {number: reasons for number, reasons in own["missing"].items() if reasons != elsewhere}
    for answer in answers:
        if answer.document is not None:
            missing.update(answer.document.get("missing", {}))
    missing = {
        number: reasons
        for number, reasons in missing.items()
        if int(number) not in placed or reasons != elsewhere
    }
    for answer in answers:
        if answer.document is None:
            why = [f"{answer.entry['host']}: {answer.reason}"]
            missing.update((str(place[0]), why) for place in answer.entry["ranks"])
    world = int(document["report"]["job"]["world_size"] or 0)
    for number in range(min(world, 16384)):
        if number not in placed:
            missing.setdefault(str(number), ["not on any node that reports, or not started"])
    return dict(sorted(missing.items(), key=lambda item: int(item[0])))


def _mark_states(document: dict[str, Any]) -> None:
    """The job hub's verdict may name what this one moment does not show."""
    named = states_of_findings(document["report"]["findings"])
    for row in document["ranks"]:
        if row["state"] in ("running", "starting"):
            row["state"] = named.get(row["rank"], row["state"])


def nodes_json(engine: Engine | None, roster: Sequence[Entry]) -> list[dict[str, Any]]:
    """One row a node; of what only the job hub knows the others have nothing. Its lock is held by the caller."""
    known: dict[str, NodeState] = {}
    silent: set[str] = set()
    now = 0.0
    if engine is not None:
        cluster, now = engine.job.cluster, engine.now
        known = {node.digest.run_id: node for node in cluster.current()}
        silent = {node.digest.run_id for node in cluster.silent(now)}
    rows = [
        _node_row(entry, known.get(entry["run_id"]), now, silent=entry["run_id"] in silent)
        for entry in roster
        if engine is None or entry["run_id"] in known  # else another hub took its place
    ]
    return sorted(rows, key=lambda row: (row["node_rank"] is None, row["node_rank"] or 0, row["host"]))


def _node_row(entry: Entry, node: NodeState | None, now: float, *, silent: bool) -> dict[str, Any]:
    state = "gone" if entry.get("gone") else "silent" if silent else "heard" if node else "known"
    row = {
        **{name: entry[name] for name in ("node_rank", "host", "url", "run_id")},
        "ranks": [place[0] for place in entry["ranks"]],
        "state": state,
        "heard_seconds_ago": None,
        **dict.fromkeys(("round_trip_seconds", "skew_seconds", "phase")),
        "notes": [],
    }
    if node is not None:
        row["heard_seconds_ago"] = round(now - node.heard_at, 1)
        row |= {name: getattr(node.digest, name) for name in ("round_trip_seconds", "skew_seconds", "phase")}
        if node.probe is not None and state == "silent":
            row["notes"] = [f"tried: {node.probe.answer}"]
    return row
