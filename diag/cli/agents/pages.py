"""Answers that an agent can afford: cut to a budget, the rest on demand."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict

from diag.text.errors import DiagError

DEFAULT_CHARACTERS = 6_000  # some 1,500 tokens
FEWEST, MOST = 200, 60_000
_MOST_KEPT = 4 << 20  # characters of all texts whose rest may still be asked for


class Pages:
    """Texts that were cut, for as long as they may be asked for. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, str] = OrderedDict()
        self._names = itertools.count(1)

    def first(self, text: str, room: int) -> str:
        """The text, or its beginning of at most `room` characters and how to get the rest: of this text, even where
        the run has gone on since."""
        if len(text) <= room:
            return text
        name = str(next(self._names))
        with self._lock:
            self._kept[name] = text
            while len(self._kept) > 1 and sum(map(len, self._kept.values())) > _MOST_KEPT:
                self._kept.popitem(last=False)
        return _page(name, text, 0, room)

    def more(self, cursor: str, room: int) -> str:
        """Raises DiagError where the cursor leads nowhere (any more)."""
        name, _, start = cursor.partition(":")
        with self._lock:
            text = self._kept.get(name)
        if text is None or not (start.isascii() and start.isdigit() and int(start[:9]) < len(text)):
            raise DiagError(
                f"no answer has a rest at cursor {cursor[:40]!r}",
                hint="it is in the last line of an answer that was cut; ask the tool again where that was long ago",
            )
        return _page(name, text, int(start), room)


def _page(name: str, text: str, start: int, room: int) -> str:
    """Cut at the end of a line, where there is one in the second half."""
    end = min(start + room, len(text))
    if end < len(text):
        line_end = text.rfind("\n", start + room // 2, end)
        end = line_end + 1 if line_end > 0 else end
    told = f"[characters {start:,} to {end:,} of {len(text):,}"
    told += f'; the rest: more(cursor="{name}:{end}")]' if end < len(text) else "; the end]"
    return f"{text[start:end].rstrip()}\n{told}"
