"""The one error of an estimate: what in CMD or in the model's files does not allow one. Usage, so exit code
2."""

from __future__ import annotations

from diag.text.errors import DiagError

__all__ = ["EstimateError"]


class EstimateError(DiagError):
    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint, exit_code=2)
