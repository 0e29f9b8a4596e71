"""This node's hub as one of the job's: reports to the job hub, takes over when there is none, brings its
verdict home.

One thread sends. Where the job hub is, is found by trying: the address at which the training itself meets
first, then those that it named before it fell silent, by the number of their node; this hub is one of them.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from diag.agent.cluster.digest import Collector, DigestMaker
from diag.agent.cluster.jobhub import JobHub, every_of, spread
from diag.agent.cluster.post import Failed, Refused, Sender
from diag.agent.cluster.roster import WHOLE_ROSTER, Entry, Identity, KnownHubs
from diag.agent.node_hub import NodeHub
from diag.launch.launchers.nodes import JobNodes
from diag.model import Record
from diag.sources import digest as digest_source
from diag.text.errors import OtherJob
from diag.text.units import format_seconds

_TIMEOUT_SECONDS = 4.0
_FIRST_SECONDS = 2.0  # between two tries while no job hub was ever reached: the others are still starting
_AGAIN_SECONDS = 1.0
_FAILURES = 2  # in a row before another is tried
_BACK_SECONDS = 30.0  # how often a better placed hub is tried again
_VERDICT_SECONDS = 8.0  # a node whose command has failed waits so long for what the others say
# The end of `diag run` waits no longer for other hubs than this, whatever a name server or a peer does; of a
# failed command more.
_END_SECONDS, _FAILED_END_SECONDS, _LEAVE_SECONDS = 10.0, 30.0, 5.0
_JUDGED_SECONDS = 1.8  # checks come each second, and what was reported waits up to half of one for its turn
_JITTER = 0.2
_BUSY, _BUSY_SECONDS = 503, 5.0
_MOST_BUSY_SECONDS = 120.0  # a proxy before a hub that is gone says 503 too, for ever
_TOGETHER_SECONDS = 0.2


class Member:
    """`port` is where this hub listens for the others. `talk` shows a line to the person."""

    def __init__(  # noqa: PLR0917 - one caller, the hub
        self,
        hub: NodeHub,
        nodes: JobNodes,
        port: int,
        sender: Sender,
        collector: Collector,
        talk: Callable[[str], None],
        *,
        scheme: str = "http",
        peer_port: int | None = None,
    ) -> None:
        self.known = KnownHubs(hub, nodes, scheme, port, peer_port or port)
        self.nodes = self.known.nodes
        # for metrics: by direction and result, and by direction
        self.digests: Counter[tuple[str, str]] = Counter()
        self.digest_bytes: Counter[str] = Counter()
        self.round_trip: float | None = None
        self.connect: float | None = None
        self.job_hub: JobHub | None = None
        self.detail_wanted = False
        self.over = False  # every node's command has ended
        self.sender = sender
        self._hub = hub
        self._port, self._scheme = port, scheme
        self._talk = talk
        self._collector = collector
        self._maker = DigestMaker(collector)
        self._dump_maker = DigestMaker(collector)
        self._every = 5.0
        self._target = ""  # url of the job hub; "self" where this is it
        self.heard_from = ""  # its run id
        self._failures = 0
        self._busy_since = 0.0
        self._busy = False  # the job hub has too much to take in
        self._ever = False
        self._shown: set[str] = set()
        self._back_at = 0.0
        self._wake = threading.Event()
        self._ending = threading.Event()
        self._make_lock = threading.Lock()
        # of its own: the other is held while a hub that may not answer is waited for
        self._dump_lock = threading.Lock()
        self._start_lock = threading.Lock()
        self._given_up = False  # at the end something held up more than is waited for
        self._thread = threading.Thread(target=self._work, name="cluster", daemon=True)

    def start(self) -> None:
        self._collector.joined = True
        self._thread.start()

    # -- for the hub --------------------------------------------------------------------------------------

    @property
    def _me(self) -> Identity:
        return self.known.me

    @property
    def is_job_hub(self) -> bool:
        return self.job_hub is not None and self.heard_from == self._me.run_id

    @property
    def judging(self) -> JobHub | None:
        """The job hub, where this is it."""
        return self.job_hub if self.is_job_hub else None

    @property
    def roster(self) -> list[Entry]:
        """All hubs that are known, this one too."""
        judging = self.judging
        return list(judging.roster.hubs.values() if judging is not None else self.known.entries)

    @property
    def asks_for_roster(self) -> str:
        """The url of the job hub where only that has the whole roster, of a large job; else empty."""
        known_here = self.is_job_hub or self.nodes.count <= WHOLE_ROSTER or self._target == "self"
        return "" if known_here else self._target

    def hurry(self) -> None:
        """Something happened that the job hub should hear of now: a rank ended, or nothing moves any more."""
        self._wake.set()

    def learn(self, nodes: JobNodes, local_world_size: int) -> None:
        """A rank was found: its environment knows what the command line did not tell."""
        me = self.known.me
        self.known.me = replace(
            me,
            node_rank=me.node_rank if me.node_rank is not None else nodes.node_rank,
            nodes=max(me.nodes, nodes.count),
            local_world_size=local_world_size or me.local_world_size,
        )

    def take(self, document: dict[str, Any], address: str) -> dict[str, Any]:
        """A digest by HTTP: whoever is reported to is the job hub. Raises KeyError, TypeError, ValueError,
        AttributeError or OverflowError for what is none, and OtherJob."""
        if self.known.is_of_other_job(document, mine := self._job_id()):
            self.digests["taken", "failed"] += 1
            raise OtherJob(
                f"this is the hub of another job ({mine}, not {document['job_id']}) with the same token: give one of them "
                "another DIAG_PORT, on all of its nodes"
            )
        answer = self._be_job_hub().take(document, address)
        self.digests["taken", "ok"] += 1
        return answer

    def refuse(self, address: str, why: str) -> None:
        """A hub without the token wanted to report."""
        self.digests["taken", "failed"] += 1
        if self.job_hub is not None:
            self.job_hub.refuse(address, why)

    def digest(self, detail: int) -> dict[str, Any]:
        """For a dump: all of it, with frames and facts, for one who may know nothing of this node."""
        with self._dump_lock:
            self._dump_maker.forget()
            # Of a large job two hundred thousand facts would be read that the job hub has already.
            return self._document(
                self._dump_maker, detail, looks=False, facts=self.nodes.count <= WHOLE_ROSTER
            )

    # -- sending ------------------------------------------------------------------------------------------

    def _document(self, maker: DigestMaker, detail: int, **parts: bool) -> dict[str, Any]:
        """`parts`: as `DigestMaker.make` has them."""
        hub, gpus = self._hub, self._hub.gpu_states()
        trip = (self.round_trip, self.connect)
        with hub.lock:
            document = maker.make(
                hub.engine, self._me, hub.clock(), self._every, gpus, detail=detail, trip=trip, **parts
            )
        return {
            **document,
            "job_id": self._job_id(),
            "wall": time.time(),
            "port": self._port,
            "scheme": self._scheme,
            "roster_seen": self.known.seen,
        }

    def _job_id(self) -> str:
        """Empty where nothing but this hub's own run gives a name."""
        return self._hub.job_id if self._hub.job_id != self._me.run_id else ""

    def _work(self) -> None:
        try:
            while not self._ending.is_set():
                pause = self._report()
                self._wake.wait(pause * (1.0 + _JITTER * (_chance() - 0.5)))
                woken = self._wake.is_set()
                self._wake.clear()
                # Several things that happen at once are one digest; what all nodes of a large job want to tell at
                # once comes spread.
                self._ending.wait(_TOGETHER_SECONDS + (spread(self._every) * _chance() if woken else 0.0))
        # the outermost frame of a thread: in silence this node would wait for verdicts
        except Exception as error:
            self._talk(
                f"diag: reporting to the other nodes stops here, please report this: {type(error).__name__}: {error}; this "
                "node is watched on its own"
            )
            self._lose()

    def _report(self, *, leaving: bool = False) -> float:
        """Send one digest to whoever takes it. Returns the seconds until the next."""
        # also when this hub took over
        if self._target and self.nodes.node_rank != 0 and time.monotonic() > self._back_at:
            self._back_at = time.monotonic() + _BACK_SECONDS
            if self._target != (first := self._candidates()[0]) and self._try(first, leaving=leaving):
                return self._pause()
        if self._target and self._try(self._target, leaving=leaving):
            return self._pause()
        if self._target:
            self._failures += 1
            if self._failures < _FAILURES and not leaving:
                return _AGAIN_SECONDS
        for candidate in self._candidates():
            if candidate == self._target and self._failures:
                continue
            if self._try(candidate, leaving=leaving):
                return self._pause()
            if self._ending.is_set() and not leaving:
                break
        self._lose()
        return _FIRST_SECONDS

    def _patience(self) -> float:
        """A job hub of a thousand nodes may be late while all of them start, or stall, at once."""
        return max(_TIMEOUT_SECONDS, every_of(self.nodes.count) / 2)

    def _pause(self) -> float:
        return _BUSY_SECONDS if self._busy else self._every

    def _candidates(self) -> list[str]:
        return self.known.candidates(met=self._ever)

    def _try(self, url: str, *, leaving: bool = False) -> bool:
        detail = 1 if self._hub.closer or self.detail_wanted or leaving else 0
        with self._make_lock:
            if url != self._target:
                self._maker.forget()
            document = self._document(self._maker, detail, leaving=leaving)
            began = time.monotonic()
            try:
                if url == "self":
                    answer = self._be_job_hub().take(document, "", now=True)
                else:
                    exchange = self.sender.send(url, "/digests", document, self._patience())
                    answer = exchange.answer
                    self.round_trip = round(time.monotonic() - began, 4)
                    self.connect = exchange.connect_seconds
                    self.digest_bytes["sent"] += exchange.sent_bytes
                    self.digest_bytes["taken"] += exchange.received_bytes
                self._hear(answer, url)
            except (Failed, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
                self.digests["sent", "failed"] += 1
                self._maker.forget()
                if isinstance(error, Refused) and error.status == _BUSY and self._is_patient(url):
                    # It lives, and judges: another hub beside it would only see a part of the job.
                    self._target, self._failures, self._busy = url, 0, True
                    self._every = max(self._every, every_of(self.nodes.count))
                    return True
                if str(error).startswith("TLS"):
                    self._show(
                        f"diag: the hub at {url} is not trusted: {error}; tls_ca (DIAG_TLS_CA) names the certificates"
                    )
                # 409: it waits for its own ranks still
                if isinstance(error, Refused) and error.status in (401, 403, 422):
                    self._show(f"diag: the hub at {url} rejects the digests of this node: {error}")
                return False
        self.digests["sent", "ok"] += 1
        self._busy = False
        return True

    def _is_patient(self, url: str) -> bool:
        """Whether one that says it is busy is waited for: not for ever, and not in place of one that takes
        digests."""
        if not self._busy:
            self._busy_since = time.monotonic()
        waits = time.monotonic() - self._busy_since <= _MOST_BUSY_SECONDS
        return waits and (url == self._target or not self._target)

    def _hear(self, answer: dict[str, Any], url: str) -> None:
        """The job hub's answer. Raises KeyError, TypeError, ValueError, AttributeError or OverflowError for
        what no hub answers."""
        heard_from, every = str(answer["hub"]), float(answer["every"])
        verdict = answer["verdict"]
        # One that was not the target before was sent all; another hub at the same address was not.
        if answer.get("want") or (heard_from != self.heard_from and url == self._target):
            self._maker.forget()
        self.known.hear(answer, heard_from, url)
        if heard_from == self._me.run_id and url != "self":
            url = "self"  # the rendezvous is here
        if self._target != url and self._ever:
            self._talk(f"diag: {answer['host']} now judges the whole job")
        self._target, self.heard_from, self._failures, self._ever = url, heard_from, 0, True
        self._every = max(0.5, min(every, 600.0))
        self.detail_wanted = bool(answer["detail"])
        self.over = bool(answer.get("over"))
        if url != "self" or self._ending.is_set():  # at home the job hub itself publishes
            self._hub.put(
                Record(digest_source.VERDICT_SOURCE, verdict, host=str(answer["host"]), emitted=time.time())
            )

    def _be_job_hub(self) -> JobHub:
        with self._start_lock:
            if self.job_hub is None:
                hub, run_dir = self._hub, self._hub.run_dir
                place = run_dir.path if run_dir else None
                self.job_hub = JobHub(self._me.run_id, hub.host, hub.clock, self._publish, place)
                self.job_hub.seed(self.known.entries)
            elif self.job_hub.idle:  # it was not needed for a while: what it knew is old
                self.job_hub.seed(self.known.entries)
            return self.job_hub

    def _publish(self) -> None:
        """On the job hub's thread: its verdict for the hub that it lives in, as long as that reports to it."""
        if self.job_hub is None or not (self.is_job_hub or self._target in ("", "self")):
            return
        with self.job_hub.lock:
            verdict = self.job_hub.verdict(self._me.run_id)
        self._hub.put(Record(digest_source.VERDICT_SOURCE, verdict, host=self._hub.host, emitted=time.time()))

    def _lose(self) -> None:
        self._target, self._failures = "", 0
        if self.heard_from:
            self.heard_from = ""
            reason = "no hub of another node answers any more"
            self._hub.put(
                Record(digest_source.VERDICT_SOURCE, digest_source.lost(reason), host=self._hub.host)
            )

    def _show(self, text: str) -> None:
        if text not in self._shown and len(self._shown) < 16:
            self._shown.add(text)
            self._talk(text)

    # -- the end ------------------------------------------------------------------------------------------

    def conclude(self, failed: bool) -> None:
        """The command has ended: report it, hear what the others report of it if it failed, and leave. Called by
        the hub's own thread, which takes the verdict after it."""
        seconds = (_FAILED_END_SECONDS if failed else _END_SECONDS) + spread(self._every)
        self._within(seconds, lambda: self._conclude(failed))

    def _conclude(self, failed: bool) -> None:
        until = time.monotonic() + _VERDICT_SECONDS
        self._ending.set()
        self._wake.set()
        self._thread.join(_TIMEOUT_SECONDS)
        self._wake.clear()
        self._report()
        while failed and self._target and not self.over and time.monotonic() < until:
            # The others' last digests are on their way; nothing tells when the last is in. All nodes ask at
            # once.
            self._linger(max(0.3, spread(self._every)))
            self._report()
        # all is reported: it is judged within a second, and then the others come for the verdict
        if failed and self._target:
            self._linger(_JUDGED_SECONDS * (2 if self._target == "self" else 1))
            self._report()

    @staticmethod
    def _linger(seconds: float) -> None:
        threading.Event().wait(seconds)

    def leave(self) -> None:
        """The last digest. Who judged the job tells the one that takes over that it leaves."""
        if not self._given_up:
            self._within(_LEAVE_SECONDS, self._leave)
        if self.job_hub is not None:
            self.job_hub.close()

    def _within(self, seconds: float, work: Callable[[], None]) -> None:
        """On a thread that may be left alone: looking up a name has no time limit, nor has a peer that
        answers byte by byte."""
        thread = threading.Thread(target=work, name="cluster-end", daemon=True)
        thread.start()
        thread.join(seconds)
        if thread.is_alive():
            self._given_up = True
            self._show(
                f"diag: no longer waiting for the hubs of the other nodes (not done within {format_seconds(seconds)})"
            )

    def _leave(self) -> None:
        if self._target and self._target != "self":
            self._report(leaving=True)
        elif self.job_hub is not None:
            self.job_hub.roster.hubs.pop(self._me.run_id, None)
            for candidate in [url for url in self._candidates() if url != "self"][:1]:
                self._try(candidate, leaving=True)


def _chance() -> float:
    return secrets.randbelow(1000) / 1000.0
