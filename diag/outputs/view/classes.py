"""Merged stacks: the processes of a job as classes that are at the same place. Reads the engine, judges
nothing."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from diag.detectors.hang.kernel_causes import kernel_cause
from diag.detectors.hang.wait_text import format_chain
from diag.engine.engine import Engine
from diag.model.observations import Frame, StackSample, ThreadStack
from diag.outputs.view.network_view import picked
from diag.state.idle import is_idle_child
from diag.state.rank_view import RankView
from diag.state.stack_activity import child_role, format_frame, read_stack, steps
from diag.state.stack_digest import living_children, standing_steps
from diag.state.wait_chain import follow
from diag.text.units import format_ranks

# the second is asked where the first fails, and reports why
_BY_MEMORY: tuple[str, ...] = ("remote_stack", "pyspy")
_WAITS_SECONDS = 60.0  # a reading that is older than the stack by more speaks of something else
_DIGITS = re.compile(r"\d+")
_STACK_SOURCES = (*_BY_MEMORY, "faulthandler", "stacks")


@dataclass(frozen=True, slots=True)
class StackClass:
    """Processes whose main threads (of a rank the one that trains) are at the same place, or that have no stack for the same reason.

    `kind` is rank, child (of a rank: DataLoader workers ...), idle (children that wait for work), thread (of a rank,
    beside the one that trains) or missing.
    `frames` are those of one of them, outermost first; `reason` says why there is none, or why it is old.
    `waits` is a sentence, empty where the kernel was not asked or says no more than the stack.
    `path` is what they have in common (`stacks.steps`), `role` what children are for. `stands_seconds` is how
    long all of them were seen here (None where one was seen only once); `moving` are the ranks that
    came here in the last samples, and `standing_steps` how many outer steps of the path even they kept.
    """

    kind: str
    ranks: tuple[int, ...]
    pids: tuple[int, ...]
    activity: str = ""
    where: Frame | None = None
    frames: tuple[Frame, ...] = ()
    at: float = 0.0  # the oldest of the samples
    reason: str = ""
    role: str = ""
    path: tuple[str, ...] = ()
    stands_seconds: float | None = None
    moving: tuple[int, ...] = ()
    standing_steps: int = 0
    waits: str = ""  # what the kernel says that the first of them waits for
    thread: str = ""  # the name of the thread that trains, where that is not the main one
    cwd: str = ""  # the job's working directory, from which the paths of its own code are shown

    @property
    def count(self) -> int:
        return len(self.pids)

    def to_json(self) -> dict[str, Any]:
        names = (
            "kind",
            "ranks",
            "pids",
            "count",
            "activity",
            "at",
            "reason",
            "role",
            "path",
            "stands_seconds",
            "waits",
            "thread",
        )
        return {
            **picked(self, *names, "standing_steps"),
            "title": self.title(),
            "frames": [format_frame(frame, self.cwd) for frame in self.frames],
            "moving_ranks": list(self.moving),
        }

    def title(self) -> str:
        """
        >>> StackClass("missing", (5,), (812,), reason="killed by signal 9 (SIGKILL)").title()
        'rank 5: no stack: killed by signal 9 (SIGKILL)'
        """
        who = format_ranks(self.ranks)
        if self.kind == "missing":
            return f"{who}: no stack: {self.reason}"
        if self.kind == "idle":
            return f"{who}: {self._children()} waiting for work"
        if self.kind == "child":
            pids = ", ".join(map(str, self.pids[:8])) + (", ..." if self.count > 8 else "")
            who += f", {self._children()} (pid {pids})"
        if self.thread or self.kind == "thread":
            who += f", thread {self.thread or self.role}".rstrip()
        doing = f"{self.activity} in {format_frame(self.where, self.cwd)}" if self.where else self.activity
        return f"{who}: {doing}" + (f" [{self.reason}]" if self.reason else "")

    def _children(self) -> str:
        role = self.role or "child process"
        return f"{self.count} {role}" + ("" if self.count == 1 else "es" if role.endswith("s") else "s")


def stack_classes(engine: Engine) -> list[StackClass]:
    """Merged stacks: ranks by their main thread first, then children, idle children, ranks without a stack."""
    placed: dict[tuple[str, str], list[tuple[int, float, StackSample]]] = {}
    children: dict[tuple[str, tuple[str, ...]], list[tuple[int, float, StackSample]]] = {}
    idle: dict[str, list[tuple[int, float, StackSample]]] = {}
    missing: dict[str, list[RankView]] = {}
    for number, rank in sorted(engine.job.ranks.items()):
        reason = why_no_stack(engine, rank)
        if rank.stack is None or not rank.alive:
            missing.setdefault(reason, []).append(rank)
        else:
            placed.setdefault((rank.stack_signature, reason), []).append((number, rank.stack_at, rank.stack))
        for at, sample in living_children(rank):
            if is_idle_child(rank, sample):
                idle.setdefault(child_role(sample), []).append((number, at, sample))
            else:
                path = steps(sample.main) if sample.main else ()
                children.setdefault((child_role(sample), path), []).append((number, at, sample))
    classes = [_of_ranks(engine, members, reason) for (_, reason), members in placed.items()]
    classes += [_class_of("child", members, role=role) for (role, _), members in children.items()]
    classes += [_class_of("idle", members, role=role) for role, members in idle.items()]
    classes += [
        StackClass(
            "missing", _ranks(r.rank for r in ranks), tuple(r.placement.pid for r in ranks), reason=reason
        )
        for reason, ranks in missing.items()
    ]
    return [replace(one, cwd=engine.job.run.cwd, waits=_waits_of(one, engine)) for one in classes]


def thread_classes(engine: Engine) -> list[StackClass]:
    """The threads of ranks beside those that `stack_classes` shows: of one name and at one place together."""
    found: dict[tuple[str, tuple[str, ...]], list[tuple[int, float, StackSample, ThreadStack]]] = {}
    for number, rank in sorted(engine.job.ranks.items()):
        sample = rank.stack if rank.alive else None
        for one in sample.threads if sample is not None else ():
            if sample is not None and one.frames and one is not rank.judged:
                members = found.setdefault((_DIGITS.sub("#", one.name), steps(one)), [])
                members.append((number, rank.stack_at, sample, one))
    return [
        replace(
            _class_of("thread", [member[:3] for member in members], role=name, judged=members[0][3]),
            cwd=engine.job.run.cwd,
        )
        for (name, _), members in found.items()
    ]


def _waits_of(one: StackClass, engine: Engine) -> str:
    """As one sentence, where the kernel shows more than the stack."""
    rank = engine.job.ranks.get(one.ranks[0]) if one.kind in ("rank", "child") and one.ranks else None
    if rank is None or rank.waits is None or rank.waits_at < one.at - _WAITS_SECONDS:
        return ""
    chain = follow(rank.waits, one.pids[0], rank.thread if one.kind == "rank" else 0)
    if chain is None or not kernel_cause(chain):
        return ""
    return format_chain(chain, f"thread {one.thread}" if one.thread else "the main thread")


def _of_ranks(engine: Engine, members: list[tuple[int, float, StackSample]], reason: str) -> StackClass:
    """Ranks in one place, and which of them came here in the last samples."""
    ranks = [engine.job.ranks[number] for number, _, _ in members]
    found = _class_of("rank", members, reason, judged=ranks[0].judged)
    if ranks[0].activity is not None:
        found = replace(found, activity=ranks[0].activity.value)
    if ranks[0].thread:
        found = replace(found, thread=ranks[0].thread_name.removeprefix("thread "))
    kept = [(rank.rank, shared) for rank in ranks if (shared := standing_steps(rank.series)) is not None]
    moving = [(number, shared) for number, shared in kept if shared < len(found.path)]
    all_stand = len(kept) == len(ranks) and not moving
    return replace(
        found,
        stands_seconds=min(rank.stack_at - rank.stack_since for rank in ranks) if all_stand else None,
        moving=tuple(number for number, _ in moving),
        standing_steps=min((shared for _, shared in moving), default=len(found.path)),
    )


def _class_of(
    kind: str,
    members: list[tuple[int, float, StackSample]],
    reason: str = "",
    role: str = "",
    judged: ThreadStack | None = None,
) -> StackClass:
    main = judged or members[0][2].main
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
        role=role,
        path=steps(main) if main and kind != "idle" else (),
    )


def _ranks(numbers: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(numbers)))


def why_no_stack(engine: Engine, rank: RankView) -> str:
    """Why a rank has no stack, or none newer than the one shown; empty when there is nothing to say."""
    if rank.exit is not None:
        return format_exit(rank.exit.exit_code, rank.exit.signal)
    failed = engine.job.sources.failed
    # Where one source is denied and another reads the stacks, nothing is missing.
    sources = (
        _STACK_SOURCES
        if rank.stack is None
        else _BY_MEMORY
        if rank.stack.how in _BY_MEMORY
        else (rank.stack.how,)
    )
    reasons = [
        f"{source}: {failed[(source, number)].reason}"
        for source in sources
        for number in (rank.rank, None)
        if (source, number) in failed
    ]
    if reasons:
        return "; ".join(reasons)
    return "" if rank.stack else "none was read yet"


def format_exit(code: int | None, number: int | None) -> str:
    """
    >>> format_exit(None, 9)
    'killed by signal 9 (SIGKILL)'
    """
    if number is not None:
        try:
            return f"killed by signal {number} ({signal.Signals(number).name})"
        except ValueError:
            return f"killed by signal {number}"
    return "ended, exit code unknown" if code is None else f"exited with code {code}"
