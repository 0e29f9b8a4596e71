"""How each kind of evidence is judged by the one engine: by which detectors, and how often.

What the end of the evidence means, and what one captured moment can prove, its own records show (`logs_ended`,
`cut_off`, `snapshot`): one replay may take a run directory and a folder as one job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diag.detectors import make_detectors
from diag.detectors.cluster import make_job_detectors
from diag.detectors.contract import Detector
from diag.detectors.hang.one_look import OneLook
from diag.detectors.log_end import LogEndDetector
from diag.detectors.precedence import PRECEDENCE
from diag.detectors.unrecognised import UnrecognisedFailureDetector
from diag.engine.engine import CHECK_SECONDS, Engine
from diag.engine.importers.line_index import LineIndex
from diag.engine.importers.seen_alone import SeenAlone
from diag.model.observations import Parser
from diag.sources.parsers import PARSERS
from diag.text.errors import DiagError

if TYPE_CHECKING:
    from diag.detectors.rules.ruleset import RuleSet


@dataclass(frozen=True, slots=True)
class Policy:
    """`name` is in the header of each journal that is to be judged so."""

    name: str
    detectors: Callable[[RuleSet | None], Sequence[Detector]]
    check_seconds: float = CHECK_SECONDS

    def engine(self, rules: RuleSet | None = None, parsers: Mapping[str, Parser] = PARSERS) -> Engine:
        """A fresh one. `rules` in place of those that come with diag."""
        lines = LineIndex()
        seen_alone = SeenAlone(lines)
        return Engine(
            parsers,
            [*self.detectors(rules), lines, seen_alone],
            PRECEDENCE,
            check_seconds=self.check_seconds,
            place_of=lines.find,
            weigh=seen_alone.weigh,
        )


RUN = Policy("run", make_detectors)
JOB = Policy("job", lambda rules: make_job_detectors())  # the job hub's: digests of all nodes
# A log of weeks is not judged at each second of them.
LOG = Policy(
    "log",
    lambda rules: [*make_detectors(rules), LogEndDetector(), UnrecognisedFailureDetector(), OneLook()],
    10.0,
)


def policy_named(name: str) -> Policy:
    """Raises DiagError for one that this diag does not have."""
    for policy in (RUN, JOB, LOG):
        if policy.name == name:
            return policy
    raise DiagError(
        f"the journal is to be judged as {name[:40]!r}, which this diag does not know",
        hint="replay it with the diag version that wrote it (see run.json)",
    )
