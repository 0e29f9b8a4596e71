"""The hub's side of the sidecar processes: starts one beside each rank, takes their records, passes orders."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from diag.agent.samplers.sampler import Reporter
from diag.launch import isolated
from diag.model import Placement, Record
from diag.settings import Settings
from diag.sources.host import cgroup
from diag.sources.host import run as run_source

_RESTART_SECONDS = 30.0
_MOST_RESTARTS = 5
_NO_ROOM = "raise the limits of processes and memory"


@dataclass(slots=True)
class DumpWait:
    """Collects the sidecars' answers to one dump order."""

    wanted: set[int]
    answers: dict[int, dict[str, Any]] = field(default_factory=dict)
    done: threading.Event = field(default_factory=threading.Event)

    def check(self) -> None:
        if self.wanted <= set(self.answers):
            self.done.set()


@dataclass(eq=False, slots=True)
class _Sidecar:
    place: Placement
    process: subprocess.Popen[bytes]
    ended: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)
    _ordered: dict[str, object] = field(
        default_factory=lambda: {"mode": "normal", "memory": False, "other_ranks": []}
    )

    def order(self, message: dict[str, Any]) -> bool:
        """Orders are small and the pipe is empty in practice; a sidecar that does not read is given up, not
        waited for."""
        try:
            with self.lock:
                assert self.process.stdin is not None
                self.process.stdin.write(json.dumps(message).encode() + b"\n")
                self.process.stdin.flush()
            return True
        except (OSError, ValueError):
            return False

    def order_once(self, what: str, value: object) -> None:
        """Where that is news to it."""
        if self._ordered[what] != value and self.order({what: value}):
            self._ordered[what] = value


