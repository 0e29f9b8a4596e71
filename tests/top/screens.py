"""Recorded states, and what a screen shows as plain text."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any

from diag.cli.tui.app import TopApp
from diag.cli.tui.source import Recorded

CAPTURES = Path(__file__).parents[1] / "captures"


@cache
def recorded(name: str) -> Recorded:
    """Evidence below tests/captures."""
    return Recorded([CAPTURES / name])


@cache
def _document(name: str) -> dict[str, Any]:
    return recorded(name).first()


def document(name: str) -> dict[str, Any]:
    """Its `diag.state/1`, to be changed as one likes."""
    return copy.deepcopy(_document(name))


def shown(app: TopApp) -> str:
    """What stands on the screen, line by line."""
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)
