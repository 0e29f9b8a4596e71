"""Which finding follows from which, which is withheld or reported once: the engine reads it here and knows
none of them.

What a rule's finding yields to is in the rule itself (`follows`), and it always yields to a detector's
finding of the same id.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from diag.detectors.findings import row, with_words
from diag.detectors.relations import (
    Becomes,
    Kind,
    OneAtATime,
    Precedence,
    ReadAfter,
    Retold,
    StandsStill,
    WhereUnnamed,
    WholeJob,
)
from diag.knowledge.tracebacks import ASKED_TO_END
from diag.model import Confidence, Evidence, Finding, Severity

# A failure is reported up to so long before a rank ends of it (a core dump of a GPU's memory, peers that are
# waited for) and so shortly after (checks that know more than a line report last). Ours.
_BEFORE_SECONDS, _AFTER_SECONDS = 120.0, 15.0
_BY_ITSELF = ("exit_", "launcher_", "signal_")
# A launcher's word for an end, or for ending what is left (Slurm 17-24, Open MPI 4-5, PRRTE):
#   srun: error: gpu-17: tasks 1,3: Exited with exit code 1        slurmstepd: error: *** STEP 1234.0 ON gpu-17 CANCELLED AT ...
_ONLY_ENDED = re.compile(
    r"\btasks? [\d,-]{1,200}: |CANCELLED AT|\bnoticed that|it was told to end|Terminating job step|Job step aborted"
)
_FROM_OUTSIDE = ("signal_9", "signal_15")  # no failure of its own ends a process so


def explained(death: Finding, rules: Sequence[Finding], others: Sequence[Finding]) -> Finding:
    """The death as it reads beside these. One of `rules` for its last lines gives its cause; one of `others` is
    referred to."""
    if not death.cause.startswith(_BY_ITSELF) or death.cause in _FROM_OUTSIDE:
        return death
    own = rules[0] if rules else None
    if own is not None and own.cause == "time_limit" and _left_by_itself(death):
        return death
    if own is not None and not death.cause.startswith("signal_"):
        evidence = Evidence("rule", f"{own.rule}: {own.summary}", own.since)
        return replace(
            death, cause=own.cause or death.cause, advice=own.advice, evidence=(*death.evidence, evidence)
        )
    root = next((one for one in others if _explains(one, death)), None)
    if root is None:
        return death
    if not root.rule:
        head, _, last = death.summary.partition("; ")
        summary = death.summary if ': "' in last else f"{head}; see finding {root.id} for the reason"
        words = {"finding": root.id, "subject": death.subject}
        return replace(death, summary=summary, advice=with_words(row(death.id)["explained"], words))
    summary = death.summary.partition("; ")[0]
    return replace(death, summary=summary, advice=f"See {root.id} above.", evidence=death.evidence[:1])


def _left_by_itself(death: Finding) -> bool:
    """Its last words are known, it was not told to end, and no signal ended it: its peers waited until the limit."""
    words = death.summary.partition(" holds no exception, and ends: ")[2]
    return bool(words) and ASKED_TO_END.search(words) is None


def _explains(finding: Finding, death: Finding) -> bool:
    if finding.severity is not Severity.CRITICAL:
        return False
    if finding.rule:
        return not death.cause.startswith("signal_") or bool(set(finding.ranks) & set(death.ranks))
    near = -_BEFORE_SECONDS <= finding.since - death.since <= _AFTER_SECONDS
    of_it = bool(set(finding.ranks) & set(death.ranks))
    unnamed = finding.id == "unrecognised-failure" and not finding.ranks and _says_more(finding, death)
    return finding.final and near and (of_it or unnamed)


def _names_the_failure(other: Finding, unrecognised: Finding) -> bool:
    """How a process ended shows less than an exception below its traceback, and more than any other line. What the
    program went on from is reported where nothing else is."""
    if not unrecognised.severity.counts:
        return other.severity.counts or other.seen_alone
    if other.id in ("hang", "held-up"):
        return False
    if other.id == "rank-died" and not other.rule:
        printed = any(words in other.summary for words in (' printed: "', ' shows: "')) or other.cause in (
            "launcher_failed",
            "launcher_signalled",
        )
        return printed or not _says_more(unrecognised, other)
    if other.consequence and unrecognised.klass == "python" and not _of_one_line(other, unrecognised):
        return False  # the rule only knows what was raised from it
    return other.final or other.seen_alone


def _of_one_line(other: Finding, unrecognised: Finding) -> bool:
    """Whether both are about the same exception."""
    raised = next(iter(re.findall(r'"([^"\n]{1,200})', unrecognised.summary)), "")[:80]
    return any(raised in evidence.excerpt for evidence in other.evidence)


def _says_more(unrecognised: Finding, death: Finding) -> bool:
    """Of a process that itself printed nothing, the line of who started it or of what it ran on, where that is more than
    that it ended."""
    if unrecognised.klass == "python":
        return unrecognised.confidence is not Confidence.LOW
    silent = "output holds no exception" in death.summary and death.cause not in _FROM_OUTSIDE
    return (
        silent
        and unrecognised.klass in ("scheduler", "accelerator")
        and _ONLY_ENDED.search(unrecognised.summary) is None
    )


_DIED = Kind("rank-died")
_PEER_LOST = Kind("hang", "peer_lost")
_TORN = Kind("checkpoint-corrupt", "left_behind")

PRECEDENCE = Precedence(
    (
        ReadAfter(_DIED, None, "a rank dies of what else was found: of memory, a GPU, a full disk"),
        ReadAfter(Kind("held-up"), None, "ranks wait for one whose trouble was found"),
        ReadAfter(Kind("hang", "gpu_side"), None, "ranks wait for the GPU whose fault was found"),
        ReadAfter(_PEER_LOST, _DIED, "ranks wait for the one that died"),
        ReadAfter(Kind("hang", "peer_not_joined"), _DIED, "ranks wait for one that died before it joined"),
        ReadAfter(Kind("hang", "unknown"), _DIED, "ranks wait for one that died, of which no more is known"),
        ReadAfter(
            Kind("hang", "rendezvous"), Kind("rendezvous-failure"), "ranks wait where they can never meet"
        ),
        ReadAfter(_TORN, _PEER_LOST, "what the lost rank was writing is left as it is"),
        ReadAfter(
            Kind("checkpoint-missing", "left_behind"), _TORN, "a torn checkpoint is none to resume from"
        ),
        OneAtATime("rank-died", "the others die of the first, and may have been heard of before it"),
        Becomes(("held-up", "hang"), "who holds the job up may turn out to do so for good"),
        WholeJob("held-up", "ranks of one node wait for a culprit on another"),
        WholeJob("hang", "ranks of one node wait for a culprit on another"),
        WholeJob("rank-died", "the first death may have been on another node"),
        WholeJob("straggler", "slow is slower than the ranks of all nodes"),
        WholeJob("transport-mismatch", "the other transport may be on another node"),
        StandsStill("held-up", "ranks wait for each other"),
        StandsStill("hang", "ranks wait for each other"),
        WhereUnnamed(
            "unrecognised-failure", _names_the_failure, "any finding that names the failure says more"
        ),
        Retold(
            "rank-died",
            explained,
            ("hang", "held-up"),
            "a rank that died of what another finding describes is reported in short; those who hang wait for it",
        ),
    )
)
