"""A counter of a store that a loop compares exactly, under a key that is the same in each round: it has been counted up in the
rounds before, and goes past what is waited for."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import replace

from diag.detectors.hang.conditions import compares_exactly, parsed_condition
from diag.detectors.hang.partings import head_of, path_of
from diag.detectors.hang.verdict import Verdict
from diag.model.observations import Block, Frame, ProgramPlace
from diag.state.view import JobView

_SETS_BACK = re.compile(r"\.(?:set|compare_set)\(|\.add\([^()]*, -")
ADVICE = (
    "As far as the text shows, the counter of that key is not set back between the rounds, so that it goes past the number that "
    "the loop waits for: make a key for each use (with the number of the round in it), or wait until it is at least what is due "
    "by then."
)


def with_reused_key(verdict: Verdict, job: JobView) -> Verdict:
    """Of the first culprit; where nobody is to blame, of the first rank."""
    everybody = verdict.everyone
    rank = job.ranks.get(everybody[0]) if everybody and verdict.is_of("polls") else None
    path = path_of(rank.judged) if rank is not None else []
    place = job.program.at(path[-1] if path else None)
    loop = next((one for one in place.inside if one.kind == "while"), None) if place is not None else None
    if place is None or loop is None or not compares_exactly(loop.text):
        return verdict
    key = _counted(loop)
    if key is None or _is_set_back(job) or not (how := _same_each_time(key, place, loop, path, job)):
        return verdict
    found = _round_of(place, path, loop, job)
    if found is None:
        return verdict
    outer, where = found
    words = f"{how} in each round of {head_of(outer, where.file, job.run.cwd)}: the same counter each time"
    return replace(verdict, words=", and ".join(filter(None, (verdict.words, words))), origin=ADVICE)


def _is_set_back(job: JobView) -> bool:
    """Some key of a store is, by a statement that was read."""
    sets = [one.text for one in job.program.statements("sets")]
    return bool(job.program.statements("unsets")) or any(map(_SETS_BACK.search, sets))


def _counted(loop: Block) -> ast.expr | None:
    """The key of `store.add(key, 0)` in its condition."""
    condition = parsed_condition(loop.text)
    calls = (one for one in ast.walk(condition) if isinstance(one, ast.Call)) if condition is not None else ()
    return next(
        (
            one.args[0]
            for one in calls
            if isinstance(one.func, ast.Attribute) and one.func.attr == "add" and len(one.args) == 2
            if isinstance(one.args[1], ast.Constant) and one.args[1].value == 0
        ),
        None,
    )


def _same_each_time(
    key: ast.expr, place: ProgramPlace, loop: Block, path: Sequence[Frame], job: JobView
) -> str:
    """Empty where it may be another one each time."""
    if isinstance(key, ast.Name) and (known := place.meaning(key.id)) is not None and known.kind == "value":
        key = _parsed(known.text) or key
    if isinstance(key, ast.Constant):
        return f"its key is {key.value!r}"
    names = {one.id for one in ast.walk(key) if isinstance(one, ast.Name)}
    given = {
        one.links[-1].name: one.links[-1].text
        for one in place.origins
        if one.head == loop.line and one.kind == "parameter" and one.links and not one.argument
    }
    caller = job.program.at(path[-2]) if len(path) > 1 else None
    if not names or not names <= given.keys() or caller is None:
        return ""
    function = path[-1].function.rpartition(".")[2]
    values = {name: _argument(caller.text, function, name, given[name]) for name in names}
    if any(one is None for one in values.values()):
        return ""
    return " and ".join(f"{name} is {value!r}" for name, value in sorted(values.items()))


def _argument(text: str, function: str, name: str, position: str) -> object | None:
    """The constant that a statement gives to a parameter."""
    tree = _parsed(text)
    for one in ast.walk(tree) if tree is not None else ():
        called = getattr(one.func, "attr", getattr(one.func, "id", "")) if isinstance(one, ast.Call) else ""
        if isinstance(one, ast.Call) and called == function:
            given = {f"{at}": each for at, each in enumerate(one.args)}
            given |= {each.arg: each.value for each in one.keywords if each.arg}
            value = given.get(name, given.get(position))
            return value.value if isinstance(value, ast.Constant) else None
    return None


def _parsed(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _round_of(
    place: ProgramPlace, path: Sequence[Frame], loop: Block, job: JobView
) -> tuple[Block, ProgramPlace] | None:
    """The loop that comes to it again and again: around it, or around the line that calls its function."""
    outer = next((one for one in place.around if one.is_loop and one.line < loop.line), None)
    if outer is not None:
        return outer, place
    for frame in reversed(path[:-1]):
        caller = job.program.at(frame)
        found = next((one for one in caller.around if one.is_loop), None) if caller is not None else None
        if caller is not None and found is not None:
            return found, caller
    return None
