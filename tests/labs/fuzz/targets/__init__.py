"""Everything that diag reads, each with recorded input to begin with: one table."""

from __future__ import annotations

from tests.labs.fuzz.targets import config, files, logs, records, wire
from tests.labs.fuzz.targets.base import Target

__all__ = ["TARGETS", "Target"]

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (*records.TARGETS, *logs.TARGETS, *files.TARGETS, *wire.TARGETS, *config.TARGETS)
}
