"""Which changes the feeds are told, and what is open then. Reads no clock and no file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from diag.outputs.notify.plan import Change, Worth

Finding = Mapping[str, Any]

_LEVELS = {"critical": 0, "warning": 1}


@dataclass(slots=True)
class Account:
    """Findings of level warning or above: each, each way in which it got worse or certain, and its end, also that another
    finding took its place. `host` is this one: what the job hub of another host found, it tells itself, but for what it
    made of a finding that was told here."""

    host: str
    since: float | None = None  # when the first of those that are open opened
    _worth: Worth = field(init=False)
    _open: dict[tuple[str, str], Finding] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._worth = Worth(self.host, "warning", replaced=True)

    def take(self, change: Change) -> bool:
        finding = change["finding"]
        before = self._open.get(key(change))
        if before is None and finding.get("told_by") not in (None, "", self.host):
            return False
        told = self._worth.take({**change, "finding": {**finding, "told_by": ""}})
        if change["change"] == "resolved":
            self._open.pop(key(change), None)
        elif told or before is not None:
            self.since = self.since if self._open else change["at"]
            self._open[key(change)] = finding
        if not self._open:
            self.since = None
        became_certain = before is not None and is_certain(finding) and not is_certain(before)
        return told or (became_certain and change["change"] != "resolved")

    def open(self) -> list[Finding]:
        """The gravest first, then the oldest."""
        return sorted(self._open.values(), key=lambda one: (_LEVELS.get(one["severity"], 2), one["since"]))


def newest(changes: Iterable[Change]) -> list[Change]:
    """Of those that were held back the last of each finding; none of one that came and went meanwhile."""
    first: dict[tuple[str, str], Change] = {}
    last: dict[tuple[str, str], Change] = {}
    for change in changes:
        first.setdefault(key(change), change)
        last[key(change)] = change
    return [
        change
        for name, change in last.items()
        if (first[name]["change"], change["change"]) != ("opened", "resolved")
    ]


def is_certain(finding: Finding) -> bool:
    return bool(finding["severity"] == "critical" and finding["confidence"] == "high")


def key(change: Mapping[str, Any]) -> tuple[str, str]:
    return change["finding"]["id"], change["finding"]["subject"]
