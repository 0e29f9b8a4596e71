"""Why a loop goes on, by its text and the values that were read: what would change its condition is not come to, or other
ranks have come through the same loop."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from diag.detectors.hang.conditions import COUNT, compares_exactly, outcome, sides
from diag.detectors.hang.partings import ahead_of, ways_out
from diag.detectors.hang.verdict import Verdict, format_who
from diag.model.observations import Block, ProgramPlace
from diag.state.program import Steady
from diag.state.rank_view import RankView
from diag.state.view import JobView
from diag.text.units import format_seconds

_READINGS = 3  # ours: a loop that gets on changes something of what it ends by
_LONGEST = 200
# One item of a container, by random, numpy.random or an index that is drawn.
_DRAWN = re.compile(
    r"\.?\b(?:choice|sample|choices)\((?P<of>[A-Za-z_][\w.]*)|^(?P<at>[A-Za-z_][\w.]*)\[.*\b(?:randrange|randint|integers|random)\("
)
FITS = (
    "What the loop draws from has nothing that fits, so it draws for ever: choose among what fits, and raise an error where there "
    "is nothing, with the limit and what there was. See why this rank alone has nothing that does."
)
PASSED = (
    "The loop shown ends only where the two that it compares are equal, and what it counts moves away from that: compare with `<` "
    "or `>`, and see with which value it began."
)
_STEP = re.compile(r"[\w.]+ [+-]= \d+(?:\.\d+)?")
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


def passes_its_end(loop: Block, values: Mapping[str, str], before: Mapping[str, str]) -> str:
    """Of a loop until two numbers are equal, one of which changes by a fixed number at a time: "`left` went from -40 to -9071
    between two readings, away from the 0 at which the loop ends"."""
    if not compares_exactly(loop.text) or not loop.deciding or not all(map(_STEP.fullmatch, loop.deciding)):
        return ""
    now, then = (sides(loop.text, of) for of in (values, before))
    if now is None or then is None:
        return ""
    (left, right), (left_before, right_before) = now, then
    gap, gap_before = left - right, left_before - right_before
    moved = list(dict.fromkeys(one.split(" ")[0] for one in loop.deciding))
    if gap * gap_before <= 0 or abs(gap) <= abs(gap_before) or len(moved) != 1 or moved[0] not in values:
        return ""
    end = right if left != left_before else left
    return f"`{moved[0]}` went from {before[moved[0]]} to {values[moved[0]]}, away from the {end:g} at which the loop ends"


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


def nothing_fits(place: ProgramPlace | None, values: Mapping[str, str]) -> str:
    """Of a loop that draws until something fits: "each of self.sizes ([96, 128]) meets `if size > limit:`, which sends it round
    again": then no round ends it."""
    loop = next((one for one in place.inside if one.kind == "while"), None) if place is not None else None
    if place is None or loop is None:
        return ""
    heads = [
        leave.under.text for leave in place.leaves if leave.word == "continue" and leave.loop == loop.line
    ]
    for head in (loop.text, *heads):
        for one in place.names:
            drawn = _DRAWN.search(one.text) if one.kind == "value" else None
            if drawn is None or not re.search(rf"\b{re.escape(one.name)}\b", head):
                continue
            of = drawn["of"] or drawn["at"]
            items = _items(values.get(of, ""))
            found = [outcome(head, {**values, one.name: repr(item)}) for item in items]
            if found and all(each is not None and each.holds for each in found):
                how = "keeps it going" if head == loop.text else "sends it round again"
                return f"each of {of} ({values[of]}) meets `{head}`, which {how}"
    return ""


def _items(text: str) -> Sequence[object]:
    """Of a container that was read whole."""
    if "..." in text or len(text) > _LONGEST:
        return ()
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return ()
    return [*value] if isinstance(value, list | tuple | set | dict) else ()


def gets_nowhere(verdict: Verdict) -> Verdict:
    """Of a loop that goes round, and of which `why_unchanged` knows why."""
    if verdict.reason is not None:
        verdict = replace(verdict, reason=replace(verdict.reason, kind="loop_changes_nothing"))
    return replace(verdict, cause="loop_changes_nothing") if verdict.cause == "loops" else verdict


def with_condition_met_before(
    verdict: Verdict, rank: RankView, place: ProgramPlace | None, job: JobView
) -> Verdict:
    """Of a rank that looks again and again, in a loop that others have come past in the same round: for them its condition
    was met, be it at the first look. A loop with another way out, and one that only some ranks come to, shows nothing."""
    loop = loop_named(place, verdict)
    if not verdict.is_of("polls") or place is None or loop is None or ways_out(place, loop, job.run.cwd):
        return verdict
    if (ahead := ahead_of(rank, verdict.waiting, job, came_by=True)) is None:
        return verdict
    words = f"{format_who(ahead.ranks, '[has|have]')} come past this loop in that round ({ahead.text})"
    if compares_exactly(loop.text):
        words += ": for them what it compares was equal"
    return replace(verdict, cause="condition_was_met", reason=None, words=f"{verdict.words}, and {words}")
