"""The hub's end of the wire: what the carrier has sent by now, received on a thread of its own."""

from __future__ import annotations

import select
import signal
import threading
from collections.abc import Callable
from typing import Any

from diag.launch.wire import Wire


class Link:
    """`on_signal` is called on the link's thread with the number of each signal that would end CMD."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.width = 0  # of the carrier's terminal
        # CMD's pid ("started"), when it was started ("at"), its "outputs"
        self.started: dict[str, Any] | None = None
        self.returncode: int | None = None  # CMD's, once it has ended
        self.sizes: list[int] = []  # of the output files at that time
        self.on_signal: Callable[[int], object] = lambda number: None
        self._ready = threading.Event()
        self._over = threading.Event()
        self._running = threading.Event()  # not while a person has stopped job and carrier (Ctrl-Z)
        self._running.set()
        self._thread = threading.Thread(target=self._listen, name="carrier", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def say(self, text: str) -> None:
        self._wire.send(say=text)

    def send(self, **message: Any) -> None:
        self._wire.send(**message)

    def await_start(self) -> dict[str, Any] | None:
        """Wait for it; None where CMD was not started."""
        self._ready.wait()
        return self.started

    def is_over(self) -> bool:
        """Whether CMD has ended, or the carrier. Does not return while the job is stopped by Ctrl-Z."""
        self._running.wait()
        return self._over.is_set()

    def await_end(self) -> None:
        self._over.wait()

    def _listen(self) -> None:
        poll = select.poll()
        poll.register(self._wire.fileno(), select.POLLIN)
        while not self._wire.gone:
            poll.poll()
            self._take(self._wire.receive())
        for event in (self._over, self._running, self._ready):
            event.set()

    def _take(self, messages: list[dict[str, Any]]) -> None:
        for message in messages:
            if "width" in message:
                self.width = int(message["width"])
            elif "started" in message:
                self.started = message
                self._ready.set()
            elif "paused" in message:
                (self._running.clear if message["paused"] else self._running.set)()
            elif message.get("signal") in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
                self.on_signal(message["signal"])
            elif "ended" in message:
                self.returncode, self.sizes = message["ended"], message["sizes"]
                self._running.set()
                self._over.set()
            elif "leave" in message:
                self._over.set()
                self._ready.set()
