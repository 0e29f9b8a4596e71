"""Messages between the carrier and the hub of one run: JSON objects over a UNIX socket that keeps their
bounds.

Nobody waits here for the other side. Where the other one is gone, stopped or does not read, a message is
dropped.
"""

from __future__ import annotations

import json
import socket
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
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
