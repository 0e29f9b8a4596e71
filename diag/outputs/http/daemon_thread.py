"""Work that the server's loop must not do itself: it waits for a lock of others, or takes long."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

_T = TypeVar("_T")


async def in_daemon_thread(work: Callable[[], _T]) -> _T:
    """`work` on a thread that the end of the process does not wait for (those of asyncio.to_thread it does)."""
    import asyncio  # who awaits this has loaded it; who only might, a hub without a server, has not
    from concurrent.futures import Future

    done: Future[_T] = Future()
    done.set_running_or_notify_cancel()  # a client that goes cancels the waiting, never the work

    def run() -> None:
        try:
            done.set_result(work())
        except Exception as error:  # raised where the result is awaited
            done.set_exception(error)

    threading.Thread(target=run, name="diag-http-work", daemon=True).start()
    return await asyncio.wrap_future(done)
