"""Whether diag may act on a finding: gates that all have to be open, each a pure function of what is known.

Each answers why it is closed, in words that follow "does not act: "; empty where it is open. What is not known closes a
gate. `decide` asks all of them; nothing else decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from diag.detectors.retry import acts
from diag.launch.actions import Rule
from diag.model import Confidence, Finding, Severity
from diag.model.observations import PastAttempt
from diag.text.units import format_ranks, format_seconds

# Phases in which a job stands still by intent, and their words.
QUIET_PHASES = {"ckpt_save": "saves", "eval": "evaluates", "compile": "compiles", "ended": "has ended"}
_AWAY_SECONDS = 10.0  # between two looks: who was away does not know what was in between


@dataclass(frozen=True, slots=True)
class Case:
    """All that the gates know. `stood_since`: since when it is told as it is now, None where it is not. `phase` is the
    job's now, `saving` whether a save is under way in it. `runs`: CMD runs, and nobody has asked it to end.
    `earlier` are the attempts that diag ended, `done` the rules that were followed in this one. `evidence`: the bundle on
    disk. `fence`: why no order can be given among several nodes; empty where it can, or there is one. `several`: there are
    other nodes, which a command that is run and a message are of too."""

    rule: Rule
    finding: Finding
    now: float
    after: float
    stood_since: float | None
    phase: str
    saving: bool
    runs: bool
    step: int | None
    earlier: tuple[PastAttempt, ...] = ()
    done: frozenset[Rule] = frozenset()
    evidence: str = ""
    fence: str = ""
    several: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """`closed` are the gates that are, each with its reason; `acts` where none is."""

    case: Case
    closed: tuple[tuple[str, str], ...]

    @property
    def acts(self) -> bool:
        return not self.closed

    def only(self, *gates: str) -> bool:
        """Whether all gates but these are open, and one of these is not."""
        return bool(self.closed) and {name for name, _ in self.closed} <= set(gates)

    @property
    def text(self) -> str:
        if self.acts:
            return f"acts: it has stood for {_stood(self.case)}"
        return "does not act: " + "; ".join(why for _, why in self.closed)


def matches(rule: Rule, finding: Finding) -> bool:
    """Whether the rule is about this finding."""
    return rule.finding == finding.id and rule.klass in ("", finding.klass)


def _class(case: Case) -> str:
    allowed = acts(case.finding.id, case.finding.klass)
    name = f"{case.finding.id} ({case.finding.klass})" if case.finding.klass else case.finding.id
    if not allowed:
        return f"{name} is none of the classes for which it may"
    if case.rule.ends_the_job and case.rule.kind not in allowed:
        return f"{case.rule.kind} is not done for {name}"
    return ""


def _confidence(case: Case) -> str:
    if case.finding.confidence is not Confidence.HIGH:
        return f"the confidence is {case.finding.confidence.value}, not high"
    return "" if case.finding.severity is Severity.CRITICAL else "it is not critical"


def _named(case: Case) -> str:
    """Of what nobody is named for, a second time could not be told from the first."""
    return "" if case.finding.ranks or case.finding.klass == "teardown" else "no rank is named"


def _stands(case: Case) -> str:
    if case.stood_since is None:
        return "it does not stand now"
    if case.now - case.stood_since < case.after:
        return f"it has stood for {_stood(case)}, of {format_seconds(case.after)}"
    return ""


def _quiet(case: Case) -> str:
    if case.phase in QUIET_PHASES:
        return f"the job {QUIET_PHASES[case.phase]}"
    return "a save is under way" if case.saving else ""


def _runs(case: Case) -> str:
    return "" if case.runs else "the job has ended, or was asked to"


def _count(case: Case) -> str:
    if case.rule in case.done:
        return f"{case.rule.kind} was done in this attempt"
    if case.rule.kind != "restart":
        return ""
    times, most = len(case.earlier), case.rule.number or 0
    return f"it was started again {times} of {most} times" if times >= most else ""


def _again(case: Case) -> str:
    """The same culprit and class, and no step further than then: it would go on so for ever."""
    if case.rule.kind != "restart":
        return ""
    for one in case.earlier:
        same = (one.finding, one.klass) == (case.finding.id, case.finding.klass)
        who = not one.culprits or not case.finding.ranks or set(one.culprits) & set(case.finding.ranks)
        further = case.step is not None and (one.step is None or case.step > one.step)
        if same and who and not further:
            at = "" if one.step is None else f" at step {one.step}"
            named = f" of {format_ranks(one.culprits)}" if one.culprits else ""
            return f"attempt {one.number} was ended for the same{named}{at}, and no step was made since"
    return ""


def _retryable(case: Case) -> str:
    if case.rule.kind != "restart":
        return ""
    reasons = {"no": "it would come again", "elsewhere": "it is in this node: another one is needed"}
    return reasons.get(case.finding.retryable, "")


def _alone(case: Case) -> str:
    return case.fence if case.rule.ends_the_job or case.several else ""


def _evidence(case: Case) -> str:
    return "" if case.evidence else "its evidence is not on disk"


# In the order in which their reasons are given.
GATES: tuple[tuple[str, Callable[[Case], str]], ...] = (
    ("class", _class),
    ("confidence", _confidence),
    ("named", _named),
    ("runs", _runs),
    ("quiet", _quiet),
    ("retryable", _retryable),
    ("again", _again),
    ("count", _count),
    ("alone", _alone),
    ("stands", _stands),
    ("evidence", _evidence),
)


def decide(case: Case) -> Decision:
    """Asks every gate. Never raises: a gate that fails is closed."""
    closed = []
    for name, gate in GATES:
        try:
            why = gate(case)
        except Exception as error:
            why = f"{name} cannot be told ({type(error).__name__})"
        if why:
            closed.append((name, why))
    return Decision(case, tuple(closed))


def _stood(case: Case) -> str:
    return format_seconds(max(0.0, case.now - (case.stood_since or case.now)))


_Told = tuple[str, str, str, tuple[int, ...]]


@dataclass(slots=True)
class Standing:
    """Since when each finding is told as it is now: the same class, culprits and high confidence, without a break."""

    _since: dict[_Told, float] = field(default_factory=dict)
    _looked: float | None = None

    def look(self, now: float, findings: Sequence[Finding]) -> None:
        """The findings that are open now. After a time without a look, as of a machine that slept, all begins anew."""
        if self._looked is not None and not 0 <= now - self._looked <= _AWAY_SECONDS:
            self._since.clear()
        self._looked = now
        told = [_told(one) for one in findings if one.confidence is Confidence.HIGH]
        self._since = {key: self._since.get(key, now) for key in told}

    def since(self, finding: Finding) -> float | None:
        return self._since.get(_told(finding))


def _told(finding: Finding) -> _Told:
    return (finding.id, finding.subject, finding.klass, finding.ranks)
