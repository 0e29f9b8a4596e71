"""How many rounds the loops have in which ranks exchange something, by their heads and the variables there: ranks with more
batches, steps or micro-batches than their peers wait for one that never comes."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from diag.detectors.hang.partings import OF_RANK, counter_of, head_of, path_of
from diag.detectors.hang.pipeline import same_branch
from diag.detectors.hang.verdict import Verdict, format_who, others
from diag.model import Confidence, numbered
from diag.model.observations import Block, Frame, ProgramPlace
from diag.state.rank_view import RankView
from diag.state.view import JobView
from diag.text.units import format_path, format_ranks

# Causes of ranks of which none is only behind.
_LEVEL = (
    "messages_do_not_match", "calls_differ", "call_skipped", "call_unanswered", "left_the_loop", "round_left_out", "call_of_some_ranks",
    "groups_in_opposite_order", "left_before_the_others", "ways_differ", "all_ranks_wait",
)  # fmt: skip
_OUTWARDS = 3  # own frames in which a loop is looked for
_MOST_RANKS = 16
_MOST_NUMBERS = 3  # that are shown
_FOR = re.compile(r"for .+? in (?P<over>.+):$")
_NUMBER_OF = re.compile(r"(?:^<\w+ of |\.\.\. )(\d{1,15})(?: [\w.]+>|>| items[\])}])$")
_OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_LARGEST = 1 << 53
_MOST_DIGITS = 16
_FROM_ZERO = re.compile(
    r"for (?P<name>\w+)(?:,.+)? in (?:range\([^,()]+(?:\([^()]*\))?\)|enumerate\([^,]+\)):$"
)


def rounds_that_differ(verdict: Verdict, job: JobView) -> str:
    """ "`for i in range(n):` (train.py:7) has 40 rounds on rank 0 and 38 on rank 1"; empty where they do not differ, or
    that is not known."""
    ranks, loops = _loops(verdict, job)
    cwd = job.run.cwd
    for _, place, loop, counts in _unlike(ranks, loops, job):
        return f"{head_of(loop, place.file, cwd)} has {_numbers(counts)}{_made(loop, place, cwd)}"
    if verdict.cause == "messages_do_not_match":
        return _of_messages(loops, job)
    return _counters(loops, ranks, job) if verdict.cause == "left_the_loop" else ""


def loop_that_differs(verdict: Verdict, job: JobView) -> tuple[ProgramPlace, Block] | None:
    """The loop, and a place in its function."""
    ranks, loops = _loops(verdict, job)
    return next(((place, loop) for _, place, loop, _ in _unlike(ranks, loops, job)), None)


def _loops(
    verdict: Verdict, job: JobView
) -> tuple[list[RankView], list[tuple[RankView, Frame, ProgramPlace, Block]]]:
    found = verdict.collectives
    if verdict.cause not in _LEVEL or (found and found.circle and same_branch(found.circle, job)):
        return [], []
    ranks = job.ranks.known(verdict.everyone[:_MOST_RANKS])
    return ranks, [(rank, *where) for rank in ranks if (where := _loop_of(rank, job)) is not None]


def _unlike(
    ranks: Sequence[RankView], loops: Sequence[tuple[RankView, Frame, ProgramPlace, Block]], job: JobView
) -> Iterator[tuple[RankView, ProgramPlace, Block, dict[int, list[int]]]]:
    for rank, frame, place, loop in loops:
        counts = _counts(loop, frame, ranks, job)
        if 1 < len(counts) <= _MOST_NUMBERS:
            yield rank, place, loop, counts


def with_miscounted(verdict: Verdict, job: JobView) -> Verdict:
    """Of two ranks that wait for each other's messages, where the calls of the others tell nothing: the one for which the
    loop has another number of rounds than for all others.

    Schedules give ranks numbers of their own by design: by the rank's number, as many as there are stages before it. So
    all others have to have one and the same, and nobody none (which is what a cap at one message leaves of a warm-up).
    """
    found = verdict.collectives
    circle = found.circle if found is not None else None
    everybody = tuple(sorted(verdict.everyone))
    if (
        verdict.cause != "messages_do_not_match"
        or found is None
        or circle is None
        or len(circle.ranks) != 2
        or len(circle.turned) != 2
        or not 2 < len(everybody) <= _MOST_RANKS
        or same_branch(circle, job)
    ):
        return verdict
    ranks = job.ranks.known(everybody)
    for rank in ranks:
        where = _loop_of(rank, job)
        if where is None or not _is_counted_alike(where[2], where[1]):
            continue
        counts = _counts(where[2], where[0], ranks, job)
        alone = next((of[0] for of in counts.values() if len(of) == 1), None)
        whole = sum(map(len, counts.values())) == len(everybody)
        if whole and len(counts) == 2 and 0 not in counts and alone in circle.ranks:
            blamed = (alone,)
            told = replace(found, culprits=blamed, circle=replace(circle, turned=blamed))
            return replace(
                verdict,
                culprits=blamed,
                waiting=others(everybody, blamed),
                confidence=Confidence.MEDIUM,
                collectives=told,
            )
    return verdict


def _is_counted_alike(loop: Block, place: ProgramPlace) -> bool:
    """By a number, as far as is seen without the rank's."""
    made = [one.text for one in place.names if re.search(rf"\b{re.escape(one.name)}\b", loop.text)]
    return _is_of_numbers(loop) and not any(map(OF_RANK.search, (loop.text, *made)))


