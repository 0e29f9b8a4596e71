"""Evidence without a person: as soon as a critical finding is told, a bundle of what this node has, before a launcher or
a person ends the job.

Each node keeps its own. Whatever fails here is a line under `not checked`, and the job and the rest of diag go on.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from diag.agent.dumps import DumpTaker
from diag.agent.evidence_texts import kernel_text, log_text
from diag.agent.node_hub import NodeHub
from diag.engine.engine import Engine
from diag.engine.journal import segments
from diag.launch.failures import in_a_line
from diag.launch.rundir import MIN_FREE_BYTES
from diag.model import Change, ChangeKind, Finding, Severity
from diag.settings import Settings
from diag.sources.host import run as run_source
from diag.text.units import format_bytes

SOURCE = "evidence"
_SECONDS = 15.0  # ours: stacks and /proc come in 1-8 s, native frames in 0.1-4 s more
_BESIDE_BYTES = 8 << 20  # ours: what a bundle of 8 ranks has beside the journal is 1 MiB
_BY_HAND = "diag dump writes a bundle by hand"
_ROOM = "free space there, or give the next run another place with --run-root"


class EvidenceKeeper:
    """`hear` each change on the hub's thread; the bundles are taken on a thread of their own, which lives no longer
    than that."""

    def __init__(
        self, hub: NodeHub, dumps: DumpTaker, settings: Settings, local: Callable[[], Mapping[int, int]]
    ) -> None:
        """`local`: the ranks of this node."""
        self._hub, self._dumps, self._local = hub, dumps, local
        self._on = settings.auto_evidence and hub.run_dir is not None
        self._native = settings.evidence_native
        self._most, self._most_bytes = settings.evidence_bundles, settings.evidence_max_bytes
        self._lock = threading.Lock()
        self._due: list[tuple[Finding, float]] = []  # and when they were told
        self._open: set[tuple[str, str]] = set()  # told and not over
        self._told: set[tuple[object, ...]] = set()  # the same again is no news
        self._taken = 0
        self._thread: threading.Thread | None = None

    def hear(self, change: Change) -> None:
        """Never waits."""
        finding = change.finding
        if not self._on or self._taken >= self._most:
            return
        if change.kind is ChangeKind.RESOLVED:
            self._open.discard(finding.key)
            return
        if finding.severity is not Severity.CRITICAL:
            return
        same = (*finding.key, finding.klass, finding.cause, finding.ranks)
        known = finding.key in self._open or same in self._told
        self._open.add(finding.key)
        self._told.add(same)
        if known or not self._may_take(finding):
            return
        with self._lock:
            self._due.append((finding, time.monotonic()))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=SOURCE, daemon=True)
                try:
                    self._thread.start()
                except RuntimeError as error:  # no more threads
                    self._thread, self._due = None, []
                    self._failed(str(error))

    def is_idle(self) -> bool:
        return self._thread is None

    def close(self) -> None:
        """What is told from now on, is told of a job that has ended: its run directory has all that there is."""
        self._on = False

    def forget_half(self) -> None:
        """The bundle that did not come in time."""
        run_dir = self._hub.run_dir
        if run_dir is not None and not self.is_idle():
            for path in run_dir.path.glob("dumps/evidence-*.part"):
                with contextlib.suppress(OSError):
                    path.unlink()

    # -- on its thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._lock:
                due, self._due = self._due, []
                if not due:
                    self._thread = None
                    return
            try:
                self._take([finding for finding, _ in due], min(at for _, at in due))
            except Exception as error:  # the outermost frame of a thread: the alternative is silence
                self._failed(in_a_line("no bundle was written", error))

    def _may_take(self, finding: Finding) -> bool:
        """The last one is for a job that stands: a critical finding of its start is not to leave a hang without."""
        stands = finding.id in self._hub.engine.precedence.stands_still
        return self._taken < self._most - (not stands and self._most > 1)

    def _take(self, findings: list[Finding], told_at: float) -> None:
        hub = self._hub
        assert hub.run_dir is not None
        with hub.lock:
            job = hub.engine.job
            over = job.returncode is not None or job.interrupted_at is not None or not job.alive_ranks()
        if over or not any(map(self._may_take, findings)):
            return
        folder = hub.run_dir.path / "dumps"
        journal = sum(path.stat().st_size for path in segments(folder.parent))
        free = shutil.disk_usage(folder).free  # the job's own checkpoints may go to the same disk
        if free - MIN_FREE_BYTES < min(journal + _BESIDE_BYTES, self._most_bytes):
            self._failed(f"only {format_bytes(free)} free on the disk of {folder}", _ROOM)
            return
        path = _unused(folder)
        self._taken += 1
        document = self._dumps.keep(
            _SECONDS,
            path,
            lambda engine: culprit_and_victim(engine, findings, self._local()) if self._native else [],
            self._most_bytes,
            lambda: {**log_text(folder.parent), **kernel_text()},
        )
        if "bundle" not in document:
            self._failed(document.get("bundle_error", "not written"))
            return
        for native in document.get("native", ()):
            if native["reason"]:
                reason = native["reason"].splitlines()[0][:300]
                hub.put(run_source.failed("native_frames", reason, rank=native["rank"], host=hub.host))
        keys = [finding.key for finding in findings]
        size = path.stat().st_size
        hub.put(run_source.evidence_kept(keys, str(path), size, time.monotonic() - told_at, hub.host))
        hub.put(run_source.works(SOURCE, host=hub.host))

    def _failed(self, reason: str, remedy: str = _BY_HAND) -> None:
        self._hub.put(run_source.failed(SOURCE, reason, remedy, host=self._hub.host))


def culprit_and_victim(engine: Engine, findings: list[Finding], local: Mapping[int, int]) -> list[int]:
    """Of whom native frames are read, which stops them for a moment: one rank that is blamed and one that waits, two
    that wait where nobody is; of those of this node (`local`), and only of a job that stands by what was found. None
    that is stopped (see `dump.native_ranks`)."""
    ranks = engine.job.ranks

    def usable(number: int) -> bool:
        rank = ranks.get(number) if number in local else None
        return rank is not None and rank.alive and not (rank.tree and rank.tree.main.state in "Tt")

    for finding in findings:
        if finding.id in engine.precedence.stands_still:
            blamed, waiting = (
                list(filter(usable, group)) for group in (finding.ranks, finding.waiting_ranks)
            )
            if chosen := {*blamed[:1], *waiting[: 1 if blamed else 2]}:
                return sorted(chosen)
    return []


def _unused(folder: Path) -> Path:
    stem = time.strftime("evidence-%Y%m%d-%H%M%S")
    names = (stem, *(f"{stem}-{number}" for number in range(2, 100)))
    return next(path for name in names if not (path := folder / f"{name}.tar.gz").exists())
