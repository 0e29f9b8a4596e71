"""One line of `diag doctor`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """`status` is ok, note, problem or not checked; `id` is the finding id that the trouble would have in a
    run.

    A note is worth reading and no trouble: a finding of level info where it has an id.
    """

    what: str
    status: str
    said: str
    remedy: str = ""
    id: str = ""
    severity: str = "warning"

    @property
    def level(self) -> str:
        """The severity of its finding."""
        return self.severity if self.status == "problem" else "info"
