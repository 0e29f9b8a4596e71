"""Which lines of a large log any reader can care about: one look over whole text for the words of all of
them.

`str.find` of a hundred words costs less than one regex a line. A reader of lines (a parser, a detector that
looks at `LogLine`, a rule) whose words are not in `WORDS` or `ERRORS` never sees its line in a log on disk:
tests/sources/test_prefilter.py.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

from diag.sources.gpu import cuda_log
from diag.sources.logs import line_forms, swift_log, trainer_log
from diag.sources.logs.printed import phases

# Lines around a word of an error that are read too: the frames above an exception (detectors look at 8), its
# message below.
_BEFORE, _AFTER = 10, 10

# One of these is in each line that shows a phase, a step, a save, a number, a rank or a device.
WORDS: tuple[str, ...] = tuple(dict.fromkeys((
    *swift_log.WORDS, *trainer_log.WORDS, *line_forms.WORDS, *cuda_log.WORDS,
    "\r", "[rank", "NCCL ", "NCCL_", "libibverbs", "ibv_", "mlock", "world_size", "\"run_st",
    "srun:", "mpirun", "prterun", "Xid", "elastic", "torch.distributed.run", "distributed/run.py", "launcher", "launch.py",
    "raining co", "raining fi", "raining do", "raining is", "raining has", "raining was", "Training C", "Training F",
    "TRAINING C", "TRAINING F", "TRAINING D", "inished tr", "inish tr", "inished Tr", "inished pre", "ompleted tr",
    "tuning co", "tuning fi",
    "inal model saved", "inal weights saved", "inal checkpoint saved", "训练完成", "训练结束", "训练已",
    "ray::", "ray/_private", " nan", "=nan", ":nan", "(nan", "NaN",
)))  # fmt: skip
# And one of these in each that shows an error; the lines around it are read with it.
ERRORS: tuple[str, ...] = (
    "Traceback", 'File "', "rror", "ERROR", "xception", "ailed", "FAILED", "ailure", "annot", "an't ", "ould not", "nable to",
    "unavailable", "illed", "ignal", "bort", "ault", "out of memory", "OutOfMemory", "OOM", "No space", "quota", "efused",
    "imeout", "timed out", "denied", "nvalid", "not found", "No such", "bad_alloc", "ismatch", "issing", "orrupt", "exit code",
    "exits with", "exited", "Exit", "nterrupt", "undefined symbol", "nsupported", "not support", "FATAL", "atal", "panic",
    "leaked", "xceed", "terminate called", "disconnect", "closed by", "Broken pipe", "not implemented", "deprecated", "must be",
    "does not", "expected", "oot cause", "Root Cause",
)  # fmt: skip


@functools.cache
def _words() -> tuple[str, ...]:
    shown = [also or word for program in ("swift", "trainer") for word, also, _ in phases(program)]
    return tuple(dict.fromkeys((*WORDS, *shown)))


def plain_lines(
    text: str, words: Iterable[str] | None = None, errors: Iterable[str] = ERRORS
) -> Iterator[tuple[int, int]]:
    """Where runs of lines without any of the words begin and end in `text`, whose lines all end in a line
    feed.

    The first and last lines are in none: what is around them is in another piece of the log.
    """
    found = _hits(text, _words() if words is None else words)
    found += [
        (_backward(text, begin, _BEFORE), _forward(text, end, _AFTER)) for begin, end in _hits(text, errors)
    ]
    found.append((0, _forward(text, 0, _AFTER)))
    found.append((_backward(text, len(text), _BEFORE), len(text)))
    found.sort()
    at = 0
    for begin, end in found:
        if begin > at:
            yield at, begin
        at = max(at, end)


def _hits(text: str, words: Iterable[str]) -> list[tuple[int, int]]:
    """The lines, from their begin to behind their line feed, that hold one of the words."""
    lines: list[tuple[int, int]] = []
    find, rfind = text.find, text.rfind
    for word in words:
        hit = find(word)
        while hit >= 0:
            end = find("\n", hit) + 1
            lines.append((rfind("\n", 0, hit) + 1, end))
            hit = find(word, end)
    return lines


def _forward(text: str, at: int, lines: int) -> int:
    for _ in range(lines):
        at = text.find("\n", at) + 1 or len(text)
    return at


def _backward(text: str, at: int, lines: int) -> int:
    """`at` is the begin of a line, or the end of the text."""
    for _ in range(lines):
        if at <= 0:
            return 0
        at = text.rfind("\n", 0, at - 1) + 1
    return at
