"""What a failure was, as its last lines show: the exception's class and message, the frames that led to it and the
source that Python prints below them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from diag.knowledge.tracebacks import CHAIN, FRAME, PREFIX
from diag.state.own_code import is_own_file, package_of

_RAISED = re.compile(r"((?:[A-Za-z_]\w{0,100}\.){0,12}[A-Za-z_]\w{0,100})(?:: (.*)|:?\s*$)", re.DOTALL)
# What an exception's class is called, where no frame above the line shows that it is one.
_CLASS = re.compile(
    r"[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Timeout|Expired|Failure)|Exception|StopIteration|Empty"
)
_FRAME = re.compile(r'\s*(?:\| {1,3})?File "([^"\n]{1,400})", line (\d{1,7})(?:, in (\S{1,200}))?')
_HEAD = "Traceback (most"
_CARETS = re.compile(r"[\s~^]+$")
_STRANGERS = 8  # lines of others that may be between a frame and its exception
_BELOW = 6  # lines that a message may go on for
_ABOVE = 400  # lines of one traceback
_LONGEST = 6000  # characters of a message
_SOURCE = 6  # lines of it that are looked through where a terminal broke the frames
# What begins something else below a message: a logger's or torch's prefix, a launcher's word.
_OTHERS = re.compile(
    r"\[(?!Errno)|Traceback|s(?:run|lurmstepd|batch): |mpirun|wandb:|Set the environment|[=*-]{3}|\d{4}-\d\d-\d\d"
    r"|Exception ignored|Sentry|During handling|\+ |Terminated|Killed|Segmentation fault"
)


@dataclass(frozen=True, slots=True)
class Frame:
    """`code`: the line of source below it, "" where none was printed."""

    file: str
    line: int
    function: str
    code: str

    def __str__(self) -> str:
        where = f"{self.file.rpartition('/')[2]}:{self.line}"
        return f"{where} in {self.function}" if self.function else where


@dataclass(frozen=True, slots=True)
class Failure:
    """`type`: the class's own name, "" where the line names no exception. `frames` are outermost first, `above` the
    last lines before it."""

    type: str
    message: str
    frames: tuple[Frame, ...]
    above: tuple[str, ...] = ()

    @property
    def own(self) -> Frame | None:
        """The innermost frame that is the program's own."""
        whole = any(one.file.startswith("/") for one in self.frames)
        return next((one for one in reversed(self.frames) if _is_own(one.file, whole)), None)

    @property
    def is_own(self) -> bool:
        """Whether the line that failed is the program's own."""
        return bool(self.frames) and self.own is self.frames[-1]

    @property
    def package(self) -> str:
        """The library that the program's own line called; "" where that failed by itself."""
        own = self.own
        if own is None or self.is_own:
            return ""
        below = self.frames[self.frames.index(own) + 1 :]
        return next(filter(None, (package_of(frame.file) for frame in below)), "")


def failure_of(lines: Sequence[str], error: str) -> Failure:
    """By the line that is the root, and the lines around it, oldest first."""
    bare = [_plain(PREFIX.sub("", line)) for line in lines]
    text = _plain(PREFIX.sub("", error)).strip()
    at = next((place for place in range(len(bare) - 1, -1, -1) if bare[place].strip() == text), None)
    before = [] if at is None else bare[max(0, at - _ABOVE) : at]
    frames = tuple(_frames(before))
    match = _RAISED.match(text)
    kind = match[1].rpartition(".")[2] if match else ""
    named = match is not None and (bool(frames) or _CLASS.fullmatch(kind) is not None or "." in match[1])
    message = (match[2] or "") if match is not None and named else text
    below = [] if at is None else _below(bare[at + 1 : at + 1 + _BELOW])
    whole = "\n".join([message, *below]).strip()[:_LONGEST]
    return Failure(kind if named else "", whole, frames, tuple(before[-_SOURCE:]))


def _is_own(path: str, whole: bool) -> bool:
    """`whole`: the traceback has paths from the root, so that another one counts from the folder of the start.

    >>> _is_own("./tools/train.py", False), _is_own("tools/train.py", True), _is_own("torch/cuda/streams.py", False)
    (True, True, False)
    """
    if "/" in path and not path.startswith("/") and (whole or path.startswith(".")):
        return is_own_file(f"/{path.lstrip('./')}")
    return is_own_file(path)


def _plain(text: str) -> str:
    """Without halves of surrogate pairs, which no UTF-8 has."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def _below(lines: Sequence[str]) -> list[str]:
    found: list[str] = []
    for line in lines:
        if _OTHERS.match(line) or CHAIN in line or FRAME.match(line):
            break
        if line.strip():
            found.append(line)
    return found


def _frames(lines: Sequence[str]) -> list[Frame]:
    """Of the traceback that ends with these lines."""
    found: list[Frame] = []
    code, strangers = "", 0
    for line in reversed(lines):
        if _HEAD in line or strangers > _STRANGERS:
            break
        match = _FRAME.match(line)
        if match:
            found.append(Frame(match[1], int(match[2]), match[3] or "", code))
            code, strangers = "", 0
        elif line[:1].isspace():
            code = code if _CARETS.match(line) else line.strip()  # of several lines the first
        else:
            strangers += 1
    return found[::-1]
