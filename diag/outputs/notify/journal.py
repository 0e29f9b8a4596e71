"""What a run writes for others, followed from outside: findings.jsonl, run.json, and whether hub and job still live."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diag.launch.runs import is_alive, read_run
from diag.text.errors import DiagError

ENDED = "ended.json"  # written by the carrier where there is no hub any more


@dataclass(slots=True)
class RunFollower:
    """`first` has what run.json will have, for a hub that dies before it is written."""

    path: Path
    first: dict[str, Any]
    _offset: int = 0
    _rest: bytes = b""
    _run: dict[str, Any] = field(default_factory=dict)
    _stamp: tuple[int, int] = (0, 0)

    def changes(self) -> list[dict[str, Any]]:
        """The lines of findings.jsonl since the last call; half of one is left for the next."""
        try:
            with open(self.path / "findings.jsonl", "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        found = []
        for line in lines:
            try:
                change = json.loads(line)
                finding = change["finding"]
                _ = (
                    change["change"],
                    *map(finding.__getitem__, ("id", "subject", "severity", "ranks", "cause", "class")),
                )
            except (ValueError, KeyError, TypeError, RecursionError):  # of a full disk: cut short
                continue
            found.append(change)
        return found

    @property
    def run(self) -> dict[str, Any]:
        """run.json as it is now."""
        try:
            seen = (self.path / "run.json").stat()
            if (stamp := (seen.st_mtime_ns, seen.st_ino)) != self._stamp:
                self._run, self._stamp = read_run(str(self.path)), stamp
        except (OSError, DiagError):
            pass
        return {**self.first, **self._run}

    def hub_lives(self) -> bool:
        return _lives(self.run, "hub_pid", "hub_start_ticks")

    def job_lives(self) -> bool:
        return _lives(self.run, "pid", "pid_start_ticks")

    def ended(self) -> dict[str, Any] | None:
        """What the carrier wrote of CMD's end, where the hub could not."""
        try:
            found = json.loads((self.path / ENDED).read_bytes())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None


def _lives(run: dict[str, Any], pid: str, ticks: str) -> bool:
    return bool(run.get(pid)) and is_alive(int(run[pid]), run.get(ticks))
