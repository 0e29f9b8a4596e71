"""What a judgement about a hang comes to, before it is put into a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from diag.detectors.hang.catalogue import entry_of
from diag.model import Confidence, Ground, numbered
from diag.model.observations import ProgramPlace
from diag.state.rank_view import RankView
from diag.state.view import JobView
from diag.state.wait_chain import Chain
from diag.state.wait_graph import Explanation
from diag.text.units import format_ranks

_LEVELS = (Confidence.LOW, Confidence.MEDIUM, Confidence.HIGH)


@dataclass(frozen=True, slots=True)
class Note:
    """What one more kind of evidence adds to a verdict, as it is shown: `kind` is the source's name."""

    kind: str
    text: str
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something does not end, by the program's text: `kind` is the entry of the catalogue whose advice is given,
    `words` a clause that follows where the rank is, `facts` are for the places of that advice."""

    kind: str
    words: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Asked:
    """The heads, by their lines, of the conditions or loops at which ranks came apart."""

    place: ProgramPlace
    heads: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Who holds the job up. `culprits` is empty for a symmetric hang; `cause` is one of a fixed set within the
    class.

    `collectives` is what the Flight Recorder shows of it, where it agrees or decides; `notes`
    what other evidence adds. `seconds` is set for a snapshot: how long its evidence shows the silence, 0 when
    it does not tell.
    """

    klass: str
    culprits: tuple[int, ...]
    waiting: tuple[int, ...]
    cause: str
    since: float
    confidence: Confidence
    blamed_child: int | None = None  # pid of the child process that blocks the culprit
    collectives: Explanation | None = None
    notes: tuple[Note, ...] = ()
    seconds: float | None = None
    chain: Chain | None = None  # what the kernel says that the culprit, or the child to blame, waits for
    words: str = ""  # what ended in the culprit, or what it printed last, as a clause
    reason: Reason | None = None  # why what it is at does not end
    apart: str = ""  # the variable that is not the same on all ranks
    parted: bool = False  # where ranks came apart is in `words`, by the program's text
    asked: Asked | None = None  # and what decided there
    origin: str = ""  # what is to be done about where the values come from that did
    by_kernel: bool = False  # and that is the cause
    busy: bool = False  # the culprits compute, while the others wait for them
    subject: str = ""  # what the sentence begins with, where no rank runs
    ends_at: float | None = None  # when what it waits for is over by itself, where the kernel shows it
    grounds: tuple[Ground, ...] = ()  # why it will not go on by itself; none: it is only held up

    @property
    def everyone(self) -> tuple[int, ...]:
        """The culprits first."""
        return (*self.culprits, *self.waiting)

    def is_of(self, *kinds: str) -> bool:
        """Whether its cause is of one of these `catalogue.KINDS`."""
        return not entry_of(self.cause).kinds.isdisjoint(kinds)

    def noted(self, *notes: Note) -> Verdict:
        """With these besides those that it has."""
        return replace(self, notes=(*self.notes, *notes))

    def culprit(self, job: JobView) -> RankView | None:
        """The first, where it was seen."""
        return job.ranks.get(self.culprits[0]) if self.culprits else None


def others(everyone: tuple[int, ...], culprits: tuple[int, ...]) -> tuple[int, ...]:
    blamed = set(culprits)
    return tuple(rank for rank in everyone if rank not in blamed)


def blaming(
    verdict: Verdict, ranks: tuple[int, ...], klass: str, cause: str, confidence: Confidence, **more: Any
) -> Verdict:
    """These ranks hold the others up."""
    everyone = tuple(sorted({*verdict.culprits, *verdict.waiting, *ranks}))
    waiting = others(everyone, ranks)
    return replace(
        verdict, klass=klass, cause=cause, confidence=confidence, culprits=ranks, waiting=waiting, **more
    )


def undecided(verdict: Verdict) -> bool:
    """Everybody seen waits: the stacks blame no rank."""
    return not verdict.culprits and verdict.klass == "unknown"


def at_most(confidence: Confidence, most: Confidence) -> Confidence:
    return min(confidence, most, key=_LEVELS.index)


def format_who(ranks: Sequence[int], verb: str) -> str:
    """ "rank 1 waits", "ranks 0,2 wait" of "[waits|wait]"."""
    return f"{format_ranks(ranks)} {numbered(verb, len(ranks))}"


def lowered(confidence: Confidence) -> Confidence:
    return _LEVELS[max(0, _LEVELS.index(confidence) - 1)]


def raised(confidence: Confidence) -> Confidence:
    return _LEVELS[min(len(_LEVELS) - 1, _LEVELS.index(confidence) + 1)]