def _is_of_numbers(loop: Block) -> bool:
    head = _FOR.search(loop.text)
    return head is not None and head["over"].startswith("range(") and "len(" not in head["over"]


def _counts(loop: Block, frame: Frame, ranks: Sequence[RankView], job: JobView) -> dict[int, list[int]]:
    """The ranks by the number of rounds that it has for them, where that is known. Who has not come to it may still put
    together what it goes over."""
    counts: dict[int, list[int]] = {}
    for rank in ranks:
        there = _same_function(frame, rank)
        if there is None or (there.line < loop.line and not _is_of_numbers(loop)):
            continue
        count = _rounds(loop, _values(rank, there, job))
        if count is not None:
            counts.setdefault(count, []).append(rank.rank)
    return counts


def _counters(
    found: Sequence[tuple[RankView, Frame, ProgramPlace, Block]], ranks: Sequence[RankView], job: JobView
) -> str:
    """How far each has come in a loop of which it is not known how many rounds it has: those that left it less far."""
    for _, frame, _, loop in found:
        name = counter_of(loop)
        texts = {
            other.rank: _values(other, there, job).get(name, "")
            for other in ranks
            if name and (there := _same_function(frame, other)) is not None
        }
        if len(texts) < len(ranks) or not all(map(str.isdecimal, texts.values())):
            continue
        counts: dict[str, list[int]] = {}
        for number, text in texts.items():
            counts.setdefault(text, []).append(number)
        if name and 1 < len(counts) <= _MOST_NUMBERS:
            parts = [f"{text} on {format_ranks(tuple(of))}" for text, of in counts.items()]
            return f"`{name}` had come to {', '.join(parts[:-1])} and {parts[-1]} when read"
    return ""


def _of_messages(found: Sequence[tuple[RankView, Frame, ProgramPlace, Block]], job: JobView) -> str:
    """Ranks are in loops of their own, one in each pass: each has as many rounds as it counts messages, or at least as many as
    it has begun."""
    known: dict[tuple[str, int], list[int]] = {}
    begun: dict[tuple[str, int], list[int]] = {}
    of_numbers = False  # then it may count messages of another kind: a schedule's own
    for rank, frame, place, loop in found:
        values = _values(rank, frame, job)
        head = head_of(loop, place.file, job.run.cwd) + _made(loop, place, job.run.cwd)
        if (count := _rounds(loop, values)) is not None:
            known.setdefault((head, count), []).append(rank.rank)
            of_numbers = of_numbers or _is_of_numbers(loop)
        elif (round_ := _round(loop, values)) is not None:
            begun.setdefault((head, round_), []).append(rank.rank)
    counts = {count for _, count in known}
    beyond = counts and not of_numbers
    further = {key: of for key, of in begun.items() if beyond and key[1] > max(counts)}
    if (len(counts) < 2 and not further) or len(known) + len(further) > _MOST_NUMBERS:
        return ""
    if len(counts) > 1 and sum(map(len, known.values())) < len(found):
        return ""
    parts = [f"{head} has {_rounds_of(count)} on {format_ranks(of)}" for (head, count), of in known.items()]
    parts += [f"{format_who(of, '[is|are]')} in round {at} of {head}" for (head, at), of in further.items()]
    return " and ".join(parts) + _shorter_last(found, job)


def _rounds_of(count: int) -> str:
    return numbered(f"{count} [round|rounds]", count)


def _round(loop: Block, values: Mapping[str, str]) -> int | None:
    """The one that it is in, of a loop over numbers from 0."""
    found = _FROM_ZERO.match(loop.text)
    text = values.get(found["name"], "") if found is not None else ""
    return int(text) + 1 if text.isdecimal() and len(text) < _MOST_DIGITS else None


