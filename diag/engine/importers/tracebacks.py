"""Last lines in a log: tracebacks, what native code and the shell print, apart from what launchers die of
themselves."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field

from diag.knowledge.log_prefix import message_of
from diag.knowledge.tracebacks import OF_LAUNCHER

TRACEBACK = re.compile(
    r"^(?:\[rank\d{1,6}\]: ?)?\s{0,8}(?:\+ Exception Group )?Traceback \(most recent call last\):"
)
# The last line of a traceback:   torch.distributed.DistNetworkError: ...     KeyboardInterrupt     SystemExit: 1
EXCEPTION = re.compile(r"^[A-Za-z_][\w.]{0,300}(?:: |:$|$)")
NOT_FATAL = ("SystemExit: 0",)
# Frames that only a launcher's own traceback has (torch 2.0-2.13, deepspeed 0.9-0.19, accelerate 0.30-1.15).
_FRAMES_OF_LAUNCHERS = (
    "torch/distributed/launcher/api.py",
    "torch/distributed/run.py",
    "deepspeed/launcher/runner.py",
    "deepspeed/launcher/launch.py",
    "accelerate/commands/launch.py",
)
MOST_LINES = 120  # of a traceback: its end
MORE_LINES = 3  # of a message below the exception

_LAUNCHERS_LOG = (
    "launch.py",
    "launcher",
    "elastic",
    "torch/distributed",
    "torch.distributed",
    "sigkill_handler",
)


@dataclass(slots=True)
class Raised:
    """One traceback, or another last line, of one source (a rank, or None where the line does not tell)."""

    at: float
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=MOST_LINES))
    exception: str = ""
    more: int = MORE_LINES
    signal: int = 0
    chained: bool = False  # to the traceback before it
    caught: bool = False  # the program's logger went on: only a launcher's report makes it a death

    @property
    def by_launcher(self) -> bool:
        """Its own death, for a worker's or for none: a rendezvous that failed."""
        if any(name in self.exception for name in OF_LAUNCHER):
            return True
        return any(frame in line for line in self.lines for frame in _FRAMES_OF_LAUNCHERS)


USUAL_LEVELS = ("INFO", "DEBUG", "[I", "I0", "I1")  # one of these is in each line that `goes_on` is true for


def goes_on(text: str) -> bool:
    """Whether the program itself logs something usual: what launchers say when they end its peers is of level
    INFO too.

    DeepSpeed 0.16:   [2026-11-20 22:48:19,123] [INFO] [launch.py:316:sigkill_handler] Killing subprocess 20342
    """
    return message_of(text).level in ("INFO", "DEBUG") and not by_launcher(text)


def by_launcher(text: str) -> bool:
    """Whether a launcher logged the line."""
    return any(mark in text for mark in _LAUNCHERS_LOG)
