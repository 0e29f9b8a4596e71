"""What processes have put into their environment themselves, where no hook says so: by their memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from diag.launch.launchers import relevant
from diag.sources.host.process_tree import PROC, is_python, loads_torch
from diag.sources.stacks.remote_stack.environ import live_environ

# Until a process is found to have a rank's variables it is asked less and less often: 1 ms each. Ours.
_SECONDS, _LONGEST_SECONDS, _GROWTH = 1.0, 10.0, 1.5

Key = tuple[int, int]  # pid and start_ticks


class OwnVariables:
    def __init__(self, proc: Path = PROC, clock: Callable[[], float] = time.monotonic) -> None:
        self._proc, self._clock = proc, clock
        self._asked: dict[Key, tuple[int, float]] = {}  # how often, and when next
        self._known: dict[int, dict[str, str]] = {}

    def of(self, key: Key) -> dict[str, str] | None:
        """Of a Python process with torch. None also where it was asked a moment ago."""
        times, due = self._asked.get(key, (0, 0.0))
        now, pid = self._clock(), key[0]
        if now < due:
            return None
        self._asked[key] = times + 1, now + min(_SECONDS * _GROWTH**times, _LONGEST_SECONDS)
        if not is_python(pid, self._proc) or not loads_torch(pid, self._proc):
            return None
        found = live_environ(pid, self._proc)
        if found is not None:
            self._known[pid] = relevant(found)
        return found

    def known(self, pid: int) -> dict[str, str]:
        """As it was read last, the part that matters."""
        return self._known.get(pid, {})

    def keep_only(self, keys: Iterable[Key]) -> None:
        kept = set(keys)
        pids = {pid for pid, _ in kept}
        self._asked = {key: one for key, one in self._asked.items() if key in kept}
        self._known = {pid: one for pid, one in self._known.items() if pid in pids}
