"""The hub's flame graphs of living ranks: each on a thread of its own, a few at a time, ended with the hub or
with who asked."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from diag.model import Placement
from diag.outputs.http.daemon_thread import in_daemon_thread
from diag.outputs.view.view import FlameWanted
from diag.sources.host.pauses import Pauses
from diag.sources.stacks.flame_recording import Recording, record
from diag.text.errors import DiagError

# ours: py-spy takes 1 % of a core at 50 samples a second, 2.5 % at 200 (a torch process, 2 cores)
_MOST_AT_ONCE = 4
_END_SECONDS = 5.0  # for another's recording to end: py-spy is killed after 2 s


@dataclass(eq=False, slots=True)
class _Running:
    """A recording, from the moment when its place is taken."""

    by_owner: bool
    stop: threading.Event = field(default_factory=threading.Event)  # it is not wanted any more
    ended: threading.Event = field(default_factory=threading.Event)
    displaced: bool = False
    started: bool = False  # its thread ends it


class FlameRecorder:
    """Runs `sources.record` for the HTTP server without ever blocking its loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[int, _Running] = {}  # by pid
        self._closed = threading.Event()

    async def record(self, place: Placement, wanted: FlameWanted) -> bytes:
        """Raises DiagError: the rank has ended, may not be read, or is being recorded already.
        Cancelled, it ends py-spy."""
        running, other = self._begin(place, wanted)
        try:
            if other is not None:
                await in_daemon_thread(lambda: other.ended.wait(_END_SECONDS))
            return await self._recorded(place, wanted, running)
        finally:
            running.stop.set()
            if not running.started:
                self._end(place, running)

    async def _recorded(self, place: Placement, wanted: FlameWanted, running: _Running) -> bytes:
        pauses = Pauses(place.pid, place.start_ticks) if wanted.native and place.start_ticks else None

        def is_over() -> bool:
            """Asked several times a second: so often it is paused for a sample."""
            if pauses is not None:
                pauses.mark()
            return self._closed.is_set() or running.stop.is_set()

        def work() -> bytes:
            running.started = True
            try:
                if running.stop.is_set():  # before this thread came to run
                    raise _displaced()
                recording = Recording(
                    wanted.seconds, wanted.rate, wanted.form, wanted.children, wanted.native
                )
                return record(place.pid, recording, start_ticks=place.start_ticks, ending=is_over)
            except Exception as error:
                raise (_displaced() if running.displaced else error) from None
            finally:
                if pauses is not None:
                    pauses.mark()
                self._end(place, running)

        return await in_daemon_thread(work)

    def _begin(self, place: Placement, wanted: FlameWanted) -> tuple[_Running, _Running | None]:
        """The place taken, and the recording that has to end first: another user's, where who owns the run
        wants this one."""
        with self._lock:
            same, other = place.pid in self._running, None
            if same or len(self._running) >= _MOST_AT_ONCE:
                in_the_way = [place.pid] if same else list(self._running)
                others = [pid for pid in in_the_way if not self._running[pid].by_owner]
                if not (wanted.by_owner and others):
                    raise DiagError(
                        f"a flame graph of rank {place.rank} is being recorded already"
                        if same
                        else f"{_MOST_AT_ONCE} flame graphs are being recorded already",
                        hint="ask again when it is done" if same else "ask again when one is done",
                    )
                other = self._running.pop(others[0])
                other.displaced = True
                other.stop.set()
            running = self._running[place.pid] = _Running(wanted.by_owner)
            return running, other

    def _end(self, place: Placement, running: _Running) -> None:
        running.ended.set()
        with self._lock:
            if self._running.get(place.pid) is running:
                del self._running[place.pid]

    def close(self) -> None:
        """The run is over: py-spy processes that still record are ended by their threads."""
        self._closed.set()


def _displaced() -> DiagError:
    return DiagError(
        "this recording was stopped for one that the run's own user requested",
        hint="ask again when that one is done",
    )
