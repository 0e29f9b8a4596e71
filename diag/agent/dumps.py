"""Takes a dump for the hub: asks the sidecars, waits for what they send, has the document made and the bundle
written."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diag.agent.cluster.hubside import Membership
from diag.agent.cluster.jobdump import Gathering, job_document, other_hubs
from diag.agent.cluster.member import Member
from diag.agent.dump import (
    Timer,
    add_native,
    culprits,
    dump_document,
    finish_document,
    manifest_facts,
    native_ranks,
    write_bundle,
)
from diag.agent.node_hub import NodeHub
from diag.agent.record_feed import RecordFeed
from diag.agent.sidecar_pool import SidecarPool
from diag.engine.engine import Engine
from diag.launch.rundir import forget_old_bundles
from diag.sources.stacks import native as native_source

_OWN_SECONDS = 0.5  # left after the other nodes, to put all together
_NODE_SECONDS = 0.006  # and so much more for each of them
_NATIVE_SHARE = 5.0  # of a dump's deadline, left for native frames
# Where no person asked: py-spy needs 0.1 to 2 s for a torch rank, and is ended after this.
_NATIVE_PAUSE_SECONDS = 4.0

ChooseRanks = Callable[[Engine], list[int]]  # of whom native frames are read


@dataclass(eq=False)
class DumpTaker:
    """`read_soon` makes the node's samplers read; `records` brings what the sidecars send."""

    hub: NodeHub
    cluster: Membership
    pool: SidecarPool
    read_soon: Callable[[], None]
    records: RecordFeed
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _last: Path | None = None  # of the last bundle, which may not be there yet

    def take(self, deadline: float, *, native: bool = False, scope: str = "job") -> dict[str, Any]:
        """Evidence of every rank now, as a `diag.dump/1` document; also written as a bundle into the run
        directory. `scope` node: of the ranks of this node, with its digest, for the hub that puts the job
        together."""
        until = time.monotonic() + deadline
        hub, timer, member = self.hub, Timer(), self.cluster.member
        others = self._ask_others(member, until, native) if scope == "job" and member is not None else None
        if not self._lock.acquire(timeout=deadline):
            raise TimeoutError("another dump is still running")
        try:  # only what is read here: two nodes that are asked for the whole job at once wait for each other's part
            name, path = self._name()
            document = self._read(name, until, timer, native_ranks if native else None)
        finally:
            self._lock.release()
        if scope == "node":
            return self._of_node(document, timer, member)
        if others is not None and member is not None:
            document = job_document(document, member, others.wait(), hub.host)
            timer.took("nodes")
        finish_document(document, timer)
        if path is not None:
            with hub.lock:
                kept = self.records.flush()
                facts = manifest_facts(hub)
            if kept:
                write_bundle(document, facts, path.parent.parent, path)
                forget_old_bundles(path)
                timer.took("bundle")
                finish_document(document, timer)
        return document

    def keep(
        self,
        deadline: float,
        path: Path,
        native: ChooseRanks,
        most_bytes: int,
        beside: Callable[[], Mapping[str, str]],
    ) -> dict[str, Any]:
        """A bundle at `path` of what this node has, taken without a person (see `evidence`). Returns the document.
        `beside`: other texts for it."""
        until, hub, timer = time.monotonic() + deadline, self.hub, Timer()
        if not self._lock.acquire(timeout=deadline):
            raise TimeoutError("another dump is still running")
        try:
            document = self._read(path.name.partition(".")[0], until, timer, native, _NATIVE_PAUSE_SECONDS)
        finally:
            self._lock.release()
        finish_document(document, timer)
        with hub.lock:
            self.records.flush()
            facts = manifest_facts(hub)
        write_bundle(document, facts, path.parent.parent, path, most_bytes=most_bytes, beside=beside())
        return document

    def _read(
        self,
        name: str,
        until: float,
        timer: Timer,
        native: ChooseRanks | None,
        pause: float = float("inf"),
    ) -> dict[str, Any]:
        """What this node has; with native frames of the ranks that `native` names, each of which stands for so long as
        `pause` at most."""
        hub = self.hub
        self.read_soon()
        # The sidecars end before us, so that what they have is there when we must answer.
        with hub.lock:
            blamed = culprits(hub.engine)
        share = max(0.3, (until - time.monotonic()) * 0.8 - (_NATIVE_SHARE * (native is not None)))
        wait = self.pool.dump(name, share, blamed)
        wait.done.wait(until - time.monotonic())
        self.pool.forget_dump(name)
        timer.took("sidecars")
        self.records.await_taken(0.5)
        timer.took("intake")
        with hub.lock:
            document = dump_document(hub, wait.answers)
            chosen = native(hub.engine) if native is not None else []
        timer.took("document")
        if chosen:
            left = max(0.3, until - time.monotonic() - 0.5)
            asked = self.pool.native(f"{name}-native", chosen, min(left, pause))
            asked.done.wait(until - time.monotonic())
            self.pool.forget_dump(f"{name}-native")
            add_native(document, chosen, asked.answers)
            self._keep_native(asked.answers)
            timer.took("native")
        return document

    def _keep_native(self, answers: Mapping[int, Mapping[str, Any]]) -> None:
        """For who judges, now and in replay."""
        for rank, answer in answers.items():
            payload = answer.get("native") or {}
            if "stdout" in payload:
                self.hub.put(native_source.record(payload["stdout"], payload["pid"], rank, self.hub.host))

    @staticmethod
    def _ask_others(member: Member, until: float, native: bool) -> Gathering:
        entries = other_hubs(member)
        left = until - time.monotonic()
        own = min(left / 2, _OWN_SECONDS + _NODE_SECONDS * len(entries))
        gathering = Gathering(member.sender, entries, until - own, native)
        gathering.start()
        return gathering

    @staticmethod
    def _of_node(document: dict[str, Any], timer: Timer, member: Member | None) -> dict[str, Any]:
        """What another hub needs of this node: its digest has the ranks and their stacks."""
        finish_document(document, timer)
        kept = (
            "schema",
            "run_id",
            "diag_version",
            "host",
            "at",
            "seconds",
            "missing",
            "versions",
            "probes",
            "native",
        )
        digest = member.digest(2) if member is not None else None
        return {
            **{name: document[name] for name in kept if name in document},
            **({"digest": digest} if digest else {}),
        }

    def _name(self) -> tuple[str, Path | None]:
        """Two dumps of one second are two bundles."""
        name = stem = time.strftime("dump-%Y%m%d-%H%M%S")
        if self.hub.run_dir is None:
            return name, None
        for number in range(2, 100):
            path = self.hub.run_dir.path / "dumps" / f"{name}.tar.gz"
            if path != self._last and not path.exists():
                break
            name = f"{stem}-{number}"
        self._last = path
        return name, path
