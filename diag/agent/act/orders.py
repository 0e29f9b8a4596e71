"""What `--on`, `--after` and `--grace` ask for, and what the actor needs of its hub."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from diag.agent.act.gates import Case
from diag.agent.act.resume import Resume
from diag.engine.engine import Engine
from diag.launch.actions import Rule
from diag.launch.rundir import RunDir
from diag.model import Record
from diag.text.units import format_seconds


class ActingHub(Protocol):
    """What this needs of the hub."""

    engine: Engine
    lock: Any
    host: str
    run_dir: RunDir | None
    version: str

    def put(self, record: Record) -> None: ...
    def keep(self, seconds: float) -> bool: ...


@dataclass(frozen=True, slots=True)
class Orders:
    """`--on`, `--after` and `--grace`; `words` are CMD, started at `began` as attempt `attempt`. `send` hands an order to
    the carrier and answers whether it took it."""

    rules: Sequence[Rule]
    after: float
    grace: float
    words: Sequence[str]
    began: float
    attempt: int
    cwd: str
    send: Callable[[Mapping[str, Any]], bool]
    say: Callable[[str], None]


def order_of(
    case: Case, plan: Resume | None, orders: Orders, steps: Sequence[tuple[float, str]], now: float
) -> dict[str, Any]:
    """For the carrier. `past` is of the attempt that is ended, for the next one."""
    finding = case.finding
    past = {
        "number": orders.attempt, "began": orders.began, "ended": now,
        "action": case.rule.action, "finding": finding.id, "klass": finding.klass,
        "culprits": list(finding.ranks), "step": case.step, "evidence": case.evidence,
        "resumed": "" if plan is None else plan.text, "steps": [text for _, text in steps],
        "steps_at": [at for at, _ in steps],
    }  # fmt: skip
    return {
        "rule": str(case.rule),
        "grace": orders.grace,
        "code": case.rule.number if case.rule.kind == "end" else None,
        "again": None if plan is None else again(plan),
        "past": past,
    }


def again(plan: Resume) -> dict[str, Any]:
    return {"words": list(plan.words), "flags": list(plan.flags), "text": plan.text}


def of_finding(past: Mapping[str, Any]) -> dict[str, Any]:
    """What a record says of it, from `past` of an order."""
    return {
        "action": past.get("action", ""), "finding": past.get("finding", ""), "klass": past.get("klass", ""),
        "culprits": list(past.get("culprits", ())), "step": past.get("step"),
    }  # fmt: skip


def describe(rules: Sequence[Rule], after: float) -> str:
    """For the line with which diag starts."""
    named = ", ".join(str(rule) for rule in rules if rule.kind != "run")
    ran = sum(rule.kind == "run" for rule in rules)
    parts = [named] if named else []
    parts += [f"{ran} command{'s' if ran > 1 else ''}"] if ran else []
    return f"acts ({' and '.join(parts)}) on what stood for {format_seconds(after)}"
