"""Listens to one hub: a thread reads its events with the standard library, reconnects after a loss, and reports
when it ended.

The job is not touched: the hub reads its state once a second for all who listen, and stacks are those that it has
already.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from diag.cli.client.answer import ask, authorization, check_address, document_of
from diag.cli.client.http import get, open_connection, post
from diag.cli.tui.source import Inbox, Link
from diag.launch.runs import is_alive, is_ours, read_run
from diag.text.errors import DiagError
from diag.text.sanitize import clean
from diag.text.units import format_seconds

if TYPE_CHECKING:
    from diag.cli.client.answer import Send

_LONGEST = 64 << 20  # bytes of one event; 16,384 ranks take some 20 MB
_CONNECT_SECONDS = 5.0
_SILENT_SECONDS = 25.0  # a hub sends something at least every 15 s
# and then the last again and again, each a little longer by chance
_BACKOFF_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)
_STEADY_SECONDS = 10.0  # of a connection, after which the waiting begins anew
_END_SECONDS = 5.0  # from the end of the events to run.json that records it
_STACKS_SECONDS = 6.0
_DUMP_SECONDS, _DUMP_GRACE_SECONDS = 8.0, 4.0


class Live:
    """A Source. `run_path` is the run directory where it is known: it has whether the run ended and where
    the hub is now."""

    def __init__(self, url: str, token: str | None, run_path: str | None, ca: str | None) -> None:
        check_address(url)
        self.inbox = Inbox()
        self._url, self._token, self._run_path, self._ca = url, token, run_path, ca
        self._wake: Callable[[], None] = lambda: None
        self._stopped = threading.Event()
        self._wire: socket.socket | None = None
        self._troubled = False
        self._thread = threading.Thread(target=self._run, name="diag-top-events", daemon=True)

    def first(self) -> dict[str, Any]:
        return self._ask("/state", _STACKS_SECONDS)

    def start(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        wire = self._wire
        if wire is not None:
            with contextlib.suppress(OSError):
                wire.shutdown(socket.SHUT_RDWR)

    def stacks(self, rank: int, url: str = "") -> dict[str, Any]:
        return self._ask(f"/ranks/{rank}/stacks", _STACKS_SECONDS, url)

    def dump(self, columns: int, lang: str) -> dict[str, Any]:
        query = f"/dump?deadline={_DUMP_SECONDS:g}&columns={columns}&lang={lang}"
        return self._ask(query, _DUMP_SECONDS + _DUMP_GRACE_SECONDS, send=post)

    # -- one answer ---------------------------------------------------------------------------------------

    def _ask(self, path: str, seconds: float, url: str = "", send: Send = get) -> dict[str, Any]:
        base = url.rstrip("/") or self._url
        hint = "diag top PATH shows what is on disk"
        return document_of(base, ask(base, path, self._token, self._ca, seconds, hint, send))

    # -- events -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        tries = 0
        while not self._stopped.is_set():
            began = time.monotonic()
            try:
                ended = self._listen()
                trouble = "it closed the connection"
            except (OSError, ValueError, http.client.HTTPException, RecursionError) as error:
                ended, trouble = False, clean(str(error)) or type(error).__name__
            if self._stopped.is_set():
                return
            over = self._how_it_ended(_END_SECONDS if ended else 0.0)
            if over is not None:
                self._say(over)
                return
            self._say(
                Link("ENDED", "diag has ended; this is its last state") if ended else self._lost(trouble)
            )
            tries = 0 if time.monotonic() - began > _STEADY_SECONDS else tries + 1
            wait = _BACKOFF_SECONDS[min(tries, len(_BACKOFF_SECONDS) - 1)]
            self._stopped.wait(wait * random.uniform(1.0, 1.25))
            self._look_where_it_is()

    def _listen(self) -> bool:
        """Until the connection ends; whether the hub announced its end. Raises OSError, ValueError,
        HTTPException."""
        connection = open_connection(self._url, _CONNECT_SECONDS, self._ca)
        try:
            connection.connect()
            # http.client forgets it where the answer ends with the connection
            wire = self._wire = connection.sock
            connection.request(
                "GET", "/events", headers={**authorization(self._token), "Accept": "text/event-stream"}
            )
            answer = connection.getresponse()
            if answer.status != 200:
                raise ValueError(_refusal(answer.status, answer.read(65536)))
            wire.settimeout(_SILENT_SECONDS)
            self._say(Link("LIVE"))
            parser = EventParser()
            while not self._stopped.is_set():
                chunk = answer.read1(1 << 16)
                if not chunk:
                    return False
                for event, data in parser.feed(chunk):
                    if event == "end":
                        return True
                    self._take(event, data)
            return False
        except TimeoutError:
            raise ValueError(f"nothing was received for {format_seconds(_SILENT_SECONDS)}") from None
        finally:
            self._wire = None
            connection.close()

    def _take(self, event: str, data: str) -> None:
        trouble = ""
        try:
            value = json.loads(data)
            if event == "trouble":
                trouble = f"diag: {clean(str(value.get('detail')))}"
            else:
                self.inbox.put(event, value)
        except (ValueError, AttributeError, RecursionError) as error:
            trouble = f"not understood: {clean(event[:20])}: {clean(str(error)[:80])}"
        if trouble or (self._troubled and event == "now"):  # the first good look after it ends it
            self._troubled = bool(trouble)
            self.inbox.put_link(Link("LIVE", trouble))
        self._wake()

    def _say(self, link: Link) -> None:
        self.inbox.put_link(link)
        self._wake()

    # -- the run directory --------------------------------------------------------------------------------

    def _how_it_ended(self, seconds: float) -> Link | None:
        """What run.json records of an end, within `seconds`; None while it has none."""
        until = time.monotonic() + seconds
        while self._run_path is not None:
            run = self._read_run()
            if run.get("ended"):
                code = run.get("returncode")
                job = f"the job ended with exit code {code}" if isinstance(code, int) else "the run ended"
                return Link(
                    "ENDED", f"{job}, and diag with it", f"diag top {shlex.quote(os.fspath(self._run_path))}"
                )
            if time.monotonic() >= until or self._stopped.wait(0.2):
                break
        return None

    def _lost(self, trouble: str) -> Link:
        run = self._read_run()
        pid = run.get("hub_pid")
        if (
            self._run_path is not None
            and isinstance(pid, int)
            and is_ours(run)
            and not is_alive(pid, run.get("hub_start_ticks"))
        ):
            again = f"diag watch --run-dir {shlex.quote(os.fspath(self._run_path))}"
            return Link(
                "LOST", f"diag (pid {pid}) is gone, the job may still run; waiting for a new hub", again
            )
        return Link("LOST", f"{trouble}; trying again")

    def _look_where_it_is(self) -> None:
        """A new hub of the same run has another address and token."""
        run = self._read_run()
        if run.get("url") and not run.get("ended"):
            self._url, self._token = str(run["url"]).rstrip("/"), run.get("token") or self._token

    def _read_run(self) -> dict[str, Any]:
        try:
            return read_run(os.fspath(self._run_path)) if self._run_path is not None else {}
        except DiagError:
            return {}


def _refusal(status: int, body: bytes) -> str:
    try:
        document = json.loads(body)
        detail = clean(str(document["detail"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return f"it answers {status}"
    return f"it answers {status}: {detail}"


class EventParser:
    """Server-sent events out of the bytes of a stream, in any pieces; gives (event, data) of those that are whole.

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
