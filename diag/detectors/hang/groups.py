"""Process groups that not all ranks have made: torch numbers them in the order in which each rank makes them, so a rank that
left one out, or made one more, takes the next one for another, and they never meet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from diag.detectors.hang.partings import head_of, path_of
from diag.detectors.hang.rank_wait import WAITS
from diag.detectors.hang.verdict import Note, Verdict, blaming, format_who
from diag.model import Confidence
from diag.model.observations import Statement
from diag.state.rank_view import RankView
from diag.state.stack_activity import format_frame
from diag.state.view import JobView
from diag.text.units import format_path, format_ranks

# torch 1.8-2.13: functions in which ranks wait for each other to make a group, and their argument with its name
_MAKES = {"_new_process_group_helper": "group_name", "_store_based_barrier": "group_name"}
_FILE = "torch/distributed/distributed_c10d.py"
_CLASSES = (
    "comm_init",
    "rendezvous",
    "unknown",
    "collective_mismatch",
    "collective_order_deadlock",
    "peer_not_joined",
)
_DEFAULT = 0  # that of init_process_group
_MOST_LINES = 2


@dataclass(frozen=True, slots=True)
class _Making:
    """The group with this number of the rank's own; `size` is 0 where it is not known."""

    number: int
    size: int
    place: str


def with_groups(verdict: Verdict, states: Mapping[int, str], job: JobView) -> Verdict:
    """Where every rank is seen to wait, and some of them in making a group."""
    if verdict.klass not in _CLASSES or verdict.blamed_child is not None:
        return verdict
    ranks = job.alive_ranks()
    if len(ranks) < max(2, job.world_size) or any(states.get(one.rank) not in WAITS for one in ranks):
        return verdict
    making = {one.rank: found for one in ranks if (found := _making(one, job)) is not None}
    if not making:
        return _with_members(verdict, ranks, job)
    numbers = {one.number for one in making.values()}
    elsewhere = tuple(one.rank for one in ranks if one.rank not in making)
    if len(numbers) > 1:
        return _of_numbers(verdict, making, job)
    most = max(one.size for one in making.values())
    if not elsewhere or verdict.collectives is None or (most and most <= len(making)):
        return verdict
    return _of_some(verdict, making, elsewhere, job)


def _making(rank: RankView, job: JobView) -> _Making | None:
    thread = rank.judged
    read = job.program.variables(rank.rank, rank.placement.pid)
    if thread is None or read is None:
        return None
    inside = {(one.function, one.file) for one in thread.frames if one.function in _MAKES}
    for frame in reversed(read.frames):
        if frame.called and (frame.function, frame.file) in inside and frame.file.endswith(_FILE):
            values = {one.name: one.text.strip("'") for one in frame.variables}
            number, size = values.get(_MAKES[frame.function], ""), values.get("group_size", "")
            if number.isdecimal() and int(number) > _DEFAULT:
                own = path_of(thread)
                place = format_frame(own[-1], job.run.cwd) if own else ""
                return _Making(int(number), int(size) if size.isdecimal() else 0, place)
    return None


def _of_numbers(verdict: Verdict, making: Mapping[int, _Making], job: JobView) -> Verdict:
    """Different numbers: those that fewer ranks have come to are to blame; of as many, those who made fewer groups."""
    by_number: dict[int, list[int]] = {}
    for rank, one in sorted(making.items()):
        by_number.setdefault(one.number, []).append(rank)
    usual = max(by_number, key=lambda number: (len(by_number[number]), number))
    culprits = tuple(sorted(rank for rank, one in making.items() if one.number != usual))
    parts = [
        f"{format_who(of, '[makes its|make their]')} group number {number}{_at(making[of[0]])}"
        for number, of in sorted(by_number.items(), key=lambda item: -len(item[1]))
    ]
    return _blamed(verdict, culprits, ", ".join(parts), making, Confidence.HIGH, job)


