"""A rank's death beside the findings that explain it: told in short there, with their cause and what to do
about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from diag.model import Evidence, Finding, Severity

# A failure is told up to so long before a rank ends of it (a core dump of a GPU's memory, peers that are
# waited for) and so shortly after (who knows more than a line speaks last). Ours.
_BEFORE_SECONDS, _AFTER_SECONDS = 120.0, 15.0
_BY_ITSELF = ("exit_", "launcher_", "signal_")
_OTHERS_WORD = ("signal_9", "signal_15")  # somebody ended it; no failure of its own does that


def explained(death: Finding, rules: Sequence[Finding], others: Sequence[Finding]) -> Finding:
    """The death as it reads beside these. One of `rules` for its last words gives its cause; one of `others`
    is referred to."""
    if not death.cause.startswith(_BY_ITSELF) or death.cause in _OTHERS_WORD:
        return death
    if rules and not death.cause.startswith("signal_"):
        own = rules[0]
        evidence = Evidence("rule", f"{own.rule}: {own.summary}", own.since)
        return replace(
            death, cause=own.cause or death.cause, advice=own.advice, evidence=(*death.evidence, evidence)
        )
    root = next((one for one in others if _explains(one, death)), None)
    if root is None:
        return death
    if not root.rule:
        head, _, said = death.summary.partition("; ")
        summary = death.summary if ': "' in said else f"{head}; the {root.id} finding says why"
        advice = f"The {root.id} finding says why {death.subject} failed and what to change. The other ranks' errors follow."
        return replace(death, summary=summary, advice=advice)
    advice = f"See {root.id} above; other ranks' errors follow from it."
    return replace(
        death, summary=death.summary.partition("; ")[0], advice=advice, evidence=death.evidence[:1]
    )


def _explains(finding: Finding, death: Finding) -> bool:
    if finding.severity is not Severity.CRITICAL:
        return False
    if finding.rule:
        return not death.cause.startswith("signal_") or bool(set(finding.ranks) & set(death.ranks))
    near = -_BEFORE_SECONDS <= finding.since - death.since <= _AFTER_SECONDS
    return finding.final and near and bool(set(finding.ranks) & set(death.ranks))
