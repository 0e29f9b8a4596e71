"""Ranks that wait for a key of a store (torch.distributed's TCPStore and its like): which key, who sets it by the program's
text, and whether a rank has gone past that line without."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from diag.detectors.hang.conditions import outcome
from diag.detectors.hang.partings import (
    OF_RANK,
    ahead_of,
    counter_of,
    head_of,
    parted_in,
    path_of,
    round_before,
)
from diag.detectors.hang.verdict import Verdict, at_most, blaming, format_who
from diag.model import Confidence
from diag.model.observations import Frame, ProgramPlace, Statement
from diag.state.rank_view import RankView
from diag.state.view import JobView
from diag.text.units import format_path

# Causes of a rank that waits in a call of its own line, or where nobody is to blame.
_MAY_WAIT = ("waits_at_store", "sleeps", "all_ranks_wait")
_STORE = re.compile(r"Store\b|_store\b|\bstore\b")
_OWNER = re.compile(r"([A-Za-z_][\w.]*)\.(?:wait|get|check|multi_get)\(")
_EXPRESSION = re.compile(r"\{([^{}]*)\}")
_MOST_CONDITIONS = 2
_ARGUMENT = re.compile(r"\.(?:wait|get|check|multi_get)\((?P<key>\[[^\]]*\]|[^,]*)")
_NAME = re.compile(r"(?<![\w.])[A-Za-z_][\w.]*")
# What gives another value in each process that is started; of hash only where text is in it (PYTHONHASHSEED).
_OF_PROCESS = re.compile(
    r"(?<![\w.])(?:(?P<salted>hash)|id|(?:os\.)?getpid|(?:uuid\.)?uuid[14]|secrets\.\w+|"
    r"time\.(?:time|monotonic|perf_counter)(?:_ns)?|(?:datetime\.)?datetime\.now)\((?P<of>[^()]*(?:\([^()]*\))?[^()]*)\)"
)
_TEXT = re.compile(r"[\"']|\bstr\(")


@dataclass(frozen=True, slots=True)
class _Awaited:
    """`values`: of the expressions in the key, those that were read."""

    rank: RankView
    frame: Frame
    place: ProgramPlace
    values: Mapping[str, str]

    @property
    def key(self) -> str:
        return _EXPRESSION.sub(
            lambda found: self.values.get(found[1], found[0]).strip("'"), self.place.awaited
        )


def with_store_keys(verdict: Verdict, job: JobView) -> Verdict:
    """Of ranks in one call for one key. Whoever has gone past the line that sets it holds them up, not they."""
    if not (verdict.is_of("outside") or verdict.cause in _MAY_WAIT) or verdict.blamed_child is not None:
        return verdict
    at_store = verdict.cause == "waits_at_store"  # by the kernel, of the culprits
    waiting = {
        number: one
        for number in verdict.everyone
        if (one := _awaited(job.ranks.get(number), job, known=at_store and number in verdict.culprits))
    }
    if not waiting or not set(verdict.culprits) <= set(waiting):
        return verdict
    first = next(iter(waiting.values()))
    if any(one.key != first.key for one in waiting.values()):
        return verdict
    setters = [one for one in job.program.statements("sets") if _fits(one.key, first.place.awaited)]
    cwd = job.run.cwd
    ranks = tuple(sorted(waiting))
    at = f"{format_path(first.frame.file, cwd)}:{first.frame.line}"
    words = f"{format_who(ranks, '[waits|wait]')} for the key `{first.key}` of a store ({at})"
    if not setters:
        words += ", which no line sets in the program's files that were read"
        return _with_words(verdict, words)
    words += f", which {_lines(setters, cwd)}"
    if own := _of_process(first, cwd):
        makes = (
            "may make" if "{...}" in first.key else "makes"
        )  # one of two keys, the other of which may be alike
        words += f"; each process {makes} that key for itself, from {own}"
        confidence = at_most(verdict.confidence, Confidence.MEDIUM)
        return replace(verdict, cause="key_of_each_process", words=words, confidence=confidence)
    passed = {
        rank.rank: values
        for rank in job.ranks.known([number for number in verdict.everyone if number not in waiting])
        if all((values := _passed(one, first, rank, job)) is not None for one in setters)
    }
    passed = {rank: values for rank, values in passed.items() if _may_set(rank, setters, first)} or passed
    if passed:
        culprits = tuple(sorted(passed))
        apart = next(filter(None, passed.values()), "")
        words += f"; {format_who(culprits, '[has|have]')} gone past {'that line' if len(setters) == 1 else 'these lines'}{apart}"
        return blaming(
            verdict, culprits, "peer_not_joined", "key_not_set", Confidence.MEDIUM, words=words, chain=None
        )
    return _with_words(verdict, words)


def _of_process(awaited: _Awaited, cwd: str) -> str:
    """Of what the key is made from, that which no two processes have alike: "`hash(name)` (keys.py:16)". By the program's
    text, as far as one statement says what each name in it means."""
    place = awaited.place
    found = _ARGUMENT.search(place.text)
    texts = {(place.file, place.line): found["key"]} if found is not None else {}
    for text in (todo := [*texts.values()]):  # grows
        for name in _NAME.findall(text):
            meaning = place.meaning(name)
            if (
                meaning is not None
                and texts.setdefault((meaning.file, meaning.line), meaning.text) not in todo
            ):
                todo.append(meaning.text)
    for (file, line), text in texts.items():
        for one in _OF_PROCESS.finditer(text):
            of = [one["of"], *(awaited.values.get(name, "") for name in _NAME.findall(one["of"]))]
            if not one["salted"] or (any(map(_TEXT.search, of)) and not _same_salt(awaited.rank)):
                return f"`{one[0]}` ({format_path(file, cwd)}:{line})"
    return ""


def _same_salt(rank: RankView) -> bool:
    return rank.variables.get("PYTHONHASHSEED", "random") != "random"


def _with_words(verdict: Verdict, words: str) -> Verdict:
    """Of ranks that are to blame as far as is known: who waits for whom is not."""
    if not verdict.culprits:
        return verdict
    cause = verdict.cause if verdict.cause == "waits_at_store" else "waits_for_key"
    return replace(verdict, cause=cause, words=words)


def _awaited(rank: RankView | None, job: JobView, *, known: bool) -> _Awaited | None:
    """Of a thread whose innermost line is the program's own, and asks a store: its methods are C code. `known`: that what
    it asks is one."""
    thread = rank.judged if rank is not None else None
    own = path_of(thread)
    if rank is None or thread is None or not own or thread.frames[-1] != own[-1]:
        return None
    place = job.program.at(own[-1])
    if place is None or not place.awaited:
        return None
    values = _values(rank, own[-1], job)
    owner = next((found[1] for text in _texts(place) for found in _OWNER.finditer(text)), "")
    meaning = place.meaning(owner)
    texts = (owner, meaning.text if meaning is not None else "", values.get(owner, ""))
    if len(own) > 1:  # the key may be put together by the caller
        values = {**_values(rank, own[-2], job), **values}
    return _Awaited(rank, own[-1], place, values) if known or any(map(_STORE.search, texts)) else None


def _texts(place: ProgramPlace) -> Iterator[str]:
    """Its statement, and what the loops and handlers around it ask."""
    yield place.text
    for block in place.around:
        yield from (block.text, *block.deciding)
    yield from (leave.under.text for leave in place.leaves)


def _values(rank: RankView, frame: Frame, job: JobView) -> dict[str, str]:
    read = job.program.variables(rank.rank, rank.placement.pid)
    of_frame = next(
        (
            one
            for one in reversed(read.frames if read is not None else ())
            if not one.called and (one.file, one.function) == (frame.file, frame.function)
        ),
        None,
    )
    return {one.name: one.text for one in of_frame.variables} if of_frame is not None else {}


def _fits(key: str, awaited: str) -> bool:
    """Whether they may be one key.

    >>> _fits("best/{n}", "best/{epoch}"), _fits("done/{rank}", "done/0"), _fits("best/{n}", "last/{n}")
    (True, True, False)
    """
    return _may_be(key, awaited) or _may_be(awaited, key)


def _may_be(template: str, text: str) -> bool:
    parts = [re.escape(part) for part in _EXPRESSION.split(template)[::2]]
    return re.fullmatch(".+".join(parts), _EXPRESSION.sub("0", text)) is not None


def _lines(setters: Sequence[Statement], cwd: str) -> str:
    """ "only `store.set("a", "1")` (train.py:80) sets, under `if val < best:` (train.py:77)"."""
    first = setters[0]
    text = f"only `{first.text}` ({format_path(first.file, cwd)}:{first.line}) sets"
    if len(setters) > 1:
        rest = ", ".join(f"{format_path(one.file, cwd)}:{one.line}" for one in setters[:3])
        text = f"{len(setters)} lines set ({rest})"
    conditions = [head_of(one, first.file, cwd) for one in first.around if not one.is_loop]
    if conditions and len(setters) == 1:
        text += f", under {' and '.join(conditions[:_MOST_CONDITIONS])}"
    return text


def _passed(setter: Statement, awaited: _Awaited, rank: RankView, job: JobView) -> str | None:
    """Words for how it shows; None where the rank has not gone past that line, or it is not known.

    By the values that the key is made of, and by the counters of the loops around: a rank that has come to the next epoch
    set no key of this one. Else by its line in the function that sets it, or calls that, where no loop may lead back.
    """
    found = _in_function_of(setter, rank)
    place = job.program.at(found[0]) if found is not None else None
    if found is None or place is None:
        return _in_later_round(setter, awaited, rank, job)
    frame, line = found
    theirs = _values(rank, frame, job)
    wanted = _EXPRESSION.findall(awaited.place.awaited)
    pairs = [
        (name, awaited.values.get(other, ""))
        for name, other in zip(_EXPRESSION.findall(setter.key), wanted, strict=False)
    ]
    loops = [
        one for one in place.around if one.is_loop and one.line in {block.line for block in setter.around}
    ]
    there = next((one for one in path_of(awaited.rank.judged) if _is_same(one, frame)), None)
    if there is not None:
        ours = _values(awaited.rank, there, job)
        counted = (counter for one in loops if (counter := counter_of(one)))
        pairs += [(name, ours.get(name, "")) for name in counted]
    level = False
    for name, other in pairs:
        one = theirs.get(name, "")
        if not (one.isdecimal() and other.isdecimal()):
            continue
        if int(one) != int(other):
            return f" (`{name}` is {one} there, and {other} is waited for)" if int(one) > int(other) else None
        level = True
    return "" if frame.line > line and (level or not loops) else None


def _in_later_round(setter: Statement, awaited: _Awaited, rank: RankView, job: JobView) -> str | None:
    """Of a rank that has left the function which sets the key, and in which the waiting one still is: it has been through it
    in that round. By the counter of their loop; or it waits in a call for who has made that call in this round."""
    path = path_of(awaited.rank.judged)
    inside = {setter.function, *setter.called_in}
    through = [
        at
        for at, one in enumerate(path)
        if one.file == setter.file and one.function.rpartition(".")[2] in inside
    ]
    if not through or "" in inside:
        return None
    forked = parted_in(awaited.rank, rank)
    if forked is None or forked >= through[0]:
        return None
    if (ahead := ahead_of(awaited.rank, (rank.rank,), job)) is not None:
        return f" ({ahead.text})"
    loop = round_before(awaited.rank, rank, job)
    return f" (it is in a later round of {loop})" if loop else None


def _may_set(rank: int, setters: Sequence[Statement], awaited: _Awaited) -> bool:
    """As far as a condition around that line names the rank, by a variable that is the waiting one's number there."""
    names = {
        name: str(rank)
        for name, text in awaited.values.items()
        if OF_RANK.search(name) and text == str(awaited.rank.rank)
    }
    heads = [[block.text for block in one.around if block.kind == "if"] for one in setters]
    found = [[outcome(head, names) for head in each] for each in heads]
    return any(all(one is None or one.holds for one in each) for each in found)


def _in_function_of(setter: Statement, rank: RankView) -> tuple[Frame, int] | None:
    """The frame of the rank in the function that sets the key, or in one that calls it, and that line of it."""
    own = [one for one in path_of(rank.judged) if one.file == setter.file]
    lines = ((setter.function, setter.line), *zip(setter.called_in, setter.called_at, strict=True))
    for function, line in lines:
        for frame in own:
            if frame.function.rpartition(".")[2] == (function or "<module>"):
                return frame, line
    return None


def _is_same(one: Frame, other: Frame) -> bool:
    return (one.file, one.function) == (other.file, other.function)
