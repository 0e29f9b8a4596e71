"""An HTTP connection over a UNIX socket, whose waits have one deadline together."""

from __future__ import annotations

import os
import socket
import time
from http.client import HTTPConnection
from pathlib import Path


class UnixConnection(HTTPConnection):
    def __init__(self, path: Path, end: float) -> None:
        super().__init__("localhost")
        self._path, self._end = path, end

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.again()
        self.sock.connect(os.fspath(self._path))

    def again(self) -> None:
        """Each wait gets what is left of the whole deadline."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if self.sock is not None:  # http.client closes it with the last chunk
            self.sock.settimeout(left)
