"""The hub's flame graphs of living ranks: each on a thread of its own, a few at a time, ended with the hub."""

from __future__ import annotations

import asyncio
import threading

from diag.errors import DiagError
from diag.model import Placement
from diag.outputs.view import FlameWanted
from diag.sources.record import Recording, record

__all__ = ["FlameRecorder"]

_MOST_AT_ONCE = 4  # ours: py-spy takes 1 % of a core at 50 samples a second, 2.5 % at 200 (a torch process, 2 cores)


class FlameRecorder:
    """Runs `sources.record` for the HTTP server without ever blocking its loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[int] = set()  # pids
        self._closed = threading.Event()

    async def record(self, place: Placement, wanted: FlameWanted) -> bytes:
        """Raises DiagError: the rank has ended, may not be looked at, or is being recorded already."""
        self._begin(place)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()

        def tell(data: bytes, error: Exception | None) -> None:
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(data)

        def work() -> None:
            data, failure = b"", None
            try:
                recording = Recording(wanted.seconds, wanted.rate, wanted.form, wanted.children, wanted.native)
                data = record(place.pid, recording, start_ticks=place.start_ticks, ending=self._closed.is_set)
            except Exception as error:  # handed to whoever asked
                failure = error
            finally:
                with self._lock:
                    self._running.discard(place.pid)
            try:
                loop.call_soon_threadsafe(tell, data, failure)
            except RuntimeError:
                pass  # the server has ended meanwhile: nobody waits

        # A daemon thread, not an executor's: those are joined when diag ends, and py-spy must not hold that up.
        threading.Thread(target=work, name="flame", daemon=True).start()
        return await answer

    def _begin(self, place: Placement) -> None:
        with self._lock:
            if place.pid in self._running:
                raise DiagError(f"a flame graph of rank {place.rank} is being recorded already", hint="ask again when it is done")
            if len(self._running) >= _MOST_AT_ONCE:
                raise DiagError(f"{_MOST_AT_ONCE} flame graphs are being recorded already", hint="ask again when one is done")
            self._running.add(place.pid)

    def close(self) -> None:
        """The run is over: py-spy processes that still record are ended by their threads."""
        self._closed.set()