@dataclass(eq=False)
class SidecarPool:
    """`reporter` takes their records from any thread, what each sample took, and why a source gave nothing."""

    settings: Settings
    run_dir: Path | None
    stack_signal: int
    reporter: Reporter
    _sidecars: dict[int, _Sidecar] = field(default_factory=dict)
    _restarts: dict[int, list[float]] = field(default_factory=dict)
    _dumps: dict[str, DumpWait] = field(default_factory=dict)
    _closing: bool = False

    # -- life ---------------------------------------------------------------------------------------------

    def watch(self, place: Placement) -> None:
        """Start a sidecar beside this rank, unless it has one; one that watched an earlier process of the rank is
        ended, and one that watched this process under another number."""
        process = (place.pid, place.start_ticks)
        for rank, old in list(self._sidecars.items()):
            same = (old.place.pid, old.place.start_ticks) == process
            if same and rank == place.rank and not old.ended:
                old.place = place
                return
            if same or rank == place.rank:
                self.forget(rank)
        try:
            sidecar = _Sidecar(place, self._spawn(place))
        except OSError as error:
            self._failed(place, f"cannot be started: {error.strerror or error}", _NO_ROOM)
            return
        listener = threading.Thread(
            target=self._listen, args=(sidecar,), name=f"sidecar-{place.rank}", daemon=True
        )
        try:
            listener.start()
        except RuntimeError as error:  # no more threads
            self._end(sidecar)
            self._failed(place, f"cannot be listened to: {error}", _NO_ROOM)
            return
        self._sidecars[place.rank] = sidecar
        # to each of the others: one may have started another (Lightning's rank 0 does)
        for one in self._sidecars.values():
            one.order_once("other_ranks", self._other_ranks(one.place))

    def forget(self, rank: int) -> None:
        old = self._sidecars.pop(rank, None)
        if old is not None:
            self._end(old)

    def _other_ranks(self, place: Placement) -> list[int]:
        return sorted({one.place.pid for one in self._sidecars.values()} - {place.pid})

    def _failed(self, place: Placement, reason: str, remedy: str = "") -> None:
        self.reporter.put(run_source.failed("sidecar", reason, remedy, rank=place.rank, host=place.host))

    def _spawn(self, place: Placement) -> subprocess.Popen[bytes]:
        settings = self.settings
        task = {
            "rank": place.rank,
            "pid": place.pid,
            "local_rank": place.local_rank,
            "start_ticks": place.start_ticks,
            "run_dir": str(self.run_dir) if self.run_dir else None,
            "stack_signal": self.stack_signal,
            "stack_seconds": settings.stack_seconds,
            "close_stack_seconds": settings.close_stack_seconds,
            "proc_seconds": settings.proc_seconds,
            "variables": settings.variables,
            "node_seconds": settings.node_seconds,
            "other_ranks": self._other_ranks(place),
        }
        with contextlib.ExitStack() as stack:
            log: int | IO[bytes] = subprocess.DEVNULL
            if self.run_dir is not None:
                # a full disk, a directory that went: the rank is watched all the same
                with contextlib.suppress(OSError):
                    log = stack.enter_context(open(self.run_dir / "sidecars.log", "ab"))
            return subprocess.Popen(
                isolated.argv("diag.agent.sidecar", json.dumps(task)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C and group kills are for the job
                cwd="/",
                env={name: value for name, value in os.environ.items() if not name.startswith("DIAG_FAULT")},
            )

    def tend(self, alive: Callable[[int], bool]) -> None:
        """Call about once a second: a sidecar that died while its rank lives is started again, a few times."""
        for rank, sidecar in list(self._sidecars.items()):
            if not sidecar.ended or self._closing:
                continue
            sidecar.process.poll()
            if not alive(rank):
                del self._sidecars[rank]
                continue
            now, since = time.monotonic(), _RESTART_SECONDS * _MOST_RESTARTS
            recent = [at for at in self._restarts.get(rank, []) if now - at < since]
            if len(recent) >= _MOST_RESTARTS or (
                recent and now - recent[-1] < min(_RESTART_SECONDS, 2.0 ** len(recent))
            ):
                continue
            self._restarts[rank] = [*recent, now]
            self._failed(sidecar.place, f"exited with code {sidecar.process.returncode} and was restarted")
            self.watch(sidecar.place)

    def close(self) -> None:
        self._closing = True
        for sidecar in self._sidecars.values():
            _close_orders(sidecar)  # all of them first: they end side by side
        for sidecar in self._sidecars.values():
            self._end(sidecar)

    def _end(self, sidecar: _Sidecar) -> None:
        _close_orders(sidecar)
        try:
            sidecar.process.wait(0.5)
        except subprocess.TimeoutExpired:
            sidecar.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                sidecar.process.wait(0.5)  # in D state it dies when the kernel lets it

    # -- talk ---------------------------------------------------------------------------------------------

    def set_mode(self, mode: str) -> None:
        for sidecar in self._sidecars.values():
            sidecar.order_once("mode", mode)

    def set_memory_watchers(self, ranks: set[int]) -> None:
        for rank, sidecar in self._sidecars.items():
            sidecar.order_once("memory", rank in ranks)

    def dump(self, name: str, deadline: float, deep: Container[int] = ()) -> DumpWait:
        """Order a dump of all ranks. Wait on `.done`, which is set when all answered, or read `.answers`. `deep`: ranks
        whose children are looked at as closely."""
        return self._order("dump", name, set(self.processes()), deadline, deep)

    def native(self, name: str, ranks: Iterable[int], deadline: float) -> DumpWait:
        """The same for native frames of some ranks."""
        return self._order("native", name, self._sidecars.keys() & ranks, deadline)

    def _order(
        self, what: str, name: str, ranks: set[int], deadline: float, deep: Container[int] = ()
    ) -> DumpWait:
        wait = self._dumps[name] = DumpWait(ranks)
        for rank in sorted(ranks):
            sidecar = self._sidecars.get(rank)
            if sidecar is None or not sidecar.order(
                {what: name, "deadline": deadline, **({"deep": True} if rank in deep else {})}
            ):
                wait.answers[rank] = {"missing": ["the sidecar does not answer"], "seconds": 0.0}
        wait.check()
        return wait

    def forget_dump(self, name: str) -> None:
        self._dumps.pop(name, None)

    def processes(self) -> dict[int, int]:
        """Rank -> pid of its sidecar."""
        return {rank: sidecar.process.pid for rank, sidecar in self._sidecars.items() if not sidecar.ended}

    def _listen(self, sidecar: _Sidecar) -> None:
        assert sidecar.process.stdout is not None
        for line in sidecar.process.stdout:
            # a line torn by the sidecar's death
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
                self._take(json.loads(line))
        # no other process may be left to read the host's counter: the kernel takes sidecars first
        if _killed(sidecar.process):
            counted = Record(
                cgroup.SOURCE, cgroup.host_sample(), host=sidecar.place.host, emitted=time.time()
            )
            self.reporter.put(counted)
        sidecar.ended = True
        for wait in list(self._dumps.values()):
            if sidecar.place.rank in wait.wanted and sidecar.place.rank not in wait.answers:
                wait.answers[sidecar.place.rank] = {"missing": ["the sidecar ended"], "seconds": 0.0}
                wait.check()

    def _take(self, message: dict[str, Any]) -> None:
        """Raises ValueError, KeyError, TypeError or AttributeError for what is no message of a sidecar."""
        reporter = self.reporter
        if "source" in message:
            source, payload = message["source"], message["payload"]
            if "took" in message:
                reporter.sampled(source, float(message["took"]))
            if source == run_source.SOURCE and payload.get("event") == "failed":
                reporter.erred(payload["source"], "unavailable")
            reporter.put(Record.from_json(message))
        elif "dumped" in message:
            wait = self._dumps.get(message["dumped"])
            if wait is not None:
                wait.answers[int(message["rank"])] = message
                wait.check()
        elif "error" in message:
            reporter.erred(*message["error"])


def _close_orders(sidecar: _Sidecar) -> None:
    with contextlib.suppress(OSError, ValueError):
        assert sidecar.process.stdin is not None
        sidecar.process.stdin.close()


def _killed(process: subprocess.Popen[bytes]) -> bool:
    try:
        return process.wait(1.0) == -signal.SIGKILL
    except subprocess.TimeoutExpired:  # it closed its stdout, and goes on
        return False
