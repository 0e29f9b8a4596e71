"""Does what `diag run --on` asks for: looks once a second, has the gates decide, and hands an order to the carrier, which
owns CMD. Each step is a record of the journal before it is done.

Whatever fails here ends with a line, and without an action.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from diag.agent.act.cases import cases
from diag.agent.act.evidence import Dumps, evidence_on_disk
from diag.agent.act.fence import Fence
from diag.agent.act.gates import Case, Decision, Standing, decide
from diag.agent.act.orders import ActingHub, Orders, again, of_finding, order_of
from diag.agent.act.resume import Resume, is_there, resume
from diag.agent.act.together import DONE, NO_LEASE, Order, Together
from diag.detectors.checkpoint.going_on import last_whole
from diag.launch.actions import Rule
from diag.launch.launchers.secrets import redacted
from diag.model.observations import CheckpointFolder
from diag.outputs.notify.hook import run as run_hook
from diag.sources.host import run as run_source

ACTIONS = "actions.jsonl"
_LOOK_SECONDS = 1.0
_AGREED_LOOK_SECONDS = 0.25  # while the nodes agree: they are to end together
_ENDED_SECONDS = 30.0  # ours: beside the grace; SIGKILL, and the others' looks
_MOST_PROPOSED, _PROPOSE_AGAIN_SECONDS = 5, 60.0  # to the other nodes, in an attempt
_MOST_EVIDENCE = 3  # tries for one finding, so long apart
_EVIDENCE_AGAIN_SECONDS = 60.0
_MOST_HELD = 100  # records of why nothing is done, in a run
_TOLD_SECONDS = 10.0  # for records to be taken into the journal


@dataclass(eq=False)
class Actor:
    """`dumps` takes the evidence; `together` is what this node has to do with others, None where it is alone by definition.
    Start it once CMD runs."""

    hub: ActingHub
    orders: Orders
    dumps: Dumps
    fence: Fence
    together: Together | None = None
    clock: Callable[[], float] = time.time
    _standing: Standing = field(default_factory=Standing)
    _done: set[Rule] = field(default_factory=set)
    _held: dict[tuple[Rule, str, str], tuple[str, ...]] = field(default_factory=dict)
    _records: int = 0
    _tries: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    _over: threading.Event = field(default_factory=threading.Event)
    _ordered: Mapping[str, Any] | None = None
    _steps: list[tuple[float, str]] = field(default_factory=list)  # of what is done, for the next attempt
    _looking: threading.Lock = field(default_factory=threading.Lock)
    _agrees: bool = False
    _proposed: list[float] = field(default_factory=list)
    _waited_for: bool = False  # the carrier knows that it may be started again
    _agreed: Order | None = None  # what is done now
    _left: bool = False  # the carrier could not end all of it
    _unready: set[int] = field(default_factory=set)  # numbers of the lease
    _said: set[str] = field(default_factory=set)

    def start(self) -> None:
        threading.Thread(target=self._run, name="actor", daemon=True).start()

    def close(self) -> None:
        """CMD has ended, and from now on nothing is ordered. Where all nodes had agreed to end it, and another was first, that
        is what it ended of."""
        self._over.set()
        if self.together is None or not self._looking.acquire(timeout=_TOLD_SECONDS):
            return
        with contextlib.suppress(Exception):  # the job has ended: nothing is left to be done wrong
            if self._ordered is None and (order := self.together.pending()) is not None and order.go:
                self._act_together(order)
            if self._ordered is not None and self._ordered["again"] is not None:
                self._await_others()
                return
            self.together.close()

    def _await_others(self) -> None:
        """Before this node's part is started again: what it would meet of the last attempt has ended."""
        order, why = self._agreed, "this node's part has not ended wholly"
        assert self.together is not None and order is not None
        until = time.monotonic() + self.orders.grace + _ENDED_SECONDS
        told = False
        while not self._left and time.monotonic() < until:
            why = "not all nodes' parts have ended"
            with contextlib.suppress(OSError):
                if not told:
                    self.together.has_ended(order)
                    told = True
                if self.together.all_ended(order):
                    return
            time.sleep(_AGREED_LOOK_SECONDS)
        self._tell_order("failed", f"it is not started again: {why}", order)
        self.orders.send({"stays": why})

    def _run(self) -> None:
        while not self._over.wait(_AGREED_LOOK_SECONDS if self._agrees else _LOOK_SECONDS):
            try:
                with self._looking:
                    if not self._over.is_set():
                        self.look()
            except Exception as error:
                self._over.set()
                self.orders.say(
                    f"diag: --on is not followed any more ({type(error).__name__}: {error}); the job goes on"
                )

    # -- deciding -----------------------------------------------------------------------------------------

    def look(self) -> list[Decision]:
        """Decide on all that is open, and do the first that has all gates open. Returns the decisions."""
        if self._ordered is not None:
            return []
        if self.together is not None:
            self.together.tend()
            order = self.together.pending()
            if self._waited_for and order is None:  # it is void
                self._waited_for = not self.orders.send({"agreed": False})
            self._agrees = order is not None
            if order is not None:
                with contextlib.suppress(OSError):  # of the lease: it is asked again
                    return self._follow(order)
                return []
        decisions = self._decide()
        for decision in decisions:
            if decision.acts or not decision.only("evidence"):
                continue
            evidence = self._evidence(decision.case)
            if not evidence:
                continue
            again = next(
                (one for one in self._decide(evidence) if _same(one.case, decision.case)), None
            )  # it may have got over it meanwhile
            if again is not None and again.acts:
                self._act(again)
                return decisions
        self._note(decisions)
        return decisions

    def _decide(self, evidence: str = "") -> list[Decision]:
        with self.hub.lock:
            found = list(
                cases(
                    self.hub.engine,
                    self._standing,
                    self.orders.rules,
                    after=self.orders.after,
                    done=frozenset(self._done),
                    evidence=evidence,
                    fence=self.fence.closed(),
                )
            )
            several = self.together is not None and self.fence.of_several()
        if several and self.together is not None:  # without the hub's lock: it reads files
            found = [replace(one, several=True, fence=self.together.closed(one.rule)) for one in found]
        return [decide(case) for case in found]

    def _note(self, decisions: Sequence[Decision]) -> None:
        """Why nothing is done, once and when the reasons are others: not as the time passes."""
        for decision in decisions:
            if decision.acts or decision.case.rule in self._done or self._records >= _MOST_HELD:
                continue
            case = decision.case
            key = (case.rule, *case.finding.key)
            closed = tuple(name for name, _ in decision.closed if name not in ("stands", "evidence"))
            if self._held.get(key) != closed:
                self._held[key] = closed
                self._records += 1
                self._record("holds", decision.text, case)
                self._say_once(case)

    def _say_once(self, case: Case) -> None:
        """That it is several nodes and no one of them may act: who asked for it would wait for it in vain."""
        if case.several and case.rule.ends_the_job and case.fence.startswith(NO_LEASE):
            text = f"diag: --on {case.rule} does not act: {case.fence}"
            if text not in self._said:
                self._said.add(text)
                self.orders.say(text)

    def _evidence(self, case: Case) -> str:
        """The bundle; empty where there is none yet."""
        if self.hub.run_dir is None:
            return ""
        tries, now = self._tries.setdefault(case.finding.key, []), time.monotonic()
        if len(tries) >= _MOST_EVIDENCE or (tries and now - tries[-1] < _EVIDENCE_AGAIN_SECONDS):
            return ""
        tries.append(now)
        since = case.stood_since if case.stood_since is not None else self.clock()
        path, problem = evidence_on_disk(self.hub.run_dir.path, since, self.dumps)
        if problem:
            self._record("failed", f"does not act: the evidence cannot be kept ({problem})", case)
            return ""
        tries.clear()
        self._record("evidence", f"evidence is in {path}", case)
        return path

    # -- acting -------------------------------------------------------------------------------------------

    def _act(self, decision: Decision) -> None:
        case = decision.case
        rule = case.rule
        number = 0
        if case.several and self.together is not None:
            number = self._propose(decision)
            if rule.ends_the_job or number < 0:
                return  # all nodes have to agree first
        self._done.add(rule)
        if not rule.ends_the_job:
            self._record("acts", decision.text, case, number)
            self._tell_others(case, decision, number)
            return
        plan = self._plan(self._whole()) if rule.kind == "restart" else None
        then = f"; the command is started again {plan.text}" if plan is not None else ""
        text = f"{decision.text}; CMD is ended{then}"
        self._steps = [(self.clock(), f"evidence is in {case.evidence}"), (self.clock(), text)]
        self._record("acts", text, case)
        order = order_of(case, plan, self.orders, self._steps, self.clock())
        if not self.hub.keep(_TOLD_SECONDS):
            self._record("failed", "does not act: the journal cannot be written", case)
            return
        self.orders.say(f"diag: {case.finding.id} ({case.finding.klass}): {text}")
        self._ordered = order
        if not self.orders.send(order):
            self._record("failed", "does not act: the carrier did not take the order", case)

    # -- with other nodes ---------------------------------------------------------------------------------

    def _propose(self, decision: Decision) -> int:
        """The number of the lease under which it is ordered; 0 where that needs none, -1 where it is not."""
        assert self.together is not None
        case, now = decision.case, time.monotonic()
        late = self._proposed and now - self._proposed[-1] < _PROPOSE_AGAIN_SECONDS
        if case.rule.ends_the_job and (late or len(self._proposed) >= _MOST_PROPOSED):
            return -1
        stood = case.now - (case.stood_since or case.now)
        plan, text, whole = None, decision.text, None
        if case.rule.kind == "restart":
            whole = self._whole()
            plan = self._plan(whole)
            text = f"{text}; then each node's command is started again {plan.text}"
        document = {
            **order_of(case, plan, self.orders, self._steps, self.clock()),
            "text": text,
            "stood": stood,
            "whole": whole and [whole.path, whole.kind],
        }
        key = (*case.finding.key, case.finding.klass, *map(str, case.finding.ranks))
        number, why = self.together.begin(case.rule, " ".join((str(case.rule), *key)), document)
        if case.rule.ends_the_job:
            self._proposed.append(now)
        if why:
            if (text := f"does not act: {why}") not in self._said:
                self._said.add(text)
                self._record("failed", text, case)
            if why == DONE:
                self._done.add(case.rule)
            return -1
        if case.rule.ends_the_job:
            self._agrees = True
            text = f"asks all nodes to end it, under number {number} of the lease: {decision.text}"
            self._record("orders", text, case, number)
        return number

    def _follow(self, order: Order) -> list[Decision]:
        """What the nodes agree to: this one gets ready, says go where it is the one that decides, and does it."""
        assert self.together is not None
        if order.go:
            self._act_together(order)
            return []
        if not self.together.has_agreed(order):
            self._get_ready(order)
            return []
        if not self.together.has_ordered(order):
            return []
        decisions = self._decide(str(order.document["past"].get("evidence", "")))
        still = any(one.acts and str(one.case.rule) == order.rule for one in decisions)
        if self.together.conclude(order, still=still) == "void":
            why = "not all nodes got ready" if still else "it may not be done any more"
            self._tell_order("failed", f"does not act: {why} (number {order.number} of the lease)", order)
        return decisions

    def _get_ready(self, order: Order) -> None:
        assert self.together is not None
        if order.number in self._unready or self.hub.run_dir is None:
            return
        since = self.clock() - float(order.document.get("stood", 0.0)) - _EVIDENCE_AGAIN_SECONDS
        path, problem = evidence_on_disk(self.hub.run_dir.path, since, self.dumps)
        problem = problem or self._differs(order)
        if not problem:
            host = order.document.get("host")
            text = (
                f"agrees to what {host} ordered (number {order.number} of the lease); evidence is in {path}"
            )
            self._tell_order("agrees", text, order)
            if self.hub.keep(_TOLD_SECONDS):
                if order.document.get("again") is not None:
                    self._waited_for = self.orders.send({"agreed": True})
                self.together.agree(order)
                return
            problem = "the journal cannot be written"
        self._unready.add(order.number)
        self._tell_order("failed", f"does not agree: {problem} (number {order.number} of the lease)", order)

    def _plan_of(self, order: Order) -> Resume | None:
        """How this node's command goes on from the checkpoint that was ordered; None for an end."""
        if order.document.get("again") is None:
            return None
        known = order.document.get("whole")
        whole = CheckpointFolder(str(known[0]), str(known[1]), None, 0, 0, 0.0) if known else None
        return self._plan(whole)

    def _differs(self, order: Order) -> str:
        """Why this node would not go on from where the others do; empty where it would, or does not go on."""
        plan, known = self._plan_of(order), order.document.get("whole")
        if plan is None:
            return ""
        if known and not Path(known[0]).is_dir():
            return f"{known[0]} is not seen on this node"
        flags = list(order.document["again"]["flags"])
        return (
            ""
            if list(plan.flags) == flags
            else f"its command would go on with {' '.join(plan.flags) or 'nothing'}"
        )

    def _act_together(self, order: Order) -> None:
        assert self.together is not None
        rule = next(one for one in self.orders.rules if str(one) == order.rule)
        host, said = order.document.get("host"), order.document.get("text")
        text = f"{said}; CMD is ended on all nodes, as {host} ordered (number {order.number} of the lease)"
        if text not in self._said:
            self._said.add(text)
            # one of them tells people
            self._tell_order("acts" if self.together.has_ordered(order) else "follows", text, order)
            self.hub.keep(_TOLD_SECONDS)  # it could be written when this node agreed
        may = self.together.may_act(order)  # right before it: the number of who has it now
        self.together.forget(order)
        if not may:
            self._tell_order("failed", "does not act: the lease has another number by now", order)
            return
        self._done.add(rule)
        self.orders.say(f"diag: {text}")
        past = {**order.document["past"], "number": self.orders.attempt, "began": self.orders.began}
        code = rule.number if rule.kind == "end" else None
        plan, self._agreed = self._plan_of(order), order
        self._ordered = {
            "rule": order.rule, "grace": self.orders.grace, "code": code,
            "again": None if plan is None else again(plan),
            "past": past | ({"resumed": plan.text} if plan is not None else {}), "lease": order.number,
        }  # fmt: skip
        if not self.orders.send(self._ordered):
            self._tell_order("failed", "does not act: the carrier did not take the order", order)

    def _tell_order(self, what: str, text: str, order: Order) -> None:
        self._write(what, text, lease=order.number, **of_finding(order.document["past"]))

    def _whole(self) -> CheckpointFolder | None:
        """The last whole checkpoint, if it is still there."""
        with self.hub.lock:
            known = last_whole(self.hub.engine.job)
        return known[0] if known is not None and is_there(known[0]) else None

    def _plan(self, whole: CheckpointFolder | None) -> Resume:
        with self.hub.lock:
            said = self.hub.engine.job.run.words
        return resume(
            self.orders.words, whole, said=said, environment=os.environ, folder=Path(self.orders.cwd or ".")
        )

    def _tell_others(self, case: Case, decision: Decision, number: int) -> None:
        if case.rule.kind == "notify":
            self._record("told", "a message is sent to the addresses of --notify", case, number)
            return
        finding = {"action": case.rule.action, "finding": case.finding.to_json(), "text": decision.text}
        failed = run_hook(list(case.rule.words), finding, self.orders.cwd or "/")
        self._record("failed" if failed else "ran", failed or "the command ran", case, number)

    # -- telling ------------------------------------------------------------------------------------------

    def step(self, message: Mapping[str, Any]) -> None:
        """What the carrier says of its work. From any thread."""
        if message["step"] == "term":  # deaths from now on are no failures
            self.hub.put(run_source.interrupted(signal.SIGTERM, self.hub.host))
        self._left = self._left or message["step"] in ("left", "failed")
        order = self._ordered or {}
        self._write(
            str(message["step"]),
            str(message["text"]),
            lease=int(order.get("lease", 0)),
            **of_finding(order.get("past", {})),
        )

    def _record(self, what: str, text: str, case: Case, number: int = 0) -> None:
        finding = case.finding
        self._write(
            what,
            text,
            action=case.rule.action
            if case.rule.kind != "run"
            else " ".join(redacted(["run", *case.rule.words])),
            finding=finding.id,
            klass=finding.klass,
            culprits=list(finding.ranks),
            step=case.step,
            lease=number,
        )

    def _write(self, what: str, text: str, *, lease: int, **more: Any) -> None:
        """`lease`: its number, 0 where it was done without one."""
        more |= {"lease": lease} if lease else {}
        self.hub.put(run_source.acted(what, text, self.hub.host, **more))
        if self.hub.run_dir is None:
            return
        line = {"at": self.clock(), "what": what, "text": text, **more, "class": more["klass"]}
        line["ranks"] = line.pop("culprits")
        del line["klass"]
        with contextlib.suppress(OSError):  # a full disk: the journal tells of it
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            with open(os.open(self.hub.run_dir.path / ACTIONS, flags, 0o600), "w", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def _same(one: Case, other: Case) -> bool:
    return one.rule == other.rule and one.finding.key == other.finding.key
