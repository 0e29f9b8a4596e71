"""What a line claims went wrong, and which claim of several is the root."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from diag.detectors.unrecognised_forms import (
    FILE,
    INTERRUPTED_IN_DEBUGGER,
    KERNEL_WAITS,
    NATIVE_FRAME,
    REPORT_OF_LINES,
    UNREAD,
)
from diag.knowledge.tracebacks import FRAME
from diag.state.own_code import is_own_file


@dataclass(slots=True)
class Claim:
    at: float
    number: int
    rank: int | None
    klass: str
    text: str  # the message, without prefixes
    line: str  # as it was printed
    type: str = ""
    sure: bool = False  # under a traceback, or of torch's own hook
    frames: tuple[str, ...] = ()  # each with its line of source, where it has one
    wrapper: bool = False
    weak: bool = False  # it only has a word of failure
    asked: str = ""  # the signal that it was told to end by
    passing: bool = False  # the program goes on from it by itself
    below: list[str] = field(default_factory=list)  # lines that follow: an exception's message may go on

    @property
    def said(self) -> str:
        """With the condition of a bare assertion, or the message that begins below the exception's name."""
        bare = self.text.startswith("AssertionError")
        if bare and self.frames and not FRAME.match(self.frames[-1]):
            return f"{self.frames[-1].strip()} ... {self.text}"
        return (
            f"{self.text} {self.below[0]}"
            if self.below and self.text.endswith((":", "Inner Error!"))
            else self.text
        )

    def begins_with_source(self, rank: int | None) -> bool:
        """Whether that rank's message is source that was compiled at run time, before what the compiler says of it."""
        bare = self.sure and self.rank == rank and self.text.endswith(":")
        return bare and bool(self.below) and self.below[0].startswith("#")

    def takes(self, text: str) -> bool | None:
        """Whether a line below belongs to it, of what prints a report of several lines; None where any may."""
        if self.debugged:
            return NATIVE_FRAME.match(text) is not None
        return REPORT_OF_LINES.match(text) is not None if self.reports else None

    @property
    def reports(self) -> bool:
        """It is the first line of a report of several."""
        return REPORT_OF_LINES.match(self.text) is not None

    @property
    def debugged(self) -> bool:
        return bool(self.asked) and INTERRUPTED_IN_DEBUGGER.match(self.text) is not None

    @property
    def stood_in(self) -> str:
        """The innermost function below which all is the kernel's waiting, with the line of source that called it."""
        frames = [match for match in map(NATIVE_FRAME.match, self.below) if match is not None]
        waits = [frame for frame in frames if not KERNEL_WAITS.search(frame["name"])]
        own = next((frame for frame in waits if frame["file"] and frame["name"] == "main"), None)
        called = (
            next((frame for frame in reversed(waits[: waits.index(own)]) if frame), None) if own else None
        )
        if own is None or called is None:
            return waits[0]["name"] if waits else ""
        return f"{called['name']}, called at {own['file'].rpartition('/')[2]}:{own['line']}"

    @property
    def is_raised(self) -> bool:
        return self.klass == "python" and self.sure and not self.wrapper


@dataclass(slots=True)
class Open:
    """A traceback of one source that is being read."""

    frames: list[str]
    left: int = 0
    ignored: bool = False
    source: str = ""  # the last line of it that was quoted
    direct: Claim | None = None  # the exception that this one was raised from
    passing: bool = False  # nobody takes its exception, and the program goes on

    @property
    def indent(self) -> int:
        """Blanks before the last frame."""
        frame = next((line for line in reversed(self.frames) if FRAME.match(line)), "")
        return len(frame) - len(frame.lstrip())


def order(claim: Claim) -> tuple[bool, int, int]:
    """Consequences last; an exception with its traceback before what native code, the scheduler or the driver say, and
    those before a line that only looks like an error, a heading last; of equals the first."""
    weak = claim.weak or (claim.klass == "other" and claim.text.rstrip().endswith(":"))
    other = 1 if UNREAD.match(claim.text) else 4 if weak else 3
    kinds = {"python": 2, "native": 1, "scheduler": 1, "accelerator": 1, "other": other}
    return (
        claim.wrapper,
        0 if claim.sure else 5 if claim.asked and not claim.debugged else kinds[claim.klass],
        claim.number,
    )


def same_head(text: str, line: str) -> bool:
    """Whether Open MPI puts the same host and process before both:   [nid006549:31808] Signal: Segmentation fault (11)"""
    head, end, _ = line.partition("] ")
    return bool(end) and ":" in head and text.startswith(f"{head}] ")


def own_frame(frames: tuple[str, ...]) -> str:
    """`data.py:33 in encode` of the innermost frame that is the program's own; "" where there is none."""
    for line in reversed(frames):
        match = FILE.match(line)
        if match and is_own_file(match[1]):
            name = re.split(r"[/\\]", match[1])[-1]
            return f"{name}:{match[2]}" + (f" in {match[3]}" if match[3] else "")
    return ""
