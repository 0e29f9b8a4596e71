"""Server-sent events out of the bytes of a stream, as they come. Knows nothing of what is said."""

from __future__ import annotations

from collections.abc import Iterator

_LONGEST = 64 << 20  # bytes of one event; 16,384 ranks take some 20 MB


class EventParser:
    """Fed with bytes in any pieces; gives (event, data) of those that are whole.

    >>> list(EventParser().feed(b"retry: 2000\\n\\nevent: now\\ndata: {\\ndata: }\\n\\n: quiet\\n\\nevent: la"))
    [('now', '{\\n}')]
    """

    def __init__(self) -> None:
        self._left = bytearray()
        self._searched = 0
        self._event = ""
        self._data: list[bytes] = []
        self._held = 0

    def feed(self, chunk: bytes) -> Iterator[tuple[str, str]]:
        """Raises ValueError for an event without an end."""
        self._left += chunk
        begin = 0
        while (end := self._left.find(b"\n", max(begin, self._searched))) >= 0:
            line = bytes(self._left[begin:end]).removesuffix(b"\r")
            begin = end + 1
            yield from self._line(line)
        del self._left[:begin]
        self._searched = len(self._left)
        if len(self._left) + self._held > _LONGEST:
            raise ValueError("an event without an end")

    def _line(self, line: bytes) -> Iterator[tuple[str, str]]:
        if not line:
            if self._data:
                yield self._event or "message", b"\n".join(self._data).decode("utf-8", "replace")
            self._event, self._data, self._held = "", [], 0
            return
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"event":
            self._event = value.decode("utf-8", "replace")
        elif name == b"data":
            self._data.append(value)
            self._held += len(value)
