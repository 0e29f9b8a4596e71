"""What is worth a message, and when it may be sent. Told the time; reads no clock and no file."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_HOUR = 3600.0
_MOST_HELD = 200
_LEVELS = ("info", "warning", "critical")

Change = Mapping[str, Any]  # a line of findings.jsonl


@dataclass(slots=True)
class Worth:
    """Which changes are told: a finding of level `least` or above, then each way in which it got worse, and its end.
    `host` is this one: what the job hub of another host found, it tells itself. `replaced`: also that another finding
    took its place, for a program that keeps account."""

    host: str
    least: str = "critical"
    replaced: bool = False
    _told: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)

    def take(self, change: Change) -> bool:
        finding = change["finding"]
        key = (finding["id"], finding["subject"])
        before = self._told.get(key)
        if finding.get("told_by") not in (None, "", self.host):
            return False
        if change["change"] == "resolved":
            self._told.pop(key, None)
            return before is not None and (self.replaced or not change.get("replaced"))
        if before is None and _level(finding) < _level({"severity": self.least}):
            return False
        if before is not None and not _is_worse(before, finding):
            return False
        self._told[key] = finding
        return True


def _level(finding: Mapping[str, Any]) -> int:
    return _LEVELS.index(finding["severity"]) if finding["severity"] in _LEVELS else 0


def _is_worse(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Another class or cause, a higher severity, or ranks that were not among them."""
    return (
        _level(now) > _level(before)
        or (now["class"], now["cause"]) != (before["class"], before["cause"])
        or bool(set(now["ranks"]) - set(before["ranks"]))
    )


@dataclass(slots=True)
class Pace:
    """At most `per_hour` messages in any hour; what comes meanwhile goes out as one, once there is room. `held` is that,
    the newest where it is too much."""

    per_hour: int
    held: deque[Change] = field(default_factory=lambda: deque(maxlen=_MOST_HELD))
    left_out: int = 0
    _sent: deque[float] = field(default_factory=deque)

    def due(self, now: float, new: list[Change]) -> list[list[Change]]:
        """The messages to send at this time, each of one change or of all that were held."""
        while self._sent and now - self._sent[0] >= _HOUR:
            self._sent.popleft()
        messages = []
        if self.held and self._has_room():
            self._hold(new)
            messages.append(self.release())
            self._sent.append(now)
            return messages
        for change in new:
            if not self.held and self._has_room():
                messages.append([change])
                self._sent.append(now)
            else:
                self._hold([change])
        return messages

    def release(self) -> list[Change]:
        """All that is held, for a message that goes out in any case."""
        held = [*self.held]
        self.held.clear()
        return held

    def _hold(self, changes: list[Change]) -> None:
        self.left_out += max(0, len(self.held) + len(changes) - _MOST_HELD)
        self.held.extend(changes)

    def _has_room(self) -> bool:
        return len(self._sent) < self.per_hour
