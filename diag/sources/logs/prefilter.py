"""Which lines of the output any reader can care about: decided once for each shape of a line, a chunk at a time.

A line's shape is what is left of it without its digits. A program prints few shapes, each of them very often: whether
one of the words of any reader is in it is looked up, and only of shapes that are new it is looked for, in all of them at
once (RE2). A reader of lines (a parser, a detector that looks at `LogLine`) whose words are not in `WORDS` or `ERRORS`
never sees its line: tests/sources/test_prefilter.py.

Lines that nobody has a word for never become objects; what counts them, or keeps the last of them, is handed the run of
them in one piece.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from diag.knowledge.data_samples import MARKS
from diag.sources.gpu import cuda_log
from diag.sources.logs import line_forms, swift_log, trainer_log
from diag.sources.logs.printed import phases

# Lines below one with a word of an error that are read too: its message may go on there, and who reads a traceback is
# attentive for some lines. What stands above is in the run (`PlainLines.last`).
_AFTER = 10
# The first lines of a log are read whatever they say: in an excerpt of a few any word of failure counts.
_FIRST = 20
_DIGITS = b"0123456789"
_MOST_SHAPES = 20_000  # that are remembered: some 3 MB
_LONGEST_SHAPE = 1000

# One of these is in each line that shows a phase, a step, a save, a number, a rank or a device.
WORDS: tuple[str, ...] = tuple(dict.fromkeys((
    *swift_log.WORDS, *trainer_log.WORDS, *line_forms.WORDS, *cuda_log.WORDS,
    "\r", "[rank", "NCCL ", "NCCL_", "libibverbs", "ibv_", "mlock", "world_size", "\"run_st",
    "srun:", "mpirun", "prterun", "Xid", "elastic", "torch.distributed.run", "distributed/run.py", "launcher", "launch.py",
    "raining co", "raining fi", "raining do", "raining is", "raining has", "raining was", "Training C", "Training F",
    "TRAINING C", "TRAINING F", "TRAINING D", "inished tr", "inish tr", "inished Tr", "inished pre", "ompleted tr",
    "tuning co", "tuning fi",
    "inal model saved", "inal weights saved", "inal checkpoint saved", "训练完成", "训练结束", "训练已",
    "raining D", "raining C", "raining F", "tuning do", "tuning is", "tuning ha", "tuning wa", *MARKS,
    "ray::", "ray/_private", " nan", "=nan", ":nan", "(nan", "NaN",
)))  # fmt: skip
# And one of these in each that shows an error; the lines around it are read with it.
ERRORS: tuple[str, ...] = (
    "Traceback", 'File "', "rror", "ERROR", "xception", "ailed", "FAILED", "ailure", "annot", "an't ", "ould not", "nable to",
    "unavailable", "illed", "ignal", "bort", "ault", "out of memory", "OutOfMemory", "OOM", "No space", "quota", "efused",
    "imeout", "timed out", "denied", "nvalid", "not found", "No such", "bad_alloc", "ismatch", "issing", "orrupt", "exit code",
    "exits with", "exited", "Exit", "nterrupt", "undefined symbol", "nsupported", "not support", "FATAL", "atal", "panic",
    "leaked", "xceed", "terminate called", "disconnect", "closed by", "Broken pipe", "not implemented", "deprecated", "must be",
    "does not", "expected", "oot cause", "Root Cause", "CRITICAL", "victed", "EVICTED", "HCCL", "ANCELLED", "job killed", "SIG",
    "chedul", "allocate memory", "new thread", "shared memory", "/torch_", "/dev/shm", "open files", "Pytorch", "inline_container",
    "distributed checkpoint", "checkpoint format", "from checkpoint", "DP world size", "state_dict", "state dict", "Errno",
    "incompatible_keys", "unbound", "not set", "free()", "malloc", "smashing", "received by PID", "unexpected EOF", "non-zero exit",
    "TERM_", "Process ",
)  # fmt: skip
# The same as it is found in a shape: levels of glog (E1120 22:48:50.873733582 ProcessGroupNCCL.cpp:1628]).
_ERROR_SHAPES = ("E ::.", "F ::.", "C ::.", "[E ", "[F ", "[C ")


@functools.cache
def _words() -> tuple[str, ...]:
    shown = [also or word for program in ("swift", "trainer") for word, also, _ in phases(program)]
    return tuple(dict.fromkeys((*WORDS, *shown)))


def shape_of(line: str) -> bytes:
    """
    >>> shape_of("step 12 of 500")
    b'step  of '
    """
    return line.encode("utf-8", "replace").translate(None, _DIGITS)


class LineFilter:
    """Of one stream, whose text is given in order."""

    def __init__(self) -> None:
        self._left = _FIRST  # lines that are read whatever they say

    def parts(self, text: str) -> Iterator[tuple[int, str]]:
        """The text, whose lines all end in a line feed, in order and in pieces without their last line feed: of lines that
        may say something (0 before it), and of as many as the number that say nothing to anybody."""
        masks = text.encode("utf-8", "replace").translate(None, _DIGITS).split(b"\n")
        masks.pop()  # behind the last line feed
        wanted = _wanted(set(masks))
        count, done, until = len(masks), 0, min(self._left, len(masks))
        if not until and not wanted:
            yield count, text[:-1]
            return
        lines = text.split("\n")
        for place in [number for number, mask in enumerate(masks) if mask in wanted] if wanted else ():
            if place > until:
                if until > done:
                    yield 0, "\n".join(lines[done:until])
                yield place - until, "\n".join(lines[until:place])
                done = place
            until = max(until, place + 1 + (_AFTER if wanted[masks[place]] else 0))
        self._left = max(until - count, 0)
        until = min(until, count)
        if until > done:
            yield 0, "\n".join(lines[done:until])
        if count > until:
            yield count - until, "\n".join(lines[until:count])


# Shapes of lines that are known: whether one of the words is in it, and whether it is one of an error; None for no word.
_SHAPES: dict[bytes, bool | None] = {}


def _wanted(shapes: set[bytes]) -> dict[bytes, bool]:
    """Those that somebody has a word for; whether it is a word of an error."""
    new = shapes.difference(_SHAPES)
    found = _look(new) if new else {}
    known = _SHAPES
    wanted = {shape: error for shape in shapes if (error := known.get(shape)) is not None}
    wanted.update(found)
    if new:
        if len(_SHAPES) + len(new) > _MOST_SHAPES:
            _SHAPES.clear()
        if len(new) <= _MOST_SHAPES:
            _SHAPES.update((shape, found.get(shape)) for shape in new if len(shape) <= _LONGEST_SHAPE)
    return wanted


def _look(shapes: set[bytes]) -> dict[bytes, bool]:
    text = b"\n".join(shapes) + b"\n"
    words, errors = _automata()
    found = dict.fromkeys(_lines_with(text, words), False)
    found.update(dict.fromkeys(_lines_with(text, errors), True))
    return found


def _lines_with(text: bytes, pattern: Any) -> Iterator[bytes]:
    at = 0
    while (match := pattern.search(text, at)) is not None:
        end = text.find(b"\n", match.end())
        yield text[text.rfind(b"\n", 0, match.start()) + 1 : end]
        at = end + 1


@functools.cache
def _automata() -> tuple[Any, Any]:
    """Each finds any of the words, without their digits, in text without digits: where a word is in a line, it is found in
    the line's shape."""
    import re2

    options = re2.Options()
    options.max_mem, options.log_errors = 64 << 20, False
    shapes = ([word.encode().translate(None, _DIGITS) for word in words] for words in (_words(), (*ERRORS, *_ERROR_SHAPES)))
    first, second = (re2.compile(b"|".join(map(re2.escape, some)), options) for some in shapes)
    return first, second
