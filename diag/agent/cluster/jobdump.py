"""One document of all nodes' dumps: `diag.dump/1` with every rank of the job, and the nodes beside them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from diag.agent.cluster.gather import NodeAnswer, job_engine, with_verdict
from diag.agent.cluster.member import Member
from diag.agent.cluster.roster import Entry
from diag.agent.dump import described
from diag.engine.engine import Engine
from diag.model import found
from diag.outputs.view.sentence import retell
from diag.outputs.view.view import states_of_findings
from diag.state.cluster import NodeState


def job_document(
    own: dict[str, Any], member: Member, answers: Sequence[NodeAnswer], host: str
) -> dict[str, Any]:
    """The own node's document widened to the job. A node that did not answer has its ranks under `missing`,
    with the reason."""
    documents = [answer.document for answer in answers if answer.document is not None]
    engine = job_engine([member.digest(2), *(other["digest"] for other in documents)], time.time())
    document = {**own, **described(engine)}
    document["report"] = with_verdict(document["report"], own["report"])
    document["report"]["not_checked"] = _notes(own, document)
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
            missing.setdefault(str(number), ["on no node that reports, or not started"])
    return dict(sorted(missing.items(), key=lambda item: int(item[0])))


def _mark_states(document: dict[str, Any]) -> None:
    """The job hub's verdict may name what this one moment does not show."""
    named = states_of_findings(document["report"]["findings"])
    for row in document["ranks"]:
        if row["state"] in ("running", "starting"):
            row["state"] = named.get(row["rank"], row["state"])


def _notes(own: dict[str, Any], document: dict[str, Any]) -> list[dict[str, Any]]:
    lines = list(document["report"]["not_checked"])
    return lines + [
        line
        for line in own["report"]["not_checked"]
        if line not in lines and "the other nodes" in line["what"]
    ]


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