def _of_some(
    verdict: Verdict, making: Mapping[int, _Making], elsewhere: Sequence[int], job: JobView
) -> Verdict:
    """Some make a group, and the others wait in a call: those are to blame that are fewer. Of as many, whoever is in a
    call of a group that is not the first one may have taken it for this."""
    first = next(iter(making.values()))
    makers = tuple(sorted(making))
    others = tuple(sorted(elsewhere))
    later = any(_later_group(job.ranks[rank]) for rank in others)
    blamed = makers if (len(makers), later) < (len(others), True) else others
    who = format_who(makers, "[makes its|make their]")
    call = _call_of(job.ranks[others[0]])
    words = f"{who} group number {first.number}{_at(first)}, {format_who(others, '[is|are]')} in {call}"
    return _blamed(verdict, blamed, words, making, Confidence.MEDIUM, job)


def _later_group(rank: RankView) -> str:
    """The number of the group of the call that it waits in; "" for the first one, and where it is not known."""
    entries = rank.recorder.entries if rank.recorder is not None else ()
    names = [one.group for one in entries if one.pending]
    return names[-1] if names and names[-1].isdecimal() and int(names[-1]) > _DEFAULT else ""


def _call_of(rank: RankView) -> str:
    name = (
        rank.reading.where.function
        if rank.reading is not None and rank.reading.where is not None
        else "a call"
    )
    later = _later_group(rank)
    return name + (f" of the one that it has as number {later}" if later else "")


def _with_members(verdict: Verdict, ranks: Sequence[RankView], job: JobView) -> Verdict:
    """By the recorders: a group that is not of the same ranks to all who have it, and in which one of them waits."""
    views: dict[str, dict[tuple[int, ...], list[int]]] = {}
    for rank in ranks:
        for group in rank.recorder.groups if rank.recorder is not None else ():
            if group.name.isdecimal() and group.members:
                views.setdefault(group.name, {}).setdefault(group.members, []).append(rank.rank)
    waited = {_later_group(rank) for rank in ranks} - {""}
    name = next((name for name, of in sorted(views.items()) if len(of) > 1 and name in waited), None)
    if name is None or not (verdict.klass in ("unknown", "collective_mismatch") or verdict.collectives):
        return verdict
    of = views[name]
    usual = max(of, key=lambda members: (len(of[members]), len(members)))
    culprits = tuple(sorted(rank for members, those in of.items() if members != usual for rank in those))
    parts = [
        f"group {name} is of {format_ranks(members)} to {format_ranks(those)}"
        for members, those in of.items()
    ]
    return _blamed(verdict, culprits, ", ".join(parts[:3]), {}, Confidence.HIGH, job)


def _at(making: _Making) -> str:
    return f" in {making.place}" if making.place else ""


def _blamed(  # noqa: PLR0917 - three callers, above it
    verdict: Verdict,
    culprits: tuple[int, ...],
    words: str,
    making: Mapping[int, _Making],
    sure: Confidence,
    job: JobView,
) -> Verdict:
    found = blaming(
        verdict, culprits, "comm_init", "groups_made_by_some", sure, words=words, chain=None, reason=None
    )
    lines = _other_lines(making, job)
    if lines:
        first = lines[0]
        found = replace(found, words=f"{words}; {_described(first, job.run.cwd)}")
        found = found.noted(
            *(
                Note("program", f"{format_path(one.file, job.run.cwd)}:{one.line}: `{one.text}`")
                for one in lines
            )
        )
    return found


def _other_lines(making: Mapping[int, _Making], job: JobView) -> list[Statement]:
    """That make groups, and are not reached by each rank each time, as the program's text has them."""
    here = {(own[-1].file, own[-1].line) for rank in making if (own := path_of(job.ranks[rank].judged))}
    found = [one for one in job.program.statements("makes_group") if (one.file, one.line) not in here]
    return [one for one in found if one.leaves or any(not block.is_loop for block in one.around)][
        :_MOST_LINES
    ]


def _described(one: Statement, cwd: str) -> str:
    """ "a group is also made by `dist.new_group(writers)` (save.py:20), past which `if rank > 1:` (save.py:24) returns"."""
    text = f"a group is also made by `{one.text}` ({format_path(one.file, cwd)}:{one.line})"
    conditions = [head_of(block, one.file, cwd) for block in one.around if not block.is_loop]
    if one.leaves:
        leave = one.leaves[-1]
        return f"{text}, past which {head_of(leave.under, one.file, cwd)} leads"
    return f"{text}, under {' and '.join(conditions[:_MOST_LINES])}"
