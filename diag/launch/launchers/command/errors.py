"""The one error of reading a command: what in CMD does not allow an answer. Usage, so exit code 2."""

from __future__ import annotations

from diag.text.errors import DiagError


class CommandError(DiagError):
    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint, exit_code=2)
