"""Why a loop goes on, by its text and the values that were read: what would change its condition is not come to, or other
ranks have come through the same loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from diag.detectors.hang.conditions import COUNT, compares_exactly, outcome
from diag.detectors.hang.partings import ahead_of, ways_out
from diag.detectors.hang.verdict import Verdict, format_who
from diag.model.observations import Block, ProgramPlace
from diag.state.program import Steady
from diag.state.rank_view import RankView
from diag.state.view import JobView
from diag.text.units import format_seconds

_READINGS = 3  # ours: a loop that gets on changes something of what it ends by
_FEW = 100  # items that a loop of work may well add


def loop_named(place: ProgramPlace | None, verdict: Verdict) -> Block | None:
    """The loop around this line of which the verdict speaks."""
    around = place.inside if place is not None else ()
    return next(
        (one for one in around if one.kind == "while" and f"the loop `{one.text}`" in verdict.words), None
    )


def growing(values: Mapping[str, str], before: Mapping[str, str]) -> str:
    """ "`out` has grown from 158654 to 1285458 items": what a loop without an end leaves behind."""
    for name, text in values.items():
        now, then = (COUNT.search(one) for one in (text, before.get(name, "")))
        if now and then and int(now["count"]) > 1.1 * int(then["count"]) + _FEW:
            return f"`{name}` has grown from {then['count']} to {now['count']} items"
    return ""


def stays_as_it_is(names: Sequence[str], steady: Steady) -> str:
    """Of a loop that goes round: `names` is all that its condition reads."""
    if not names or steady.readings < _READINGS or not {*names} <= {*steady.values}:
        return ""
    over = f"in {steady.readings} readings over {format_seconds(steady.at - steady.since)}"
    return f"nothing that its condition reads has changed {over}"


def why_unchanged(place: ProgramPlace | None, values: Mapping[str, str], verdict: Verdict) -> str:
    """ "`used += n` is only under `if used + n <= 1024:`, which was not met when read (0 + 1300 <= 1024)"."""
    loop = loop_named(place, verdict)
    if loop is None or not loop.deciding:
        return ""
    change = f"`{loop.deciding[0]}`"
    for head in loop.met:
        if (found := outcome(head, values)) is not None and not found.holds:
            return f"{change} is only under `{head}`, which was not met when read ({found.text})"
    for head in loop.unmet:
        if (found := outcome(head, values)) is not None and found.holds:
            return (
                f"{change} is not come to where `{head}` sends it round, as it did when read ({found.text})"
            )
    return ""


def gets_nowhere(verdict: Verdict) -> Verdict:
    """Of a loop that goes round, and of which `why_unchanged` knows why."""
    if verdict.reason is not None:
        verdict = replace(verdict, reason=replace(verdict.reason, kind="loop_changes_nothing"))
    return replace(verdict, cause="loop_changes_nothing") if verdict.cause == "loops" else verdict


def with_condition_met_before(
    verdict: Verdict, rank: RankView, place: ProgramPlace | None, job: JobView
) -> Verdict:
    """Of a rank that looks again and again, in a loop that others have come through in the same round: for them its condition
    was met. A loop with another way out, and one that only some ranks come to, shows nothing."""
    loop = loop_named(place, verdict)
    if not verdict.is_of("polls") or place is None or loop is None or ways_out(place, loop, job.run.cwd):
        return verdict
    if (ahead := ahead_of(rank, verdict.waiting, job)) is None:
        return verdict
    words = f"{format_who(ahead.ranks, '[has|have]')} come through this loop in that round ({ahead.text})"
    if compares_exactly(loop.text):
        words += ": for them what it compares was equal"
    return replace(verdict, cause="condition_was_met", reason=None, words=f"{verdict.words}, and {words}")
