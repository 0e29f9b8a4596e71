"""One line of the output into its facts, by the readers that have a word for it."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Iterator

from diag.knowledge import loss_line
from diag.knowledge.log_prefix import strip_outer
from diag.model.observations import Iteration, LogLine, LossPrinted, MetricsLogged, Observation, QuietLine
from diag.sources.gpu import cuda_log
from diag.sources.logs import line_forms, nccl_log, swift_log, trainer_log
from diag.sources.logs.printed import phases
from diag.text.words import ShapeWords, shape_of

# Nobody ends a bar's line before an exception comes, or another process writes (tqdm 4.66, CPython 3.11, 2026-11-23;
# tqdm without a total; Slurm 24):
#    38%|███▊      | 3/8 [00:00<00:01,  3.31it/s]Traceback (most recent call last):
#   29948it [35:34,  7.00s/it]slurmstepd: error: *** JOB 4711 ON gpu-17 CANCELLED AT 2026-11-20T22:48:19 ***
_COUNT = r"[.\d]{1,15}[kMGT]?"
_BEHIND_BAR = re.compile(
    rf"(?:%\|[^|\n]{{0,400}}\| {{0,12}}{_COUNT}/{_COUNT}|\b{_COUNT}it)(?: \[[^\]\n]{{0,300}}\])? {{0,4}}"
    r"((?<=\])[A-Za-z\[](?!.{0,400}%\|).*|(?:\[rank\d{1,6}\]: ?)?(?:Traceback \(most recent|terminate called "
    r"|Fatal Python error: |(?:\w{1,100}\.){0,12}[A-Z]\w{0,100}(?:Error|Exception|Interrupt|Exit|Iteration)\b).*)"
)


# torch 2.4-2.13 prefix each line of an uncaught exception and of the C++ log with the rank:
#   [rank1]: RuntimeError: DataLoader worker (pid 20352) is killed by signal: Killed.
#   [rank1]:[W1120 22:48:19.163027360 WorkerServer.cpp:155] [c10d] Server listening to TCP :::0
# torchrun --tee prefixes with the role and the LOCAL rank ([default1]:), which is not a rank: not taken.
_RANK_PREFIX = re.compile(r"^\[rank(\d{1,6})\]:")


def read_text(
    text: str,
    stream: str,
    rank: int | None,
    *,
    bar: bool = False,
    number: int = 0,
    line: type[LogLine] = LogLine,
) -> Iterable[Observation]:
    """All facts of one line, the line itself first, without what containers and launchers put before it."""
    outer = strip_outer(text)
    text, part = outer.text, outer.task if outer.local_rank is None else outer.local_rank
    shape = shape_of(text) if line is QuietLine else None
    may_be_behind = not bar and ("%|" in text or "it [" in text)
    may_be_behind = may_be_behind and (shape is None or _BEHIND.may_be_in(shape))
    behind = _BEHIND_BAR.search(text) if may_be_behind else None
    if behind:
        yield from read_text(text[: behind.start(1)], stream, rank, bar=True, number=number, line=line)
        text = behind[1]
        shape = None if shape is None else shape_of(text)
    if text.startswith("[rank") and (named := _RANK_PREFIX.match(text)):
        rank = int(named[1])
    if shape is None:
        yield LogLine(rank, stream, text, bar, number, part)
    else:
        yield QuietLine(rank, stream, text, bar, number, part, shape)
    yield from _of_bar(text, rank) if bar else _facts(text, rank, shape)


# What each reader has a word for, where the shape of a line is known.
_BEHIND = ShapeWords(
    *(f"]{letter}" for letter in (*string.ascii_letters, "[")),
    *("Traceback", "terminate", "Fatal", "Error", "Exception", "Interrupt", "Exit", "Iteration"),
)
_OF_SWIFT = ShapeWords(*swift_log.WORDS, *(word for word, _, _ in phases("swift")))
_OF_TRAINER = ShapeWords(*trainer_log.WORDS, *(word for word, _, _ in phases("trainer")))
_OF_FORMS = ShapeWords(*line_forms.WORDS)


def _facts(text: str, rank: int | None, shape: bytes | None) -> Iterator[Observation]:
    if "NCCL " in text and "ProcessGroupNCCL" not in text and (of_nccl := nccl_log.read_line(text, rank)):
        yield from of_nccl
        if "Cuda failure" in text:
            yield from cuda_log.read_line(text, rank)
        return
    if "libibverbs: Warning: " in text:
        missing = nccl_log.driver_missing(text, rank)
        if missing is not None:
            yield missing
            return
    known: list[Observation] = []
    if shape is None or _OF_SWIFT.may_be_in(shape):
        known += swift_log.read_line(text, rank)
    if shape is None or _OF_TRAINER.may_be_in(shape):
        known += trainer_log.read_line(text, rank)
    yield from _of_trainers(known, text, rank)
    if shape is None or _OF_FORMS.may_be_in(shape):
        yield from line_forms.read_line(text, rank)
    if cuda_log.may_tell(text):
        yield from cuda_log.read_line(text, rank)


def _of_bar(text: str, rank: int | None) -> Iterator[Observation]:
    yield from _of_trainers([*swift_log.read_bar(text, rank), *trainer_log.read_bar(text, rank)], text, rank)


def _of_trainers(known: list[Observation], text: str, rank: int | None) -> Iterator[Observation]:
    """What the readers of known trainers make of the line, and its loss where they know none."""
    yield from known
    if loss_line.may_tell(text) and not any(isinstance(fact, (Iteration, MetricsLogged)) for fact in known):
        loss = loss_line.loss_of(text)
        if loss is not None:
            yield LossPrinted(rank, *loss, text)
