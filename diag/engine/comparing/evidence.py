"""What one run shows for a comparison: its facts, the forms of its log's lines, the loss at each step. From its journal or
other evidence on disk; of a run whose journal was removed only the facts that were kept."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diag.detectors.relations import Precedence
from diag.engine.comparing.facts import facts
from diag.engine.engine import Engine
from diag.engine.replay import Evidence
from diag.model import Finding
from diag.model.observations import (
    Iteration,
    LogLine,
    LossPrinted,
    MetricsLogged,
    Observation,
    PlainLines,
    QuietLine,
)
from diag.model.observations.base import Event
from diag.sources.parsers import PARSERS
from diag.state.line_template import BETWEEN, CLOCK
from diag.state.log import lines_of
from diag.state.view import JobView
from diag.text.progress_line import Progress

# Names in a log, the usual first: Megatron's, transformers'.
_LOSSES = ("lm loss", "loss")
_NORMS = ("grad norm", "grad_norm")
_MOST_CHARS = 400
_MOST_FORMS = 5000
_MOST_STEPS = 200_000
# Whatever holds a digit is another one each time: a number, an address, the name of a temporary file.
_VARIES = re.compile(r"[\w.+-]*\d[\w.+:-]*")
_PATH = re.compile(r"(?<![\w/])/[\w./~-]+")
_WORDS = re.compile(r"[^\W\d_]{2,}")
_LEAST_WORDS = 2


@dataclass(slots=True)
class RunEvidence:
    """`forms`: the form of a line -> the first line of it; `losses` and `norms` by step. None: no journal."""

    facts: dict[str, Any]
    argv: tuple[str, ...] = ()
    forms: dict[str, str] | None = None
    losses: dict[int, float] | None = None
    norms: dict[int, float] | None = None
    notes: list[str] = field(default_factory=list)


def read_evidence(path: Path, progress: Progress | None = None) -> RunEvidence:
    """Of what `diag replay` takes. Raises DiagError."""
    evidence = Evidence([path], progress)
    heard = _Listener()
    engine = Engine(PARSERS, [heard], Precedence())
    for record in evidence:
        engine.feed(record)
    return RunEvidence(
        facts(engine), engine.job.run.argv, heard.forms, heard.losses, heard.norms, evidence.notes
    )


def form(text: str) -> str:
    """A line without what differs from run to run; empty for one that has no words.

    >>> form("2026-11-21 10:00:00 [rank0] saved /data/run-7/ckpt_120 in 12.5 s") == form("[rank3] saved /data/run-8/ckpt_9 in 3 s")
    True
    >>> form("{'loss': 0.53, 'epoch': 1.0}"), form("12/500")
    ('loss epoch', '')
    """
    text = _VARIES.sub(" ", _PATH.sub(" ", CLOCK.sub(" ", text)))
    words = BETWEEN.sub(" ", text).strip()[:_MOST_CHARS]
    return words if len(_WORDS.findall(words)) >= _LEAST_WORDS else ""


class _Listener:
    """Keeps what the job's own lines say; reports nothing."""

    name = "comparison"
    listens: tuple[type[Observation | Event], ...] = (
        LogLine,
        QuietLine,
        PlainLines,
        Iteration,
        MetricsLogged,
        LossPrinted,
    )

    def __init__(self) -> None:
        self.forms: dict[str, str] = {}
        self.losses: dict[int, float] = {}
        self.norms: dict[int, float] = {}
        self._step = 0

    def observe(self, at: float, fact: Observation) -> None:
        if isinstance(fact, LogLine):
            if not fact.bar:
                self._form(fact.text)
        elif isinstance(fact, PlainLines):
            for line in lines_of(fact):
                self._form(line.text)
        elif isinstance(fact, Iteration):
            self._step = fact.iteration
            self._numbers(dict(fact.metrics))
        elif isinstance(fact, MetricsLogged):
            self._numbers(dict(fact.metrics))
        elif isinstance(fact, LossPrinted) and fact.step is not None:
            self._step = fact.step
            self._numbers({"loss": fact.loss})

    def _form(self, text: str) -> None:
        if len(self.forms) < _MOST_FORMS and (found := form(text)):
            self.forms.setdefault(found, text.rstrip())

    def _numbers(self, metrics: dict[str, float]) -> None:
        """Of the step that was told last."""
        for names, kept in ((_LOSSES, self.losses), (_NORMS, self.norms)):
            value = next((metrics[name] for name in names if name in metrics), None)
            if value is not None and len(kept) < _MOST_STEPS:
                kept.setdefault(self._step, value)

    def check(self, now: float, job: JobView) -> Iterable[Finding]:
        return ()

    def not_checked(self, job: JobView) -> Iterable[Any]:
        return ()