def _shorter_last(found: Sequence[tuple[RankView, Frame, ProgramPlace, Block]], job: JobView) -> str:
    """ ", and `loader.drop_last` was False: its last batch has what is left over": a DataLoader of one of their functions."""
    for rank, *_ in found:
        read = job.program.variables(rank.rank, rank.placement.pid)
        for frame in read.frames if read is not None else ():
            values = {one.name: one.text for one in frame.variables}
            for name, text in values.items():
                owner, _, attribute = name.rpartition(".")
                size = values.get(f"{owner}.batch_size", "")
                if not frame.called and (attribute, text) == ("drop_last", "False") and size.isdecimal():
                    return f", and `{name}` was False: its last batch may have fewer than {size} rows"
    return ""


def _numbers(counts: Mapping[int, Sequence[int]]) -> str:
    parts = [f"{count} on {format_ranks(tuple(of))}" for count, of in counts.items()]
    parts[0] = parts[0].replace(" on ", " rounds on ", 1)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def _made(loop: Block, place: ProgramPlace, cwd: str) -> str:
    """Where the number of its rounds comes from."""
    head = _FOR.search(loop.text)
    known = [
        one
        for one in place.names
        if head is not None and re.search(rf"\b{re.escape(one.name)}\b", head["over"])
    ]
    if not known:
        return ""
    one = known[0]
    if one.kind == "filled":
        return f", where {one.name} is filled in `{one.text}` ({format_path(one.file, cwd)}:{one.line}),"
    text = one.text if one.kind == "either" else one.text[:80]
    return f", where {one.name} is `{text}` ({format_path(one.file, cwd)}:{one.line}),"


def _loop_of(rank: RankView, job: JobView) -> tuple[Frame, ProgramPlace, Block] | None:
    """The innermost `for` around what it is in."""
    for frame in reversed(path_of(rank.judged)[-_OUTWARDS:]):
        place = job.program.at(frame)
        loop = next((one for one in place.around if one.kind == "for"), None) if place is not None else None
        if place is not None and loop is not None:
            return frame, place, loop
    return None


def _same_function(frame: Frame, rank: RankView) -> Frame | None:
    return next(
        (one for one in path_of(rank.judged) if (one.file, one.function) == (frame.file, frame.function)),
        None,
    )


def _values(rank: RankView, frame: Frame, job: JobView) -> dict[str, str]:
    read = job.program.variables(rank.rank, rank.placement.pid)
    return {
        variable.name: variable.text
        for one in (read.frames if read is not None else ())
        if not one.called and (one.file, one.function) == (frame.file, frame.function)
        for variable in one.variables
    }


# --- the head of a loop


def _rounds(loop: Block, values: Mapping[str, str]) -> int | None:
    head = _FOR.search(loop.text)
    return rounds_of(head["over"], values) if head is not None else None


def rounds_of(over: str, values: Mapping[str, str]) -> int | None:
    """Of `for ... in OVER`; None where it is not known.

    >>> rounds_of("range(len(parts))", {"parts": "<list of 3 Tensor>"}), rounds_of("range(2, args.n)", {"args.n": "12"})
    (3, 10)
    >>> rounds_of("enumerate(rows)", {"rows": "[1, 2, ... 9 items]"}), rounds_of("loader", {"loader": "<DataLoader>"})
    (9, None)
    """
    try:
        tree = ast.parse(over, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and not tree.keywords:
        if tree.func.id == "range":
            ends = [_number(one, values) for one in tree.args]
            if not ends or any(one is None for one in ends) or (len(ends) > 2 and not ends[2]):
                return None
            return len(range(*[one for one in ends if one is not None]))
        if tree.func.id in ("enumerate", "reversed", "sorted", "tqdm") and tree.args:
            return _length(values.get(ast.unparse(tree.args[0]), ""))
    return _length(values.get(ast.unparse(tree), ""))


def _number(node: ast.expr, values: Mapping[str, str]) -> int | None:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, int) else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len" and node.args:
        return _length(values.get(ast.unparse(node.args[0]), ""))
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _number(node.left, values), _number(node.right, values)
        if left is None or right is None or (not right and isinstance(node.op, ast.FloorDiv | ast.Mod)):
            return None
        found = int(_OPERATORS[type(node.op)](left, right))
        return found if abs(found) < _LARGEST else None
    text = values.get(ast.unparse(node), "")
    return int(text) if re.fullmatch(r"-?\d{1,15}", text) else None


def _length(text: str) -> int | None:
    """Of a container, as its text has it: all of it, or its number of items.

    >>> _length("[1, 2, 3]"), _length("<deque of 5>"), _length("[]"), _length("(1,)"), _length("'abc'"), _length("['a, b']")
    (3, 5, 0, 1, None, None)
    """
    if found := _NUMBER_OF.search(text):
        return int(found[1])
    if text[:1] not in ("[", "(") or "..." in text or "'" in text or '"' in text:
        return None
    inner = text[1:-1].rstrip(",")
    return inner.count(",") + 1 if inner and not re.search(r"[\[({]", inner) else None if inner else 0
