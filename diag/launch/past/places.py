"""How often the culprits of critical findings were on one node, or on one GPU: of the runs that are remembered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diag.launch.past.reading import PastRun


@dataclass(frozen=True, slots=True)
class GpuRecord:
    """`index`: its number in the newest run that it was seen in. `runs`: those with a critical finding in which it was one
    of several GPUs, `culprit` those that name its rank and not all others here, and by which findings."""

    uuid: str
    index: int
    runs: int
    culprit: int
    findings: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """Of the runs of one node that have ended and whose facts are known. `critical`: a critical finding stood at the end;
    `shared`: those of them that had ranks on other nodes too; `culprit`: those of the shared ones in which all culprits
    were here."""

    runs: int
    finished: int
    critical: int
    shared: int
    culprit: int
    findings: Mapping[str, int]
    gpus: Sequence[GpuRecord]


def node_record(host: str, known: Iterable[PastRun]) -> NodeRecord:
    """A place where all ranks are tells nothing: neither the only node of a job nor its only GPU is counted."""
    runs = [one for one in known if one.host == host and one.final and one.facts]
    critical = [one for one in runs if _stood(one)]
    shared = [one for one in critical if _number(one, "world_size") > _number(one, "ranks_here") > 0]
    blamed: Counter[str] = Counter()
    culprit = 0
    for one in shared:
        here = [each["id"] for each in _stood(one) if each["named"] == len(each["ranks"])]
        culprit += bool(here)
        blamed.update(set(here))
    return NodeRecord(
        len(runs),
        sum(one.state == "finished" for one in runs),
        len(critical),
        len(shared),
        culprit,
        dict(blamed),
        _gpus(critical),
    )


def _gpus(critical: Sequence[PastRun]) -> list[GpuRecord]:
    """Newest run first, as they come."""
    index: dict[str, int] = {}
    runs: Counter[str] = Counter()
    culprit: Counter[str] = Counter()
    findings: dict[str, Counter[str]] = {}
    for one in critical:
        gpus = one.facts.get("gpus")
        here = {
            str(gpu.get("uuid")): int(gpu.get("index", -1))
            for gpu in (gpus if isinstance(gpus, list) else ())
            if isinstance(gpu, dict) and isinstance(gpu.get("index"), int)
        }
        if len(here) < 2:
            continue
        runs.update(here)
        for uuid, number in here.items():
            index.setdefault(uuid, number)
        named: dict[str, set[str]] = {}
        for each in _stood(one):
            if len(each["gpus"]) < len(here):
                for uuid in each["gpus"]:
                    named.setdefault(uuid, set()).add(each["id"])
        for uuid in named.keys() & here.keys():
            culprit[uuid] += 1
            findings.setdefault(uuid, Counter()).update(named[uuid])
    return [
        GpuRecord(uuid, index[uuid], runs[uuid], culprit[uuid], dict(findings[uuid]))
        for uuid, _ in sorted(culprit.items(), key=lambda pair: (-pair[1], index[pair[0]]))
    ]


def _stood(one: PastRun) -> list[dict[str, Any]]:
    """Critical findings that were open at its end and name ranks of this node. facts.json may hold anything."""
    found = one.facts.get("culprits")
    return [
        {
            "id": str(each.get("id")),
            "ranks": each["ranks"],
            "named": each.get("all_ranks_named"),
            "gpus": [str(uuid) for uuid in each["gpus"]] if isinstance(each.get("gpus"), list) else [],
        }
        for each in (found if isinstance(found, list) else ())
        if isinstance(each, dict) and isinstance(each.get("ranks"), list) and each["ranks"]
    ]


def _number(one: PastRun, key: str) -> int:
    value = one.facts.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
