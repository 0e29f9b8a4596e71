"""The one error of an estimate: what in CMD or in the model's files does not allow one. Usage, so exit code
2."""

from __future__ import annotations

from diag.launch.launchers.command.options import CommandError


class EstimateError(CommandError):
    """Also of what the reader of CMD finds wrong in it."""
