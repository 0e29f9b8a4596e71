"""What a judgement about a hang comes to, before it is put into words."""

from __future__ import annotations

from dataclasses import dataclass

from diag.model import Confidence
from diag.waitgraph import Explanation

__all__ = ["Verdict"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Who holds the job up. `culprits` is empty for a symmetric hang; `cause` is a closed word within the class.

    `collectives` is what the Flight Recorder says to it, when it was asked and agrees or decides.
    """

    klass: str
    culprits: tuple[int, ...]
    waiting: tuple[int, ...]
    cause: str
    since: float
    confidence: Confidence
    blamed_child: int | None = None  # pid of the child process that blocks the culprit
    collectives: Explanation | None = None
