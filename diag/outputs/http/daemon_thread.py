"""Work that the server's loop must not do itself: it waits for a lock of others, or takes long."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


async def in_daemon_thread(work: Callable[[], _T]) -> _T:
    """`work` on a thread that the end of the process does not wait for (those of asyncio.to_thread it does)."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_T] = loop.create_future()

    def tell(take: Callable[[], None]) -> None:
        if not done.done():  # whoever asked is gone
            take()

    def run() -> None:
        take: Callable[[], None]
        try:
            result = work()
        except Exception as raised:  # told to whoever asked
            error = raised
            take = lambda: done.set_exception(error)  # noqa: E731
        else:
            take = lambda: done.set_result(result)  # noqa: E731
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell, take)

    threading.Thread(target=run, name="beside", daemon=True).start()
    return await done
