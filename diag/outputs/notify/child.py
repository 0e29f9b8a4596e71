"""Processes that the notifier starts for a while: what sends a message, and what reads a whole journal. Imports little."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Any

from diag.launch.isolated import argv
from diag.text.units import format_seconds

SEND_SECONDS = 60.0  # to all addresses, which are written to at once


def ask(
    task: dict[str, Any], addresses: Sequence[Sequence[str]], sender: str = "diag.outputs.notify.sender"
) -> list[dict[str, Any]]:
    """Have `sender` do this with these (url, name): what each service answered, as JSON of `sender.Answer`. The addresses go
    by a pipe: command lines can be read by everybody."""
    given = json.dumps({**task, "addresses": [list(address) for address in addresses]}).encode()
    found = json_of(argv(sender), given, SEND_SECONDS)
    if isinstance(found, list):
        return found
    return [
        {"name": name, "accepted": False, "text": f"not sent: {found}", "again": True}
        for _, name in addresses
    ]


def json_of(command: list[str], given: bytes | None, seconds: float) -> Any:
    """What it prints, given this on its stdin; a text with the reason where it does not come to that."""
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/"
        )
    except OSError as error:
        return error.strerror or "no process can be started"
    try:
        out, _ = process.communicate(given, timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"no answer within {format_seconds(seconds)}"
    try:
        return json.loads(out)
    except ValueError:
        return f"the process that does it ended with {process.returncode}"
