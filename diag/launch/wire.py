"""Messages between the carrier and the hub of one run: JSON objects over a UNIX socket that keeps their bounds.

Nobody waits here for the other side. Where the other one is gone, stopped or does not read, a message is dropped.
"""

from __future__ import annotations

import json
import select
import signal
import socket
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_MOST_BYTES = 128 << 10  # below the kernel's usual bound of a datagram (net.core.wmem_default, 208 KiB)
_MOST_TEXT = 64 << 10  # characters, of which JSON may make six bytes each: longer ones are cut until they fit


class Wire:
    """One end. `send` may be called by any thread, `receive` by one.

    >>> one, other = pair()
    >>> one.send(say="hello"), other.receive()
    (True, [{'say': 'hello'}])
    >>> one.close(); other.receive(), other.gone
    ([], True)
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._socket.setblocking(False)
        self._lock = threading.Lock()
        self.gone = False  # the other side has ended or closed; what it sent before was received

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, **message: Any) -> bool:
        """False where the other side did not take it."""
        data = json.dumps(message).encode()
        if len(data) > _MOST_BYTES:
            cut = {
                name: value[: _MOST_TEXT // 8] if isinstance(value, str) else value
                for name, value in message.items()
            }
            data = json.dumps(cut).encode()
        with self._lock:
            try:
                return self._socket.send(data, socket.MSG_NOSIGNAL) == len(data)
            except OSError:  # gone, or its queue is full
                return False

    def receive(self) -> list[dict[str, Any]]:
        """All messages that are there; sets `gone` at their end."""
        messages = []
        while not self.gone:
            try:
                data = self._socket.recv(1 << 18)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.gone = True
                break
            messages.append(json.loads(data))
        return messages

    def close(self) -> None:
        self._socket.close()


def pair() -> tuple[Wire, Wire]:
    """Two ends, both closed by exec. Raises OSError where there are no descriptors left."""
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Wire(one), Wire(other)


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
        # when CMD or the carrier has ended
        self.on_over: Callable[[], object] = lambda: None
        # with each step of the carrier's work on an order of `--on`
        self.on_step: Callable[[dict[str, Any]], object] = lambda step: None
        self._ready = threading.Event()
        self._over = threading.Event()
        self._running = threading.Event()  # not while a person has stopped job and carrier (Ctrl-Z)
        self._running.set()
        self._thread = threading.Thread(target=self._listen, name="carrier", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def say(self, text: str) -> None:
        self._wire.send(say=text)

    def send(self, **message: Any) -> bool:
        return self._wire.send(**message)

    def await_start(self) -> dict[str, Any] | None:
        """Wait for it; None where CMD was not started."""
        self._ready.wait()
        return self.started

    def is_over(self) -> bool:
        """Whether CMD has ended, or the carrier. Does not return while the job is stopped by Ctrl-Z."""
        self._running.wait()
        return self._over.is_set()

    def has_ended(self) -> bool:
        """Whether CMD has ended, by now."""
        return self.returncode is not None

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
        self.on_over()

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
            elif "act" in message:
                self.on_step(message["act"])
            elif "ended" in message:
                self.returncode, self.sizes = message["ended"], message["sizes"]
                self._running.set()
                self._over.set()
                self.on_over()
            elif "leave" in message:
                self._over.set()
                self._ready.set()
                self.on_over()
