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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from diag.agent.cluster.collector import Collector
from diag.agent.cluster.digest import DigestMaker, Identity
from diag.agent.cluster.jobhub import WHOLE_ROSTER, JobHub, every_of
from diag.agent.cluster.post import Failed, Refused, Sender
from diag.agent.cluster.roster import checked
from diag.engine.engine import Engine
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
_LAST_WORDS_SECONDS = 8.0  # a node whose command has failed waits so long for what the others say
# The end of `diag run` waits no longer for other hubs than this, whatever a name server or a peer does; of a
# failed command more.
_END_SECONDS, _FAILED_END_SECONDS, _LEAVE_SECONDS = 10.0, 30.0, 5.0
_JUDGED_SECONDS = 1.8  # checks come each second, and what was told waits up to half of one for its turn
_JITTER = 0.2
_ROSTER_SECONDS = 2.0
_BUSY, _BUSY_SECONDS = 503, 5.0
_MOST_BUSY_SECONDS = 120.0  # a proxy before a hub that is gone says 503 too, for ever
_TOGETHER_SECONDS = 0.2
_SMALL_JOB_SECONDS = 5.0  # between two digests of a node, where the job hub takes them as they come


class NodeHub(Protocol):
    """What a member needs of its hub."""

    @property
    def engine(self) -> Engine: ...
    @property
    def lock(self) -> Any: ...
    @property
    def host(self) -> str: ...
    @property
    def run_id(self) -> str: ...
    @property
    def job_id(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def closer(self) -> bool: ...

    def put(self, record: Record) -> None: ...
    def gpu_states(self) -> dict[int, str]: ...


@dataclass(slots=True)
class Counts:
    """For metrics."""

    digests: Counter[tuple[str, str]] = field(default_factory=Counter)  # direction, result
    digest_bytes: Counter[str] = field(default_factory=Counter)


class Member:
    """`port` is where this hub listens for the others. `talk` says a line to the person."""

    def __init__(  # noqa: PLR0917 - one caller, the hub
        self,
        hub: NodeHub,
        nodes: JobNodes,
        port: int,
        sender: Sender,
        collector: Collector,
        talk: Callable[[str], None],
        *,
        clock: Callable[[], float],
        run_dir: Path | None = None,
        scheme: str = "http",
        peer_port: int | None = None,
    ) -> None:
        self.nodes = nodes if nodes.address or not nodes.hosts else replace(nodes, address=nodes.hosts[0])
        nodes = self.nodes
        self.counts = Counts()
        self.round_trip: float | None = None
        self.connect: float | None = None
        self.job_hub: JobHub | None = None
        self.detail_wanted = False
        self.over = False  # every node's command has ended
        self.sender = sender
        self._hub = hub
        self._port, self._scheme = port, scheme
        self._peer_port = peer_port or port
        self._talk = talk
        self._clock = clock
        self._run_dir = run_dir
        self._collector = collector
        self._maker = DigestMaker(collector)
        self._dump_maker = DigestMaker(collector)
        self._me = Identity(
            hub.run_id,
            hub.host,
            hub.version,
            node_rank=nodes.node_rank,
            nodes=nodes.count,
            host_names=nodes.hosts,
            url=_url(scheme, nodes.address, port) if nodes.address and nodes.node_rank == 0 else "",
            rendezvous=f"{nodes.address}:{nodes.port}"
            if nodes.address and nodes.port
            else nodes.address or "",
        )
        self._roster: list[dict[str, Any]] = []
        self._roster_seen: list[Any] = []
        self._every = 5.0
        self._target = ""  # url of the job hub; "self" where this is it
        self._heard_from = ""  # its run id
        self._failures = 0
        self._busy_since = 0.0
        self._busy = False  # the job hub said that it has too much to take in
        self._ever = False
        self._said: set[str] = set()
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
    def run_id(self) -> str:
        return self._me.run_id

    @property
    def is_job_hub(self) -> bool:
        return self.job_hub is not None and self._heard_from == self._me.run_id

    @property
    def roster(self) -> list[dict[str, Any]]:
        """All hubs that are known, this one too."""
        if self.job_hub is not None and self.is_job_hub:
            return list(self.job_hub.roster.values())
        return list(self._roster)

    def everyone(self) -> list[dict[str, Any]]:
        """The roster; of a large job only the job hub has all of it, and is asked."""
        known, target = self.roster, self._target
        if self.is_job_hub or self.nodes.count <= WHOLE_ROSTER or target in ("", "self"):
            return known
        try:
            rows = self.sender.get(target, "/nodes", _ROSTER_SECONDS)["nodes"]
            return [
                self._placed(
                    {
                        "run_id": row["run_id"],
                        "host": row["host"],
                        "node_rank": row["node_rank"],
                        "url": row["url"],
                        "gone": row["state"] == "gone",
                        "ranks": [[rank] for rank in row["ranks"]],
                    },
                    self._heard_from,
                    target,
                )
                for row in rows
            ]
        except (Failed, KeyError, TypeError):
            return known

    def hurry(self) -> None:
        """Something happened that the job hub should hear of now: a rank ended, or nothing moves any more."""
        self._wake.set()

    def learn(self, nodes: JobNodes, local_world_size: int) -> None:
        """A rank was found: its environment knows what the command line did not tell."""
        me = self._me
        self._me = replace(
            me,
            node_rank=me.node_rank if me.node_rank is not None else nodes.node_rank,
            nodes=max(me.nodes, nodes.count),
            local_world_size=local_world_size or me.local_world_size,
        )

    def take(self, document: dict[str, Any], address: str) -> dict[str, Any]:
        """A digest by HTTP: whoever is reported to is the job hub. Raises KeyError, TypeError, ValueError,
        AttributeError or OverflowError for what is none, and OtherJob."""
        theirs, mine = str(document.get("job_id") or ""), self._job_id()
        there, here = _port_of(str(document["node"].get("rendezvous") or "")), _port_of(self._me.rendezvous)
        # Parts of one job may have ids of their own (Slurm's heterogeneous jobs), and ports that differ are a
        # mistake to be told.
        if theirs and mine and theirs != mine and there and here and there != here:
            self.counts.digests["taken", "failed"] += 1
            raise OtherJob(
                f"this is the hub of another job ({mine}, not {theirs}) with the same token: give one of them another "
                "DIAG_PORT, on all of its nodes"
            )
        answer = self._be_job_hub().take(document, address)
        self.counts.digests["taken", "ok"] += 1
        return answer

    def refuse(self, address: str, why: str) -> None:
        """Somebody without the token wanted to report."""
        self.counts.digests["taken", "failed"] += 1
        if self.job_hub is not None:
            self.job_hub.refuse(address, why)

    def digest(self, detail: int) -> dict[str, Any]:
        """For a dump: all of it, with frames and facts, for one who may know nothing of this node."""
        with self._dump_lock:
            self._dump_maker.forget()
            # Of a large job two hundred thousand facts would be read for what the job hub has told already.
            return self._document(
                self._dump_maker, detail, looks=False, facts=self.nodes.count <= WHOLE_ROSTER
            )

    # -- sending ------------------------------------------------------------------------------------------

    def _document(
        self,
        maker: DigestMaker,
        detail: int,
        *,
        leaving: bool = False,
        looks: bool = True,
        facts: bool = True,
    ) -> dict[str, Any]:
        gpus = self._hub.gpu_states()
        with self._hub.lock:
            document = maker.make(
                self._hub.engine,
                self._me,
                self._clock(),
                self._every,
                gpus,
                detail=detail,
                leaving=leaving,
                round_trip=self.round_trip,
                connect=self.connect,
                looks=looks,
                facts=facts,
            )
        return {
            **document,
            "job_id": self._job_id(),
            "wall": time.time(),
            "port": self._port,
            "scheme": self._scheme,
            "roster_seen": self._roster_seen,
        }

    def _job_id(self) -> str:
        """Empty where nothing but this hub's own run gives a name."""
        return self._hub.job_id if self._hub.job_id != self._me.run_id else ""

    def _work(self) -> None:
        try:
            self._keep_reporting()
        except (
            Exception
        ) as error:  # the outermost frame of a thread: without a word this node would wait for verdicts
            self._talk(
                f"diag: reporting to the other nodes ends here, please report this: {type(error).__name__}: {error}; this "
                "node is watched by itself"
            )
            self._lose()

    def _keep_reporting(self) -> None:
        while not self._ending.is_set():
            pause = self._report()
            self._wake.wait(pause * (1.0 + _JITTER * (_chance() - 0.5)))
            woken = self._wake.is_set()
            self._wake.clear()
            # Several things that happen at once are one digest; what all nodes of a large job want to tell at
            # once comes spread.
            self._ending.wait(_TOGETHER_SECONDS + (spread(self._every) * _chance() if woken else 0.0))

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
        """A job hub of a thousand nodes may be late while all of them start, or stand still, at once."""
        return max(_TIMEOUT_SECONDS, every_of(self.nodes.count) / 2)

    def _pause(self) -> float:
        return _BUSY_SECONDS if self._busy else self._every

    def _candidates(self) -> list[str]:
        """Where the job hub may be, best first. Who was never told of anybody has only the address of the
        rendezvous."""
        found: list[str] = []
        # of node 0 its own: another that calls itself node 0 by mistake is told by asking
        if self.nodes.address:
            found.append(_url(self._scheme, self.nodes.address, self._port_of_first() or self._peer_port))
        if self.nodes.node_rank == 0:
            found.append("self")
        if not self._ever:
            hosts = zip(
                self.nodes.hosts, self.nodes.hub_ports or [None] * len(self.nodes.hosts), strict=False
            )
            found += [_url(self._scheme, host, port or self._peer_port) for host, port in hosts if host][:3]
        by_rank = sorted(
            (entry for entry in self._roster if not entry.get("gone")),
            key=lambda entry: (entry["node_rank"] is None, entry["node_rank"] or 0),
        )
        found += ["self" if entry["run_id"] == self._me.run_id else str(entry["url"]) for entry in by_rank]
        return list(dict.fromkeys(filter(None, found)))

    def _port_of_first(self) -> int | None:
        """Of node 0's hub, where the user's list of nodes tells it: not all of them need have this one's."""
        nodes = self.nodes
        return (
            nodes.hub_ports[0]
            if nodes.hub_ports and nodes.hosts and nodes.hosts[0] == nodes.address
            else None
        )

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
                    self.counts.digest_bytes["sent"] += exchange.sent_bytes
                    self.counts.digest_bytes["taken"] += exchange.received_bytes
                self._hear(answer, url, document)
            except (Failed, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
                self.counts.digests["sent", "failed"] += 1
                self._maker.forget()
                if isinstance(error, Refused) and error.status == _BUSY and self._is_patient(url):
                    # It lives, and judges: another hub beside it would only see a part of the job.
                    self._target, self._failures, self._busy = url, 0, True
                    self._every = max(self._every, every_of(self.nodes.count))
                    return True
                if str(error).startswith("TLS"):
                    self._say(
                        f"diag: the hub at {url} is not trusted: {error}; tls_ca (DIAG_TLS_CA) names the certificates"
                    )
                # 409: it waits for its own ranks still
                if isinstance(error, Refused) and error.status in (401, 403, 422):
                    self._say(f"diag: the hub at {url} takes no digests from here: {error}")
                return False
        self.counts.digests["sent", "ok"] += 1
        self._busy = False
        return True

    def _is_patient(self, url: str) -> bool:
        """Whether one that says it is busy is waited for: not for ever, and not in place of one that takes
        digests."""
        if not self._busy:
            self._busy_since = time.monotonic()
        waits = time.monotonic() - self._busy_since <= _MOST_BUSY_SECONDS
        return waits and (url == self._target or not self._target)

    def _hear(self, answer: dict[str, Any], url: str, document: dict[str, Any]) -> None:
        """What the job hub said. Raises KeyError, TypeError, ValueError, AttributeError or OverflowError for
        what no hub says."""
        heard_from, every = str(answer["hub"]), float(answer["every"])
        verdict = answer["verdict"]
        # One that was not the target before was told all; another hub at the same address was not.
        if answer.get("want") or (heard_from != self._heard_from and url == self._target):
            self._maker.forget()
        if "roster" in answer:
            self._roster = [
                self._placed(checked(entry), heard_from, url) for entry in answer["roster"] if entry["run_id"]
            ]
            self._roster_seen = [heard_from, answer["roster_version"]]
        if heard_from == self._me.run_id and url != "self":
            url = "self"  # the rendezvous is here
        if self._target != url and self._ever:
            self._talk(f"diag: {answer['host']} judges the whole job now")
        self._target, self._heard_from, self._failures, self._ever = url, heard_from, 0, True
        self._every = max(0.5, min(every, 600.0))
        self.detail_wanted = bool(answer["detail"])
        self.over = bool(answer.get("over"))
        if url != "self" or self._ending.is_set():  # at home the job hub itself publishes
            self._hub.put(
                Record(digest_source.VERDICT_SOURCE, verdict, host=str(answer["host"]), emitted=time.time())
            )

    def _placed(self, entry: dict[str, Any], heard_from: str, url: str) -> dict[str, Any]:
        """A hub does not know where others reach it: the job hub's address is the one that was just used, and
        it knows ours."""
        if entry["run_id"] == self._me.run_id and entry["url"]:
            self._me = replace(self._me, url=str(entry["url"]))
        if entry["run_id"] == heard_from and url != "self" and not entry["url"]:
            return {**entry, "url": url}
        return entry

    def _be_job_hub(self) -> JobHub:
        with self._start_lock:
            if self.job_hub is None:
                self.job_hub = JobHub(
                    self._me.run_id, self._hub.host, self._clock, self._publish, self._run_dir
                )
                self.job_hub.seed(self._roster, 0.0)
            elif self.job_hub.idle:  # it was not needed for a while: what it knew is old
                self.job_hub.seed(self._roster, 0.0)
            return self.job_hub

    def _publish(self) -> None:
        """On the job hub's thread: its word to the hub that it lives in, as long as that reports to it."""
        if self.job_hub is None or not (self.is_job_hub or self._target in ("", "self")):
            return
        with self.job_hub.lock:
            verdict = self.job_hub.verdict(self._me.run_id)
        self._hub.put(Record(digest_source.VERDICT_SOURCE, verdict, host=self._hub.host, emitted=time.time()))

    def _lose(self) -> None:
        self._target, self._failures = "", 0
        if self._heard_from:
            self._heard_from = ""
            reason = "no hub of another node answers any more"
            self._hub.put(
                Record(digest_source.VERDICT_SOURCE, digest_source.lost(reason), host=self._hub.host)
            )

    def _say(self, text: str) -> None:
        if text not in self._said and len(self._said) < 16:
            self._said.add(text)
            self._talk(text)

    # -- the end ------------------------------------------------------------------------------------------

    def conclude(self, failed: bool) -> None:
        """The command has ended: tell it, hear what the others say of it if it failed, and leave. Called by
        the hub's own thread, which takes the verdict after it."""
        seconds = (_FAILED_END_SECONDS if failed else _END_SECONDS) + spread(self._every)
        self._within(seconds, lambda: self._conclude(failed))

    def _conclude(self, failed: bool) -> None:
        until = time.monotonic() + _LAST_WORDS_SECONDS
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
        # all is told: it is judged within a second, and then the others come for the verdict
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
            self._say(
                f"diag: the other nodes' hubs are not waited for any longer (no end within {format_seconds(seconds)})"
            )

    def _leave(self) -> None:
        if self._target and self._target != "self":
            self._report(leaving=True)
        elif self.job_hub is not None:
            self.job_hub.roster.pop(self._me.run_id, None)
            for candidate in [url for url in self._candidates() if url != "self"][:1]:
                self._try(candidate, leaving=True)


def spread(every: float) -> float:
    """Over how many seconds the nodes of a job that is so large lay what they all want to tell now.

    >>> spread(5.0), spread(20.0)
    (0.0, 15.0)
    """
    return max(0.0, every - _SMALL_JOB_SECONDS)


def _port_of(address: str) -> str:
    """
    >>> _port_of("10.0.0.1:29500"), _port_of("gpu1"), _port_of("fd00::1")
    ('29500', '', '')
    """
    host, _, port = address.rpartition(":")
    return port if host and (":" not in host or host.endswith("]")) and port.isdigit() else ""


def _chance() -> float:
    return secrets.randbelow(1000) / 1000.0


def _url(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
