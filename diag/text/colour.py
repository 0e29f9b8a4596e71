"""Whether diag's own words are coloured: asked here by every command that can. What CMD prints is CMD's own
matter.

A line of a person decides first (--color), then https://no-color.org, then FORCE_COLOR or CLICOLOR_FORCE,
then the terminal.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

WHEN = ("auto", "always", "never")
COMMANDS = ("run", "watch", "top", "dump", "replay", "doctor", "estimate")  # those that colour

_chosen = ["auto"]


def choose(when: str) -> None:
    """What --color said. For this process alone: no variable is set, for CMD and its ranks would inherit it."""
    _chosen[0] = when


def wanted(descriptor: int) -> bool:
    """Whether to colour what goes to this descriptor: 1 for stdout, 2 for stderr."""
    return is_wanted(_chosen[0], os.environ, is_terminal=os.isatty(descriptor))


def is_wanted(when: str, environment: Mapping[str, str], *, is_terminal: bool) -> bool:
    """
    >>> is_wanted("auto", {}, is_terminal=True), is_wanted("auto", {"NO_COLOR": "1"}, is_terminal=True)
    (True, False)
    >>> is_wanted("auto", {"FORCE_COLOR": "1"}, is_terminal=False), is_wanted("never", {"FORCE_COLOR": "1"}, is_terminal=True)
    (True, False)
    """
    if when != "auto":
        return when == "always"
    if environment.get("NO_COLOR"):
        return False
    if any(environment.get(name, "") not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    return is_terminal and environment.get("TERM") != "dumb"
