"""Captured folders of evidence, and parts of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from diag.engine.replay import replay
from diag.model import Finding
from diag.text.errors import DiagError

LOOSE = Path(__file__).parent / "captures" / "loose"


def judged(folder: Path) -> dict[str, Finding]:
    """Findings by id; none where the folder is refused because it holds no evidence at all."""
    try:
        engine, _, _ = replay([folder])
    except DiagError as error:
        assert error.exit_code == 2
        return {}
    return {finding.id: finding for finding in engine.all_findings() if finding.severity.counts}


def part_of(scenario: str, into: Path, wanted: Callable[[str], bool]) -> Path:
    """A copy of the scenario with only those files, by name."""
    for path in sorted((LOOSE / scenario).iterdir()):
        if wanted(path.name):
            shutil.copy(path, into / path.name)
    return into
