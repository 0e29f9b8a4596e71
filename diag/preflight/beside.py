"""A check that takes long, done while others are."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from queue import SimpleQueue
from typing import TypeVar

_T = TypeVar("_T")


def beside(items: Iterable[_T]) -> Iterator[_T]:
    """The same items, which a thread begins to make at once; what it raises is raised where they are taken. Who stops
    taking them is not held up by it.

    >>> list(beside(range(3)))
    [0, 1, 2]
    """
    made: SimpleQueue[tuple[_T, ...] | BaseException | None] = SimpleQueue()

    def make() -> None:
        try:
            for item in items:
                made.put((item,))
            made.put(None)
        except BaseException as error:
            made.put(error)

    threading.Thread(target=make, daemon=True, name="diag-beside").start()

    def take() -> Iterator[_T]:
        while (found := made.get()) is not None:
            if isinstance(found, BaseException):
                raise found
            yield from found

    return take()
