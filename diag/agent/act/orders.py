"""What `--on`, `--after` and `--grace` ask for, and what the actor needs of its hub."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

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


def describe(rules: Sequence[Rule], after: float) -> str:
    """For the line with which diag starts."""
    named = ", ".join(str(rule) for rule in rules if rule.kind != "run")
    ran = sum(rule.kind == "run" for rule in rules)
    parts = [named] if named else []
    parts += [f"{ran} command{'s' if ran > 1 else ''}"] if ran else []
    return f"acts ({' and '.join(parts)}) on what stood for {format_seconds(after)}"
