"""The carrier's part of `--on`: it ends CMD's whole tree when the hub orders it, and knows the attempts that it ended.

Nothing is ended without an order, an order has to name a rule of this command line, and only the first one of an attempt
counts. A hub that dies gives none.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from diag.launch import tree
from diag.launch.actions import ATTEMPT, RESUME_FLAGS, read_rules
from diag.launch.command import Command
from diag.text.units import format_seconds

_END_SECONDS = 5.0  # from the end of all processes to CMD's status
_TERMED = 143  # 128 + SIGTERM
_MOST_LISTED = 8
_TIDY_SECONDS = 10.0
_READ_AGAIN_SECONDS = (0.05, 0.2, 0.5, 1.0, 2.0)  # no descriptor or memory is free for a moment

Tell = Callable[[str, str], object]


@dataclass(frozen=True, slots=True)
class Order:
    """What the hub wants done: see agent/act/actor.py. `again`: the words with which CMD is started again, None for an end.
    `lease`: the number under which all nodes of the job do it, 0 where it is one."""

    rule: str
    grace: float
    code: int | None
    again: Mapping[str, Any] | None
    past: Mapping[str, Any]
    lease: int = 0

    def exit_code(self, returncode: int | None) -> int | None:
        """diag's own; None for that of CMD. A run that was ended is no success, whatever CMD made of SIGTERM."""
        if self.code is not None:
            return self.code
        return _TERMED if returncode == 0 else None


@dataclass(eq=False)
class Acting:
    """Make it with `wanted`, before CMD is started."""

    rules: frozenset[str]
    witness: int
    subreaper: bool
    attempt: int = 1
    asked: Order | None = None  # and not yet done
    order: Order | None = None  # of this attempt: its tree was ended
    agreed: bool = False  # with other nodes, to end CMD and start it again: it may end of their end first
    stays: str = ""  # why CMD is not started again, though that was ordered
    _past: list[Mapping[str, Any]] = field(default_factory=list)
    _flags: str = ""
    _spared: set[tuple[int, int]] = field(default_factory=set)
    _next: float = 0.0

    @classmethod
    def wanted(cls, task: Mapping[str, Any], witness: int) -> Acting | None:
        """None where nothing may end CMD: then diag is no subreaper either, and all is as without it."""
        rules = [rule for rule in read_rules((task.get("act") or {}).get("on", ())) if rule.ends_the_job]
        if not rules:
            return None
        return cls(frozenset(map(str, rules)), witness, tree.become_subreaper())

    def variables(self) -> dict[str, str]:
        """What CMD gets beside the rest."""
        return {ATTEMPT: str(self.attempt), **({RESUME_FLAGS: self._flags} if self._flags else {})}

    def to_json(self) -> dict[str, Any]:
        """For the hub of the next attempt."""
        return {"number": self.attempt, "earlier": [dict(one) for one in self._past]}

    def take(self, message: Mapping[str, Any]) -> None:
        """An order of the hub. What is no order, or not by a rule of the command line, is none."""
        if "stays" in message:
            self.stays = str(message["stays"])
            return
        if "agreed" in message:
            self.agreed = bool(message["agreed"])
            return
        if self.asked is not None or self.order is not None or message.get("rule") not in self.rules:
            return
        self.asked = Order(
            str(message["rule"]),
            float(message["grace"]),
            None if message.get("code") is None else int(message["code"]),
            message.get("again"),
            message["past"],
            int(message.get("lease", 0)),
        )

    def begin_again(self, order: Order) -> list[str]:
        """The next attempt's words."""
        assert order.again is not None
        self._past.append(order.past)
        self.attempt, self.asked, self.order = self.attempt + 1, None, None
        self.agreed, self.stays = False, ""
        self._flags = shlex.join(order.again["flags"])
        return [str(word) for word in order.again["words"]]

    @property
    def of_several(self) -> bool:
        """What is done now is done on all nodes of the job, and begun again together."""
        order = self.order or self.asked
        return self.agreed or (order is not None and order.lease > 0 and order.again is not None)

    # -- ending -------------------------------------------------------------------------------------------

    def spare(self, hub: int) -> None:
        """The hub's processes are diag's own, for as long as they live: its notifier outlives it."""
        try:
            table = tree.read_table()
        except OSError:
            return
        for pid in tree.below(table, [hub, self.witness]):
            self._spared.add(table[pid].key)

    def end(self, command: Command, hub: int, tell: Tell) -> None:
        """Do what is asked; `order` is set where all of CMD's tree has ended, or CMD itself has and something is left of
        it. Each step is told."""
        order, self.asked = self.asked, None
        assert order is not None
        steps: list[tuple[float, str]] = []
        mark = f"{ATTEMPT}={self.attempt}".encode()

        def look() -> list[tree.Process]:
            self.spare(hub)
            return tree.members(
                _read_table(),
                os.getpid(),
                spared=self._spared,
                is_marked=lambda pid: pid == command.pid or _has(pid, mark),
            )

        def told(step: str, text: str) -> None:
            steps.append((time.time(), text))
            tell(step, text)

        def say(step: str, facts: Mapping[str, Any]) -> None:
            count = f"{facts['processes']} processes of the command"
            if step == "term":
                text = f"SIGTERM goes to {count}, which have {format_seconds(facts['seconds'])} to end"
            else:
                text = f"SIGKILL goes to {count} that have not ended: {', '.join(facts['names'])}"
            told(step, text)

        def reap() -> None:
            command.wait(0)
            self.reap(command, hub)

        ending = tree.end_tree(look, order.grace, say=say, reap=reap)
        if ending.refused:
            named = ", ".join(map(str, ending.refused[:_MOST_LISTED]))
            tell("failed", f"nothing is ended: diag may not signal {named}, which belong to another user")
            return
        command.wait(_END_SECONDS)
        self.reap(command, hub)
        if ending.left:
            named = ", ".join(f"{one} in state {one.state}" for one in ending.left[:_MOST_LISTED])
            tell(
                "left",
                f"these do not end, even of SIGKILL: {named}; the command is not started again (state D: a call of the kernel "
                "that does not return, of a file system or a driver; this host may need a reboot)",
            )
            order = Order(order.rule, order.grace, order.code, None, order.past, order.lease)
        else:
            count = f"{ending.asked} processes, {ending.killed} of them by SIGKILL"
            told("ended", f"all of the command has ended: {count}")
        past = {
            **order.past,
            "steps": [*order.past.get("steps", ()), *(text for _, text in steps)],
            "steps_at": [*order.past.get("steps_at", ()), *(at for at, _ in steps)],
        }
        if command.returncode is not None:
            self.order = Order(order.rule, order.grace, order.code, order.again, past, order.lease)

    def tidy(self, command: Command, hub: int) -> None:
        """Now and then, while CMD runs."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _TIDY_SECONDS
            self.reap(command, hub)

    def reap(self, command: Command, hub: int) -> None:
        """Orphans that came to diag and have ended: nobody else waits for them."""
        if self.subreaper or os.getpid() == 1:
            tree.reap_adopted({command.pid, hub, self.witness})


def _read_table() -> dict[int, tree.Process]:
    """What was begun is not left half done for want of a descriptor."""
    for pause in _READ_AGAIN_SECONDS:
        try:
            return tree.read_table()
        except OSError:
            time.sleep(pause)
    return tree.read_table()


def _has(pid: int, mark: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read(1 << 20).split(b"\0")
    except OSError:
        return False
