"""Errors that a person reads: what happened, what it means, and a hint what to do."""

from __future__ import annotations

__all__ = ["Busy", "DiagError", "OtherJob"]


class DiagError(Exception):
    """Printed as `error: ...` and, where there is one, `hint: ...`. `exit_code` is diag's own (contracts: 1 or 2)."""

    def __init__(self, message: str, *, hint: str = "", exit_code: int = 1) -> None:
        super().__init__(message)
        self.hint = hint
        self.exit_code = exit_code


class Busy(DiagError):
    """More is waiting to be taken in than soon can be: whoever asks comes again later."""


class OtherJob(DiagError):
    """A node of another job, which has the same token, reported to this one's hub."""
