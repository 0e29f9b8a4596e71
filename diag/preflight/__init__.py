"""Checks before the run, one a file: of this machine in `checks`, of its network in `network`, of CMD's Python in
`software`, of manifests in `manifest`."""

from __future__ import annotations

from diag.preflight.line import Line
from diag.preflight.report import document, sorted_lines, summary, text

__all__ = ["Line", "document", "sorted_lines", "summary", "text"]
