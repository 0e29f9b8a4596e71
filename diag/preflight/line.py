"""One line of `diag doctor`."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Line"]


@dataclass(frozen=True, slots=True)
class Line:
    """`status` is ok, problem or not checked; `id` is the finding id that the trouble would have in a run."""

    what: str
    status: str
    said: str
    remedy: str = ""
    id: str = ""
    severity: str = "warning"
