"""What a job in the virtual machine must be told: read by the machine and by the tests, so standard library
only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Wanted:
    """A finding that must open: its id, and where they are given its cause, culprit ranks and words of its
    summary."""

    id: str
    cause: str | None = None
    ranks: tuple[int, ...] | None = None
    words: str = ""

    def is_met_by(self, finding: Mapping[str, Any]) -> bool:
        return (
            finding["id"] == self.id
            and (self.cause is None or finding["cause"] == self.cause)
            and (self.ranks is None or tuple(finding["ranks"]) == self.ranks)
            and self.words in finding["summary"]
        )
