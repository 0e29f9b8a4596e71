"""Which lines of the output any reader can care about: decided once for each shape of a line, a chunk at a time.

A line's shape is what is left of it without its digits. A program prints few shapes, each of them very often: whether
one of the words of any reader is in it is looked up, and only of shapes that are new it is looked for, in all of them at
once (RE2). A reader of lines (a parser, a detector that looks at `LogLine`) whose words are not in `WORDS` or `ERRORS`
never sees its line: tests/sources/test_prefilter.py.

Lines that nobody has a word for never become objects; what counts them, or keeps the last of them, is handed the run of
them in one piece.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterable, Iterator
from typing import Any

from diag.knowledge.data_samples import MARKS
from diag.sources.gpu import cuda_log
from diag.sources.logs import line_forms, swift_log, trainer_log
from diag.sources.logs.printed import phases
from diag.text.words import shape_of

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
    "raining D", "raining C", "raining F", "tuning do", "tuning is", "tuning ha", "tuning wa",
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
    "TERM_", "Process ", "ibv_", "NCCL WARN", '"ename"', '"evalue"', '"traceback"', *MARKS,
)  # fmt: skip
# Of NCCL at level INFO, which says so of what it does without, these are no errors:
#   gpu-17:812:955 [3] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin.
_NCCL_INFO = b" NCCL INFO "
_OFTEN = (
    "ould not", "ailed", "nable to", "not found", "annot", "nsupported", "not support", "unavailable", "does not", "issing",
    "not set",
)  # fmt: skip
# And forms of such, as they are in a shape: levels of glog (E1120 22:48:50.873733582 ProcessGroupNCCL.cpp:1628]), numbers of
# CANN's errors (EI0002: ...).
_ERROR_FORMS = (rb"[EFC] ::\.", rb"\[[EFC] ", rb"\bE[A-Z][\]): ]", rb"\bERR[\]): ]")


class Says(enum.IntEnum):
    """How much a line says, and to whom."""

    NOTHING = 0  # to nobody
    A_FACT = 1  # to the parsers, which make facts of it
    MUCH = 2  # to whoever looks for errors in lines, as may those below it


@functools.cache
def _words() -> tuple[str, ...]:
    shown = [also or word for program in ("swift", "trainer") for word, also, _ in phases(program)]
    return tuple(dict.fromkeys((*WORDS, *shown)))


class LineFilter:
    """Of one stream, whose text is given in order. `literals`: words of rules, beside those of readers."""

    def __init__(self, literals: tuple[str, ...] = ()) -> None:
        self._shapes = _shapes(literals)
        self._left = _FIRST  # lines that are read whatever they say

    def parts(self, text: str) -> Iterator[tuple[Says, int, str]]:
        """The text, whose lines all end in a line feed, in order and in pieces of lines that say as much, without their
        last line feed; of each piece how many lines it has."""
        masks = text.encode("utf-8", "replace").translate(None, _DIGITS).split(b"\n")
        masks.pop()  # behind the last line feed
        wanted = self._shapes.wanted(set(masks))
        count, until = len(masks), self._left
        if not until and not wanted:
            yield Says.NOTHING, count, text[:-1]
            return
        lines = text.split("\n")
        # what the lines from `done` to `until` say
        done, says = 0, Says.MUCH
        for place in [number for number, mask in enumerate(masks) if mask in wanted] if wanted else ():
            kind = wanted[masks[place]]
            if place >= until:
                if place > until or kind is not says:
                    if until > done:
                        yield says, until - done, "\n".join(lines[done:until])
                    if place > until:
                        yield Says.NOTHING, place - until, "\n".join(lines[until:place])
                    done, says = place, kind
                until = place + 1
            if kind is Says.MUCH:
                until = place + 1 + _AFTER
        self._left = until - count if says is Says.MUCH and until > count else 0
        until = min(until, count)
        if until > done:
            yield says, until - done, "\n".join(lines[done:until])
        if count > until:
            yield Says.NOTHING, count - until, "\n".join(lines[until:count])


class _Shapes:
    """Shapes of lines that are known."""

    def __init__(self, literals: tuple[str, ...]) -> None:
        self._known: dict[bytes, Says] = {}
        self._facts = _any_of(_words())
        self._much = _any_of((*ERRORS, *literals), *_ERROR_FORMS)
        errors = (word for word in ERRORS if word not in _OFTEN)
        self._much_of_nccl = _any_of((*errors, *literals), *_ERROR_FORMS)

    def wanted(self, shapes: set[bytes]) -> dict[bytes, Says]:
        """Those that say something."""
        known = self._known
        new = shapes.difference(known)
        found = self._look(new) if new else {}
        wanted: dict[bytes, Says] = {
            shape: says for shape in shapes if (says := known.get(shape, Says.NOTHING)) is not Says.NOTHING
        }
        wanted.update(found)
        if len(known) + len(new) > _MOST_SHAPES:
            known.clear()
        if len(new) <= _MOST_SHAPES:
            known.update((one, found.get(one, Says.NOTHING)) for one in new if len(one) <= _LONGEST_SHAPE)
        return wanted

    def _look(self, shapes: set[bytes]) -> dict[bytes, Says]:
        text = b"\n".join(shapes) + b"\n"
        found = dict.fromkeys(_lines_with(text, self._facts), Says.A_FACT)
        for shape in _lines_with(text, self._much):
            if _NCCL_INFO not in shape or self._much_of_nccl.search(shape) is not None:
                found[shape] = Says.MUCH
        return found


_shapes = functools.lru_cache(4)(_Shapes)


def _lines_with(text: bytes, pattern: Any) -> Iterator[bytes]:
    at = 0
    while (match := pattern.search(text, at)) is not None:
        end = text.find(b"\n", match.end())
        yield text[text.rfind(b"\n", 0, match.start()) + 1 : end]
        at = end + 1


def _any_of(words: Iterable[str], *forms: bytes) -> Any:
    """It finds any of the words, without their digits, in text without digits: where a word is in a line, it is found in
    the line's shape."""
    import re2

    options = re2.Options()
    options.max_mem, options.log_errors = 64 << 20, False
    bare = [shape_of(word) for word in words]
    # of a word that is little more than digits nothing is left to look for: any character then
    return re2.compile(b"|".join([*forms, *(re2.escape(word) or b"." for word in bare)]), options)
