"""What a run writes for others, followed from outside: findings.jsonl, run.json, and whether hub and job still live."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diag.launch.runs import is_alive, read_run
from diag.text.errors import DiagError

FINDINGS, ACTIONS = "findings.jsonl", "actions.jsonl"
ENDED = "ended.json"  # written by the carrier where there is no hub any more


@dataclass(slots=True)
class RunFollower:
    """`first` has what run.json will have, for a hub that dies before it is written."""

    path: Path
    first: dict[str, Any]
    begin: Mapping[str, int] = field(
        default_factory=dict
    )  # of each file, what is of attempts before this one
    _offsets: dict[str, int] = field(default_factory=dict)
    _rests: dict[str, bytes] = field(default_factory=dict)
    _run: dict[str, Any] = field(default_factory=dict)
    _stamp: tuple[int, int] = (0, 0)

    def changes(self) -> list[dict[str, Any]]:
        """The lines of findings.jsonl since the last call; half of one is left for the next."""
        found = []
        for line in self._new(FINDINGS):
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

    def actions(self) -> list[dict[str, Any]]:
        """The same of actions.jsonl: what `--on` did."""
        found = []
        for line in self._new(ACTIONS):
            try:
                action = json.loads(line)
                _ = (*map(action.__getitem__, ("what", "text", "finding", "class", "ranks", "action")),)
            except (ValueError, KeyError, TypeError, RecursionError):
                continue
            found.append(action)
        return found

    def _new(self, name: str) -> list[bytes]:
        offset = self._offsets.get(name, self.begin.get(name, 0))
        try:
            with open(self.path / name, "rb") as file:
                file.seek(offset)
                data = file.read()
        except OSError:
            return []
        self._offsets[name] = offset + len(data)
        *lines, self._rests[name] = (self._rests.get(name, b"") + data).split(b"\n")
        return lines

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
