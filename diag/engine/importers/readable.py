"""Whether a file can be a log at all: known by how it begins, before a line of it is read."""

from __future__ import annotations

import gzip
from typing import IO, Protocol

_HEAD_BYTES = 1 << 16
# Logs have tabs, line ends, colours (ESC), bars (CR, BS), bells and form feeds. Random bytes have 9 % of the
# other controls, packed files about as many; GBK and other old encodings of Chinese have none.
_CONTROLS = bytes(code for code in range(1, 32) if code not in b"\t\n\r\x1b\b\a\f\v")
_MOST_CONTROLS = 0.03


class Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


class Head:
    """A stream of which the first bytes were inspected; they are read again."""

    def __init__(self, file: IO[bytes]) -> None:
        # One piece at a time: `read` of a packed file that was cut off gives nothing of its last piece.
        self._read = file.read1 if isinstance(file, gzip.GzipFile) else file.read
        self.head = self._read(_HEAD_BYTES)
        # What is pasted whole is often indented: from a list, a quote, a YAML file.
        self._left = without_indent(self.head) if len(self.head) < _HEAD_BYTES else self.head

    def read(self, size: int = -1, /) -> bytes:
        if self._left:
            end = len(self._left) if size < 0 else size
            given, self._left = self._left[:end], self._left[end:]
            return given
        return self._read(size)

    def whole(self, most: int) -> bytes:
        """What is still to be read, up to so many bytes and as it is; it is read again."""
        while len(self._left) < most and (data := self._read(most - len(self._left))):
            self._left += data
        return self._left


def without_indent(text: bytes) -> bytes:
    """Without the blanks that all its lines begin with.

    >>> without_indent(b"    Traceback ...:\\n      File ...\\n\\n    KeyError: 1\\n")
    b'Traceback ...:\\n  File ...\\n\\nKeyError: 1\\n'
    """
    if text[:1] not in (b" ", b"\t"):
        return text
    lines = text.split(b"\n")
    blanks = min(
        (line[: len(line) - len(line.lstrip(b" \t"))] for line in lines if line.strip()), key=len, default=b""
    )
    return b"\n".join(line.removeprefix(blanks) for line in lines)


def why_unusable(head: bytes) -> str:
    """What follows the name of the file; empty where it can be a log.

    >>> why_unusable(b""), why_unusable(b"step 1\\n"), why_unusable(bytes(range(256)))
    ('is empty', '', 'is not text')
    """
    if not head:
        return "is empty"
    text = head.replace(b"\0", b"")  # a log that logrotate's copytruncate cut begins with zeros
    if not text:
        return "holds nothing but zeros" if len(head) < _HEAD_BYTES else ""
    controls = len(text) - len(text.translate(None, _CONTROLS))
    return "is not text" if controls > _MOST_CONTROLS * len(text) else ""
