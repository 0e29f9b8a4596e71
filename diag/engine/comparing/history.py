"""A run beside the earlier ones of its program that worked: what it has that none of them had."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from diag.engine.comparing.differences import program_of
from diag.launch.past.reading import PastRun


@dataclass(frozen=True, slots=True)
class Before:
    """`new`: "node", "GPU", or a package or version by its name -> what it is now."""

    worked: int
    on_these_nodes: int
    new: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"worked": self.worked, "on_these_nodes": self.on_these_nodes, "new": self.new}


def is_forerunner(one: PastRun, run: PastRun, first_rank: Any) -> bool:
    """Whether it is an earlier run of the same program, at the same place in its job: each node of one has a run
    directory."""
    first = one.facts.get("first_rank")
    elsewhere = None not in (first, first_rank) and first != first_rank
    return one.id < run.id and not elsewhere and program_of(one.argv) == program_of(run.argv)


def before(run: PastRun, known: Sequence[PastRun], facts: Mapping[str, Any]) -> Before:
    """`facts` of the run itself, which may still be under way. Of its forerunners only those count whose facts are
    known."""
    first = facts.get("first_rank")
    worked = [one for one in known if one.succeeded and one.facts and is_forerunner(one, run, first)]
    hosts = _hosts(facts)
    here = sum(bool(hosts) and _hosts(one.facts) == hosts for one in worked)
    if not worked:
        return Before(0, 0)
    new: dict[str, str] = {}
    fresh = hosts - set().union(*(_hosts(one.facts) for one in worked))
    if fresh:
        new["node"] = ", ".join(sorted(fresh))
    uuids = _uuids(facts)
    strange = uuids - set().union(*(_uuids(one.facts) for one in worked))
    if strange and not fresh:  # the GPUs of a new node are
        new["GPU"] = ", ".join(sorted(strange))
    for key in ("versions", "packages"):
        seen: dict[str, set[str]] = {}
        for one in worked:
            for name, version in _named(one.facts, key).items():
                seen.setdefault(name, set()).add(version)
        now = _named(facts, key)
        # a name that none of them showed may be one that they did not look for
        looked = key == "packages" and any(_named(one.facts, key) for one in worked)
        new |= {
            name: version
            for name, version in now.items()
            if version not in seen.get(name, ()) and (name in seen or looked)
        }
    return Before(len(worked), here, new)


def _hosts(facts: Mapping[str, Any]) -> set[str]:
    hosts = facts.get("hosts")
    return {str(one) for one in hosts} if isinstance(hosts, list) else set()


def _uuids(facts: Mapping[str, Any]) -> set[str]:
    gpus = facts.get("gpus")
    return (
        {str(one["uuid"]) for one in gpus if isinstance(one, dict) and one.get("uuid")}
        if isinstance(gpus, list)
        else set()
    )


def _named(facts: Mapping[str, Any], key: str) -> dict[str, str]:
    found = facts.get(key)
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}
