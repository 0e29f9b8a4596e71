"""What the manifest of a captured folder (`meta.json`, `manifest.json`) says of the job. Untrusted."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from diag.engine.importers.files import read_some


class Manifest:
    def __init__(self, data: dict[str, Any]) -> None:
        self._data = data
        events = data.get("events")
        events = events if isinstance(events, list) else []
        # [..., seconds since the epoch, text]
        self._events: list[list[Any]] = [event for event in events if isinstance(event, list) and event]
        self.has_exit_codes = not data.keys().isdisjoint(("codes", "exit_codes"))

    @classmethod
    def of(cls, paths: Iterable[Path]) -> Manifest:
        """The first that can be read."""
        for path in paths:
            try:
                data = json.loads(read_some(path))
            except (ValueError, RecursionError):
                continue
            if isinstance(data, dict):
                return cls(data)
        return cls({})

    def world_size(self) -> int:
        world = self._data.get("world_size")
        return world if isinstance(world, int) and 0 < world < 1 << 20 else 0

    def exit_codes(self) -> dict[int, int]:
        """Of ranks that had ended, as Python has them: negative for signals."""
        codes = self._data.get("exit_codes", self._data.get("codes"))
        known = enumerate(codes) if isinstance(codes, list) else ()
        return {rank: code for rank, code in known if isinstance(code, int) and -64 <= code <= 255}

    def returncode(self) -> int | None:
        given = self._data.get("returncode")
        if isinstance(given, int):
            return given
        found = (re.fullmatch(r"rc (-?\d{1,3})", str(event[-1])) for event in self._events)
        return next((int(match[1]) for match in found if match), None)

    def looked_seconds(self) -> float | None:
        """How long before the moment was taken ("looked") the event before it was: the last that the job was seen
        to do."""
        times = [
            (item[-2], item[-1])
            for item in self._events
            if len(item) > 1 and isinstance(item[-2], (int, float))
        ]
        for (before, _), (at, text) in itertools.pairwise(times):
            if text == "looked" and at > before:
                return float(at - before)
        return None

    def end(self) -> float | None:
        times = (item for event in self._events for item in event if isinstance(item, float))
        return max((at for at in times if 1e9 < at < 1e11), default=None)
