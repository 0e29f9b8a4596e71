"""An external command with a deadline."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from diag.text.units import format_seconds


class CommandFailed(Exception):
    """It could not be started, or did not end in time; the message says which."""


def run_command(words: Sequence[str], seconds: float = 5.0) -> subprocess.CompletedProcess[str]:
    """What it printed and its exit status, whatever that is. Raises CommandFailed."""
    try:
        return subprocess.run(
            words, capture_output=True, text=True, errors="replace", timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise CommandFailed(f"did not answer within {format_seconds(seconds)}") from error
    except OSError as error:
        raise CommandFailed(f"cannot be started: {error.strerror}") from error
