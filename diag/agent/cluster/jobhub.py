"""The job hub: an engine of its own that is fed the digests of all nodes, and what it reports of the whole job.

Any node's hub can be it. One thread takes what HTTP threads hand in, as the node's own hub does with its
records.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from diag.agent.cluster.post import try_connection
from diag.agent.cluster.roster import Entry, Roster, digest_of, entry_of
from diag.agent.record_feed import RecordFeed
from diag.detectors.hang import wants_closer_look
from diag.engine.importers.policy import JOB
from diag.engine.journal import JournalWriter
from diag.model import Finding, NotChecked, Record
from diag.model.observations import JobVerdict
from diag.sources import digest as digest_source
from diag.state.cluster import MOST_FRAMES
from diag.text.errors import Busy

_log = logging.getLogger(__name__)

_PROBE_SECONDS = 3.0
_PROBE_AGAIN_SECONDS = 20.0
_IDLE_SECONDS = 60.0  # without a digest, not even of its own node: another hub judges the job
_MOST_PROBES = 16  # at once: a switch that failed makes many nodes silent
_DIGEST_SECONDS, _CLOSER_SECONDS = 5.0, 3.0
_NODES_A_SECOND = 50.0  # digests taken, ours: 2 % of a core
_SMALL_JOB_SECONDS = 5.0  # between two digests of a node, where the job hub takes them as they come
_MOST_REFUSED, _REFUSED_SECONDS = 256, 120.0
_LOOK_SECONDS, _WRITE_SECONDS = 0.5, 1.0
_JOURNAL_BYTES = 64 << 20
_MOST_WAITING = 512  # digests: two seconds of work while a large job starts
_BATCH = 32  # digests under one hold of the lock, which those who report wait for


class JobHub:
    """`publish` is called on a thread of ours when what it says has changed, and every few seconds. No
    `run_dir`: no journal."""

    def __init__(
        self,
        own_id: str,
        host: str,
        clock: Callable[[], float],
        publish: Callable[[], None],
        run_dir: Path | None = None,
    ) -> None:
        self.engine = JOB.engine()
        self.lock = threading.RLock()
        self.own_id = own_id
        self.host = host
        self.roster = Roster()
        self.version = 0
        self.broken = ""  # how it failed; nothing is taken any more
        self.refused: dict[str, tuple[str, float]] = {}  # addresses that were sent away: why, and when
        self._publish = publish
        self._frames: set[str] = set()
        self._taken_at = time.monotonic()
        # the verdict as last written out: for this hub's own node, and for others
        self._written: dict[bool, dict[str, Any]] = {}
        self._written_at = 0.0
        self._probed: dict[str, float] = {}
        self._probing = 0
        self._closer = False
        self._faces: tuple[object, ...] = ()
        self._published_at = 0.0
        self._ended = threading.Event()
        journal: JournalWriter | None = None
        if run_dir is not None:
            with contextlib.suppress(OSError):
                (run_dir / "job").mkdir(exist_ok=True)
                journal = JournalWriter(run_dir / "job", policy=JOB.name, max_bytes=_JOURNAL_BYTES)
        self._records = RecordFeed(self.engine, clock, journal, _BATCH)
        self._write()
        self._thread = threading.Thread(target=self._loop, name="job-hub", daemon=True)
        self._thread.start()

    # -- taking -------------------------------------------------------------------------------------------

    def take(self, document: dict[str, Any], address: str, *, now: bool = False) -> dict[str, Any]:
        """A digest from the node at this address (empty: this node's own). Returns the answer. `now`:
        wait until it is in.

        Raises KeyError, TypeError, ValueError, AttributeError or OverflowError for what is no digest, Busy
        where too many wait already: what is taken is not
        forgotten, and a node that was not heard in time sends all of it again.
        """
        if self.broken:
            raise ValueError(f"this hub failed, please report it: {self.broken}")
        if address and self._records.waiting > _MOST_WAITING:
            raise Busy("too many digests are waiting")
        if document["schema"] != digest_source.SCHEMA:
            raise ValueError(f"schema {document['schema']!r}: the nodes run different versions of diag")
        node = document["node"]
        run_id, ranks = str(node["run_id"]), document["ranks"]
        if address:
            host = f"[{address}]" if ":" in address else address
            scheme = "https" if document.get("scheme") == "https" else "http"  # others will ask this address
            node["url"] = f"{scheme}://{host}:{int(document['port'])}"
        skew, trip = float(document["wall"]) - time.time(), float(node.get("round_trip_seconds") or 1.0)
        # it will keep to what this answer says
        node["every_seconds"] = max(float(node["every_seconds"]), self.every())
        node["skew_seconds"] = round(skew, 1) if abs(skew) > max(2.0, trip + 0.5) else None
        self._taken_at = time.monotonic()
        # the engine has let the oldest go: who still shows them sends them again
        if len(self._frames) > MOST_FRAMES:
            self._frames = set(self.engine.job.cluster.frames.copy())
        self._frames.update(document["frames"])
        want = any(thread["key"] not in self._frames for rank in ranks for thread in rank.get("threads", ()))
        for replaced in self.roster.note(entry_of(node, ranks)):
            self._probed.pop(replaced, None)
        self._records.put(
            Record(digest_source.SOURCE, document, host=str(node["host"]), emitted=float(document["wall"]))
        )
        if now:
            taken = threading.Event()
            self._records.put(None, lambda: self._conclude_for(taken))
            taken.wait(2.0)
        return {"want": want, **self.reply(run_id, document)}

    def refuse(self, address: str, why: str) -> None:
        """A hub at this address was sent away."""
        self.refused.pop(address, None)
        while len(self.refused) >= _MOST_REFUSED:  # who came longest ago makes room
            del self.refused[next(iter(self.refused))]
        self.refused[address] = (why, time.monotonic())

    @property
    def idle(self) -> bool:
        return time.monotonic() - self._taken_at > _IDLE_SECONDS

    def seed(self, entries: list[Entry]) -> None:
        """Nodes that the job hub before this one knew: those that never report here are missed."""
        for entry in entries:
            if entry["run_id"] != self.own_id and not entry.get("gone"):
                document = digest_of(entry, _DIGEST_SECONDS)
                self._records.put(
                    Record(digest_source.SOURCE, document, host=str(entry["host"]), emitted=time.time())
                )
                self.roster.hubs.setdefault(str(entry["run_id"]), entry)
        self.roster.renew()

    def reply(self, run_id: str, seen: dict[str, Any]) -> dict[str, Any]:
        """The answer to a node: how often to report, whether stacks are wanted, the verdict and the roster
        where they are news."""
        answer: dict[str, Any] = {
            "hub": self.own_id,
            "over": self.roster.is_over,
            "host": self.host,
            "every": self.every(),
            "detail": int(self._closer),
            "version": self.version,
            "roster_version": self.roster.version,
        }
        if seen.get("roster_seen") != [self.own_id, self.roster.version]:
            answer["roster"] = self.roster.sent
        verdict = self._written.get(run_id == self.own_id)
        # this hub's own node, on a thread of its own: no other node waits for the engine
        if verdict is None:
            with self.lock:
                verdict = self.verdict(run_id)
        return {**answer, "verdict": verdict}

    def every(self) -> float:
        """Seconds between two digests of a node, so that all of them together stay below what this hub takes."""
        return max(_CLOSER_SECONDS if self._closer else _DIGEST_SECONDS, every_of(len(self.roster.hubs)))

    # -- reporting -------------------------------------------------------------------------------------------

    def verdict(self, run_id: str) -> dict[str, Any]:
        """For one node, the lock held: of its own machine it knows itself; other machines are the job hub's
        own node's matter."""
        engine = self.engine
        job, own = engine.job, run_id == self.own_id
        current, silent = job.cluster.current(), set(job.cluster.silent(engine.now))
        heard = [node for node in current if node not in silent]
        findings = [finding for finding in engine.active() if _is_for(finding, own, self.host)]
        notes = engine.not_checked() if own else []
        notes = [line for line in notes if not line.what.startswith("straggler")][:64]
        # a hub comes again every few seconds; one that does not has the token by now, or was none
        since = time.monotonic() - _REFUSED_SECONDS
        refused = [(address, why) for address, (why, at) in list(self.refused.items()) if at > since]
        notes += [
            NotChecked(
                f"the node at {address}",
                f"its digests are refused: {why}",
                "give all nodes the same DIAG_TOKEN",
            )
            for address, why in (refused[:8] if own else ())
        ]
        expected = max(job.cluster.expected(), len(current))
        fact = JobVerdict(
            None,
            self.host,
            len(heard),
            expected,
            tuple(findings),
            tuple(notes),
            job.phase,
            job.iteration,
            job.progress.total_iterations,
        )
        return digest_source.verdict(fact, engine.now)

    def facts(self) -> tuple[int, int, tuple[tuple[str, str], ...]]:
        """Nodes expected, nodes heard, and (kind, severity) of each finding that is open."""
        with self.lock:
            cluster = self.engine.job.cluster
            current, silent = cluster.current(), cluster.silent(self.engine.now)
            heard = [node for node in current if node not in silent and not node.gone]
            findings = tuple((finding.id, finding.severity.value) for finding in self.engine.active())
            return max(cluster.expected(), len(current)), len(heard), findings

    def _write(self, *, own: bool = False) -> None:
        """Write the verdict out once for all who ask in the next second, the lock held: whoever reports must
        not wait for it."""
        self._written_at = time.monotonic()
        self._written[False] = self.verdict("")
        if own:
            self._written[True] = self.verdict(self.own_id)
        else:
            self._written.pop(True, None)  # only its own node asks for that, every few seconds

    def _loop(self) -> None:
        tended = 0.0
        try:
            while not self._ended.is_set():
                self._take(_LOOK_SECONDS)
                if time.monotonic() - tended >= _LOOK_SECONDS:
                    tended = time.monotonic()
                    self._tend()
        except Exception as error:  # the outermost frame of a thread: whoever reports here must go elsewhere
            self.broken = f"{type(error).__name__}: {error}"
            _log.error("the job hub failed", exc_info=error)
            return
        self._take(0.0)
        if self._records.journal is not None:
            self._records.journal.close()

    def _take(self, wait: float) -> None:
        batch = self._records.batch(wait)
        with self.lock:
            changes = self._records.take(batch)
            if changes or time.monotonic() - self._written_at > _WRITE_SECONDS:
                self._write()
            self._records.flush()

    def _conclude_for(self, asked: threading.Event) -> None:
        """Whoever waits wants the verdict of this moment."""
        self.engine.finish()
        self._write(own=True)
        asked.set()

    def _tend(self) -> None:
        with self.lock:
            now, job = self.engine.now, self.engine.job
            self._closer = wants_closer_look(now, job)
            silent = [
                (node.digest.run_id, node.digest.url, node.digest.host) for node in job.cluster.silent(now)
            ]
            faces = tuple(
                (one.key, one.severity, one.klass, one.cause, one.ranks, one.summary)
                for one in self.engine.active()
            )
        for run_id, url, host in silent if not self.idle else ():
            last = self._probed.get(run_id, -1e9)
            if (
                run_id != self.own_id
                and url
                and time.monotonic() - last > _PROBE_AGAIN_SECONDS
                and self._probing < _MOST_PROBES
            ):
                self._probed[run_id] = time.monotonic()
                self._probing += 1
                with contextlib.suppress(RuntimeError):  # no more threads: it is tried again later
                    threading.Thread(
                        target=self._probe, args=(run_id, url, host), name="probe", daemon=True
                    ).start()
        if faces != self._faces or time.monotonic() - self._published_at > _DIGEST_SECONDS:
            self.version += faces != self._faces
            self._faces, self._published_at = faces, time.monotonic()
            self._publish()

    def _probe(self, run_id: str, url: str, host: str) -> None:
        answer, seconds = try_connection(url, _PROBE_SECONDS)
        self._probing -= 1
        payload = digest_source.probed(run_id, host, answer, round(seconds, 3))
        self._records.put(Record(digest_source.SOURCE, payload, host=self.host))

    def close(self) -> None:
        self._ended.set()
        self._thread.join(2.0)


def every_of(nodes: int) -> float:
    """Seconds between two digests of one of so many nodes."""
    return nodes / _NODES_A_SECOND


def spread(every: float) -> float:
    """Over how many seconds the nodes of a job that is so large lay what they all want to tell now.

    >>> spread(5.0), spread(20.0)
    (0.0, 15.0)
    """
    return max(0.0, every - _SMALL_JOB_SECONDS)


def _is_for(finding: Finding, own: bool, host: str) -> bool:
    """Of what nodes passed up, to the job hub's own node all but what it says by itself; to the others
    nothing."""
    return not finding.hosts or (own and finding.hosts != (host,))
