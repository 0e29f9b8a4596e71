"""Server-sent events of what page and `diag top` show: a look a second at the engine, while anyone listens.

A listener that reads slowly gets the latest of each part, not all that was in between: it holds a mailbox,
not a queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any

from diag.outputs.http.daemon_thread import in_daemon_thread
from diag.outputs.view.columns import columns
from diag.outputs.view.parts import Unread, changed_rows
from diag.outputs.view.view import json_bytes

LOOK_SECONDS = 1.0  # ours: as often as the engine checks
MOST_LISTENERS = 32
_FOR_ALL = 16  # of them: the others are for who owns the run, even when others of the machine read it
_SLOW_EVERY = 5  # looks from one that reads the slow parts to the next
_COST_RATIO = 0.05  # of the server's time: thousands of ranks are read less often
_LONGEST_PAUSE_SECONDS = 10.0
_FEW_ROWS = 32  # fewer are as small as their columns
_QUIET_SECONDS = 15.0  # a comment is sent then, by which proxies and clients know that we live


class TooMany(Exception):
    """More listeners than are served."""


async def _owns_the_run() -> bool:
    return True


class _Mailbox(Unread):
    """What one listener has not read yet."""

    def __init__(self) -> None:
        super().__init__()
        self._wake = asyncio.Event()
        self.closed = False

    def put(self, part: str, value: Any) -> None:
        super().put(part, value)
        self._wake.set()

    def put_rows(self, rows: Iterable[Mapping[str, Any]], *, whole: bool) -> None:
        super().put_rows(rows, whole=whole)
        self._wake.set()

    def close(self) -> None:
        self.closed = True
        self._wake.set()

    async def next(self) -> dict[str, Any]:
        """What there is, as soon as there is something; empty after a quiet while."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._wake.wait(), _QUIET_SECONDS)
        self._wake.clear()
        return self.take()


async def packed(source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """A stream as gzip of which each piece can be read as it comes."""
    # 64 KiB of memory a listener in place of 256
    work = zlib.compressobj(6, zlib.DEFLATED, 16 + 14, 7)
    try:
        async for piece in source:
            yield work.compress(piece) + work.flush(zlib.Z_SYNC_FLUSH)
        yield work.flush()
    finally:
        if (close := getattr(source, "aclose", None)) is not None:
            await close()


async def _chinese(parts: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    def work() -> dict[str, dict[str, str]]:  # the catalogue is read at its first use
        from diag.outputs.http.chinese import chinese_of

        return chinese_of(parts)

    return await in_daemon_thread(work)


class Events:
    """Shared by all listeners of one server. `look(slow)` gives the parts as they are now, without `slow`
    only those that may change each second; it is awaited on the server's loop."""

    def __init__(self, look: Callable[[bool], Awaitable[dict[str, Any]]]) -> None:
        self._look = look
        self._mailboxes: set[_Mailbox] = set()
        self._parts: dict[str, Any] = {}
        self._rows: dict[int, Mapping[str, Any]] = {}
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def close(self) -> None:
        """The server ends: so do all streams at once, and those that are asked for from now on."""
        self._closed = True
        for mailbox in self._mailboxes:
            mailbox.close()
        if self._task is not None:
            self._task.cancel()

    async def listen(
        self,
        owns_the_run: Callable[[], Awaitable[bool]] = _owns_the_run,
        lang: str = "en",
        *,
        as_columns: bool = False,
    ) -> AsyncIterator[bytes]:
        """The stream of one listener; of `lang` zh with the Chinese of each part in front of it, `as_columns` with many
        rows of ranks as columns. Raises TooMany before its first byte."""
        if len(self._mailboxes) >= _FOR_ALL and not await owns_the_run():
            raise TooMany
        if len(self._mailboxes) >= MOST_LISTENERS:
            raise TooMany
        mailbox = _Mailbox()
        stream = self._stream(mailbox, lang, as_columns)
        await anext(stream)  # a stream that was never begun would not learn that its reader is gone
        if self._closed:
            mailbox.close()
            return stream
        for part, value in self._parts.items():
            mailbox.put(part, value)
        if self._parts:
            mailbox.put_rows(list(self._rows.values()), whole=True)
        self._mailboxes.add(mailbox)
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run())
        return stream

    async def _stream(self, mailbox: _Mailbox, lang: str, as_columns: bool) -> AsyncIterator[bytes]:
        try:
            yield b""  # to listen()
            yield b"retry: 2000\n\n"
            while not mailbox.closed:
                parts = await mailbox.next()
                chinese = await _chinese(parts) if lang == "zh" and parts else {}
                if as_columns and len(parts.get("ranks", {}).get("rows", ())) >= _FEW_ROWS:
                    parts["ranks"] = {**parts["ranks"], "rows": columns(parts["ranks"]["rows"])}
                for part, value in ({"chinese": chinese, **parts} if chinese else parts).items():
                    yield b"event: " + part.encode() + b"\ndata: " + json_bytes(value) + b"\n\n"
                if not parts and not mailbox.closed:
                    yield b": quiet\n\n"
            yield b"event: end\ndata: {}\n\n"
        finally:
            self._mailboxes.discard(mailbox)

    async def _run(self) -> None:
        looks = 0
        while self._mailboxes:
            began = time.monotonic()
            try:
                parts = await self._look(not self._parts or looks % _SLOW_EVERY == 0)
            except Exception as error:
                # the hub is busy, or a bug: the page shows it, and the next look may do
                for mailbox in self._mailboxes:
                    mailbox.put("trouble", {"detail": f"{type(error).__name__}: {error}"})
            else:
                self._take(parts)
            looks += 1
            took = time.monotonic() - began
            await asyncio.sleep(max(LOOK_SECONDS, min(took / _COST_RATIO, _LONGEST_PAUSE_SECONDS)))
        self._parts, self._rows = {}, {}  # who comes next gets what is true then

    def _take(self, parts: dict[str, Any]) -> None:
        first = not self._parts
        rows = parts.pop("ranks")
        before, self._rows = self._rows, {row["rank"]: row for row in rows}
        fresh = changed_rows(before, rows)
        gone = not before.keys() <= self._rows.keys()
        for mailbox in self._mailboxes:
            if first or gone:
                mailbox.put_rows(rows, whole=True)
            elif fresh:
                mailbox.put_rows(fresh, whole=False)
        for part, value in parts.items():
            if self._parts.get(part) != value:
                self._parts[part] = value
                for mailbox in self._mailboxes:
                    mailbox.put(part, value)
