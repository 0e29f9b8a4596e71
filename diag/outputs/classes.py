"""Merged stacks: the processes of a job as classes that stand at the same place. Reads the engine, judges nothing."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from diag.engine import Engine
from diag.model import format_ranks
from diag.observations import Frame, StackSample
from diag.rankstate import RankState
from diag.stacks import is_idle_worker, read_stack, shorten, signature

__all__ = ["StackClass", "exit_words", "frame_words", "living_children", "stack_classes", "why_no_stack"]

_BY_MEMORY: tuple[str, ...] = ("remote_stack", "pyspy")  # the second is asked where the first fails, and says why
_STACK_SOURCES = (*_BY_MEMORY, "faulthandler", "stacks")


@dataclass(frozen=True, slots=True)
class StackClass:
    """Processes whose main threads stand at the same place, or that have no stack for the same reason.

    `kind` is rank, child (of a rank: DataLoader workers ...), idle (children that wait for work) or missing.
    `frames` are those of one of them, outermost first; `reason` says why there is none, or why it is old.
    """

    kind: str
    ranks: tuple[int, ...]
    pids: tuple[int, ...]
    activity: str = ""
    where: Frame | None = None
    frames: tuple[Frame, ...] = ()
    at: float = 0.0  # the oldest of the samples
    reason: str = ""

    @property
    def count(self) -> int:
        return len(self.pids)

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "ranks": list(self.ranks),
            "pids": list(self.pids),
            "count": self.count,
            "title": self.title(),
            "activity": self.activity,
            "frames": [frame_words(frame) for frame in self.frames],
            "at": self.at,
            "reason": self.reason,
        }

    def title(self) -> str:
        """
        >>> StackClass("missing", (5,), (812,), reason="killed by signal 9 (SIGKILL)").title()
        'rank 5: no stack: killed by signal 9 (SIGKILL)'
        """
        who = ("rank " if len(self.ranks) == 1 else "ranks ") + format_ranks(self.ranks)
        if self.kind == "missing":
            return f"{who}: no stack: {self.reason}"
        if self.kind == "idle":
            return f"{who}: {self.count} child process{'es' if self.count > 1 else ''} waiting for work"
        if self.kind == "child":
            pids = ", ".join(map(str, self.pids[:8])) + (", ..." if self.count > 8 else "")
            who += f", {self.count} child process{'es' if self.count > 1 else ''} (pid {pids})"
        standing = f"{self.activity} in {frame_words(self.where)}" if self.where else self.activity
        return f"{who}: {standing}" + (f" [{self.reason}]" if self.reason else "")


def stack_classes(engine: Engine) -> list[StackClass]:
    """Merged stacks: ranks by their main thread first, then children, idle children, ranks without a stack."""
    standing: dict[tuple[str, str], list[tuple[int, float, StackSample]]] = {}
    children: dict[str, list[tuple[int, float, StackSample]]] = {}
    idle: list[tuple[int, float, StackSample]] = []
    missing: dict[str, list[RankState]] = {}
    for number, rank in sorted(engine.job.ranks.items()):
        reason = why_no_stack(engine, rank)
        if rank.stack is None or not rank.alive:
            missing.setdefault(reason, []).append(rank)
        else:
            standing.setdefault((rank.stack_signature, reason), []).append((number, rank.stack_at, rank.stack))
        for at, sample in living_children(rank):
            if is_idle_worker(sample):
                idle.append((number, at, sample))
            else:
                mark = signature(sample.main) if sample.main else ""
                children.setdefault(mark, []).append((number, at, sample))
    classes = [_class_of("rank", members, reason) for (_, reason), members in standing.items()]
    classes += [_class_of("child", members) for members in children.values()]
    classes += [_class_of("idle", idle)] if idle else []
    classes += [
        StackClass("missing", _ranks(r.rank for r in ranks), tuple(r.placement.pid for r in ranks), reason=reason)
        for reason, ranks in missing.items()
    ]
    return classes


def _class_of(kind: str, members: list[tuple[int, float, StackSample]], reason: str = "") -> StackClass:
    main = members[0][2].main
    reading = read_stack(main) if main else None
    return StackClass(
        kind=kind,
        ranks=_ranks(number for number, _, _ in members),
        pids=tuple(sample.pid for _, _, sample in members),
        activity=reading.activity.value if reading else "",
        where=reading.where if reading else None,
        frames=main.frames if main and kind != "idle" else (),
        at=min(at for _, at, _ in members),
        reason=reason,
    )


def _ranks(numbers: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(numbers)))


def living_children(rank: RankState) -> list[tuple[float, StackSample]]:
    """A child that the last look at the process tree did not show has ended; its stack is history."""
    if not rank.alive:
        return []
    kept = [stack for _, stack in sorted(rank.child_stacks.items())]
    if rank.tree is None:
        return kept
    alive = {child.pid for child in rank.tree.children if child.state not in "ZX"}
    return [(at, sample) for at, sample in kept if sample.pid in alive or at > rank.tree_at]


def why_no_stack(engine: Engine, rank: RankState) -> str:
    """Why a rank has no stack, or none newer than the one shown; empty when there is nothing to say."""
    if rank.exit is not None:
        return exit_words(rank.exit.exit_code, rank.exit.signal)
    failed = engine.job.failed_sources
    # Where one source is denied and another reads the stacks, nothing is missing.
    sources = _STACK_SOURCES if rank.stack is None else _BY_MEMORY if rank.stack.how in _BY_MEMORY else (rank.stack.how,)
    reasons = [
        f"{source}: {failed[(source, number)].reason}"
        for source in sources
        for number in (rank.rank, None)
        if (source, number) in failed
    ]
    if reasons:
        return "; ".join(reasons)
    return "" if rank.stack else "none was read yet"


def exit_words(code: int | None, number: int | None) -> str:
    """
    >>> exit_words(None, 9)
    'killed by signal 9 (SIGKILL)'
    """
    if number is not None:
        try:
            return f"killed by signal {number} ({signal.Signals(number).name})"
        except ValueError:
            return f"killed by signal {number}"
    return "ended, exit code not known" if code is None else f"exited with code {code}"


def frame_words(frame: Frame) -> str:
    return f"{frame.function} ({shorten(frame.file)}:{frame.line})"
