"""One actor among the nodes of a job: the node whose hub judges the job decides, under a number of the lease; every node
ends its own part.

What ends the job is agreed first. The decider orders it under its number, each node that is named takes its evidence and
says that it is ready, the decider says go where all are and it still holds the lease, and each node looks once more that the
number is the newest before it acts. A node that does not get ready makes it void for all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from diag.agent.act.kubernetes_lease import Api, KubernetesLease
from diag.agent.act.lease import Document, FileLease, Lease, awake_or_not
from diag.launch.actions import Rule

BEAT_SECONDS = 5.0
READY_SECONDS = 60.0  # ours: evidence takes 30 s at most, and the others have to see the order first
NO_LEASE = "the job has other nodes, and no lease by which one acts for all"
DONE = "another node has done it"


class Nodes(Protocol):
    """What this needs of a hub's `cluster`."""

    of_several: bool
    member: Any

    def facts(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Order:
    """What this node has agreed to, or is about to: `number` of the lease, `go` where it is to be done now."""

    number: int
    rule: str
    document: Document
    go: bool


@dataclass(eq=False)
class Together:
    """`run_id` and `host` are this node's; `root` is the run root, None where there is none; `rules` are those of its command
    line. `open_lease` makes the lease."""

    run_id: str
    host: str
    cluster: Nodes
    rules: Sequence[Rule]
    attempt: int
    open_lease: Callable[[], Lease | None]
    clock: Callable[[], float] = awake_or_not
    _lease: Lease | None = None
    _broken: str = ""
    _ready: int = 0  # the number to which this node has agreed
    _beat_at: float = -1e9
    _begun: dict[int, float] = field(default_factory=dict)  # when an order was first seen
    _passed: int = 0  # orders up to this one are done with
    _own: int = 0  # the number under which this node has ordered
    _ended: int = 0  # the number under which its part has ended

    # -- who decides --------------------------------------------------------------------------------------

    def tend(self) -> None:
        """Now and then, and before all else: this node says that it is there."""
        if self.cluster.member is None or not self.cluster.of_several:
            return
        try:
            if self._lease is None:
                self._lease = self.open_lease()
            if self._lease is not None and self.clock() - self._beat_at >= BEAT_SECONDS:
                self._say()
                if self.cluster.member.is_job_hub or self._ready:
                    self._lease.words()  # who is seen to speak from now on; of many nodes not each reads all
            self._broken = ""
        except OSError as error:
            self._broken = f"it cannot be used: {error.strerror or error}"

    def _say(self) -> None:
        assert self._lease is not None
        self._beat_at = self.clock()
        rules = [str(rule) for rule in self.rules]
        word = {"host": self.host, "rules": rules, "attempt": self.attempt}
        self._lease.say({**word, "ready": self._ready, "ended": self._ended})

    def closed(self, rule: Rule) -> str:
        """Why this node may not begin it; empty where it may."""
        member = self.cluster.member
        if member is None:
            return f"{NO_LEASE}: their hubs have not joined (DIAG_TOKEN)" if rule.ends_the_job else ""
        if not member.is_job_hub:
            return "the node whose hub judges the job decides for all"
        if not rule.ends_the_job:
            return ""
        facts = self.cluster.facts()
        if facts is None or facts.heard < facts.expected:
            return f"only {facts.heard if facts else 1} of {facts.expected if facts else 2} nodes are heard"
        return self._without_lease(rule)

    def _without_lease(self, rule: Rule) -> str:
        if self._lease is None or self._broken:
            return f"{NO_LEASE}: {self._broken or 'there is no run directory'}"
        try:
            words = self._lease.words()
        except OSError as error:
            return f"{NO_LEASE}: it cannot be used: {error.strerror or error}"
        for run_id, host in sorted(self._living().items()):
            word = words.get(run_id)
            if word is None:
                return f"{NO_LEASE}: {host} is not seen in the run root (all nodes need one that they share)"
            if str(rule) not in word.get("rules", ()):
                return f"{host} was started without --on {rule}"
            if word.get("attempt") != self.attempt:
                return f"{host} is at attempt {word.get('attempt')}, not {self.attempt}"
        return ""

    def _living(self) -> dict[str, str]:
        """Runs of the job, and their hosts; this one too."""
        member = self.cluster.member
        found = {
            str(entry["run_id"]): str(entry["host"])
            for entry in (member.roster if member is not None else ())
            if not entry.get("gone")
        }
        return {**found, self.run_id: self.host}

    # -- deciding -----------------------------------------------------------------------------------------

    def begin(self, rule: Rule, what: str, document: Mapping[str, Any]) -> tuple[int, str]:
        """Order it, as the only one: the number, or 0 and why not. `what` names it: what was ordered by this name before is
        not ordered again. What does not end the job is done by who gets the number, and needs no lease where there is none."""
        if self._lease is None and not rule.ends_the_job:
            return 0, ""
        try:
            assert self._lease is not None
            number = self._lease.hold()
            if not number:
                return 0, "another node holds the lease"
            if not rule.ends_the_job and any(
                (one := self._lease.ordered(before)[0]) is not None and one.get("what") == what
                for before in range(max(1, number - 20), number + 1)
            ):
                return 0, DONE
            order = {
                **document, "what": what, "rule": str(rule), "ends": rule.ends_the_job, "host": self.host,
                "nodes": sorted(self._living()), "attempt": self.attempt,
            }  # fmt: skip
            while not self._lease.order(number, order):  # it has served already
                number = self._renewed(number)
                if not number:
                    return 0, "another node holds the lease"
            if not self._lease.holds(number):
                return 0, "the lease was lost meanwhile"
        except (OSError, AssertionError) as error:
            return (0, "") if not rule.ends_the_job else (0, f"the lease cannot be used ({error})")
        self._own = number
        return number, ""

    def _renewed(self, number: int) -> int:
        assert self._lease is not None
        self._lease.release(number)
        return self._lease.hold()

    # -- following ----------------------------------------------------------------------------------------

    def pending(self) -> Order | None:
        """What is ordered now and names this node; None where there is nothing. Orders that nobody concludes are over after
        a while: their decider has ended."""
        if self._lease is None:
            return None
        try:
            number = self._lease.number()
            if number <= self._passed:
                return None
            document, outcome = self._lease.ordered(number)
        except OSError:
            return None
        if document is None or not document.get("ends") or self.run_id not in document.get("nodes", ()):
            return None
        rule = str(document.get("rule"))
        if (
            outcome == "void"
            or rule not in map(str, self.rules)
            or document.get("attempt") != self.attempt  # done before this one began
        ):
            self._passed = number
            return None
        begun = self._begun.setdefault(number, self.clock())
        if outcome != "go" and self.clock() - begun > READY_SECONDS + 2 * BEAT_SECONDS:
            self._passed = number
            return None
        return Order(number, rule, document, outcome == "go")

    def agree(self, order: Order) -> None:
        """This node is ready for it. Raises OSError."""
        self._ready = order.number
        self._say()
        assert self._lease is not None
        self._lease.words()  # those whose end will be waited for

    def has_agreed(self, order: Order) -> bool:
        return self._ready == order.number

    def has_ordered(self, order: Order) -> bool:
        return self._own == order.number

    def conclude(self, order: Order, *, still: bool) -> str:
        """For who has ordered it, as long as it is open: go, void, or empty where others are waited for. `still`: its gates
        are open yet. Raises OSError."""
        assert self._lease is not None
        held = self._lease.hold() == order.number
        words = self._lease.words()
        late = [name for name in order.document["nodes"] if words.get(name, {}).get("ready") != order.number]
        in_time = self.clock() - self._begun.get(order.number, 0.0) <= READY_SECONDS
        if held and still and late and in_time:
            return ""
        go = held and still and not late and self._lease.holds(order.number)
        return "go" if self._lease.conclude(order.number, "go" if go else "void") and go else "void"

    def may_act(self, order: Order) -> bool:
        """Right before it: the number is the newest, and the word was go. Raises OSError."""
        assert self._lease is not None
        return self._lease.number() == order.number and self._lease.ordered(order.number)[1] == "go"

    def forget(self, order: Order) -> None:
        """It is done with, one way or the other."""
        self._passed = max(self._passed, order.number)

    def has_ended(self, order: Order) -> None:
        """This node's part has, wholly. Raises OSError."""
        self._ended = order.number
        self._say()

    def all_ended(self, order: Order) -> bool:
        """Whether every node's has, so that none meets what another one leaves behind. Raises OSError."""
        self.tend()
        assert self._lease is not None
        words = self._lease.words()
        return all(
            words.get(run_id, {}).get("ended") == order.number
            or words.get(run_id, {}).get("attempt", 0) > self.attempt  # it has begun the next one
            for run_id in order.document["nodes"]
        )

    def close(self) -> None:
        if self._lease is not None:
            self._lease.close()


def lease_of(root: Path | None, token: str | None, run_id: str) -> Lease | None:
    """Kubernetes' own, where the pods' service account may use it; else that of the nodes which share this run root and this
    token. Raises OSError."""
    if not token:
        return None
    api = Api.of_pod()
    if api is not None:
        with contextlib.suppress(PermissionError):
            return KubernetesLease.of(api, token, run_id)
    return FileLease.of(root, token, run_id) if root is not None else None
