"""Flame graphs that were recorded, for another look: recording takes seconds, and a page shows, opens and
keeps the same one."""

from __future__ import annotations

from collections import OrderedDict

_MOST = 4  # some MiB at worst, in the memory of the job's node


class Drawings:
    """The last few, each under a name of its own."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[bytes, str]] = OrderedDict()
        self._count = 0

    def keep(self, body: bytes, form: str) -> str:
        self._count += 1
        name = str(self._count)
        self._kept[name] = (body, form)
        while len(self._kept) > _MOST:
            self._kept.popitem(last=False)
        return name

    def get(self, name: str) -> tuple[bytes, str] | None:
        """Body and form; None where it was not made or is not kept any more."""
        return self._kept.get(name)
