"""What the variables of the ranks add to a verdict: those that the line named reads, and those in which ranks differ."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from diag.detectors.hang.loops import (
    FITS,
    PASSED,
    gets_nowhere,
    growing,
    loop_named,
    nothing_fits,
    passes_its_end,
    stays_as_it_is,
    why_unchanged,
    with_condition_met_before,
)
from diag.detectors.hang.partings import OF_RANK, path_of
from diag.detectors.hang.program_lines import thread_of
from diag.detectors.hang.rounds import rounds_that_differ
from diag.detectors.hang.verdict import Note, Verdict
from diag.model.observations import Frame, FrameVariables, ProgramPlace, ThreadStack
from diag.state.program import Program
from diag.state.rank_view import RankView
from diag.state.view import JobView
from diag.text.units import format_path, format_ranks

_NAME = re.compile(r"(?<![\w.'\"])[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_NUMBER = re.compile(r"\d+")
_FLOAT = re.compile(r"-?(?:\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+|inf|nan)")
_READ_BY = ("while", "if", "elif", "else")  # blocks whose head is a condition
_OUTWARDS = 4  # own frames that are shown
_MOST_SHOWN = 6  # variables of a frame
_MOST_NOTES = 5
_MOST_IN_CALLS = 2  # more ranks, of a hang in which all wait
_MOST_OTHERS = 16  # ranks compared
_MOST_IN_WORDS, _MOST_APART = 2, 3
# Other causes of a rank of which its line may tell why it is there.
_AT_A_LINE = (
    "dataloader_worker_busy", "sleeps", "regular_expression", "database_query", "loops",
)  # fmt: skip
_LONGEST_IN_WORDS = 90
_HIDDEN = "***"
_LONGEST_ARGUMENT = 40
# Arguments of a library's call that say whom it waits for, or for how long.
_AIMS = ("timeout", "block", "blocking", "src", "dst", "group_src", "group_dst", "tag", "peer", "host", "port", "address", "url",
         "path", "file", "deadline", "interval", "retries")  # fmt: skip
_ITEMS = re.compile(r"^\[.*\.\.\. (?P<count>\d+) items\]$")
_MOST_OF_LOOP = 4  # variables of its condition
_COUNTER = re.compile(r"-?\d+")
_ENTRY = re.compile(r"\['\w+'\]$")
_TEXT = re.compile(r"(?:[A-Za-z]\w*\()?(?P<quote>['\"])(?P<text>.{4,})(?P=quote)\)?(?:\.\.\. \(\d+\))?")
# Causes in which no rank is further than another, so that counters tell.
_LEVEL = ("calls_differ", "call_unanswered", "all_ranks_wait")

# Of other ranks: what was read, and the stack of the thread that trains.
Compared = Mapping[int, tuple[Sequence[FrameVariables], ThreadStack]]


@dataclass(frozen=True, slots=True)
class _Place:
    """A frame of the rank to blame, its variables, and those of the same function on other ranks.

    `texts`: the statement that it is at, and the heads around it; `line` and `conditions`: the variables that it, and they
    where they are conditions, name.
    `level`: the others are at the same line.
    """

    frame: FrameVariables
    values: Mapping[str, str]
    texts: tuple[str, ...]
    line: tuple[str, ...]
    conditions: tuple[str, ...]
    elsewhere: Mapping[int, Mapping[str, str]]
    level: bool
    place: ProgramPlace | None = None

    @property
    def named(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.conditions, *self.line)))

    def differing(self, rank: int) -> Iterator[str]:
        """Whose values do not follow from the rank's number alone."""
        for name, text in self.values.items():
            texts = {rank: text} | {other: of[name] for other, of in self.elsewhere.items() if name in of}
            comparable = not any(
                one.startswith("<") or one == _HIDDEN or _FLOAT.fullmatch(one) for one in texts.values()
            )
            if len({*texts.values()}) == 1:
                continue  # one path on all ranks may have the number of one of them in it
            if comparable and len({_without_rank(one, of) for of, one in texts.items()}) > 1:
                yield name


def with_variables(verdict: Verdict, job: JobView) -> Verdict:
    """Of the first culprit; where nobody is to blame, of the first rank."""
    everybody = verdict.everyone
    rank = job.ranks.get(everybody[0]) if everybody else None
    thread = thread_of(rank, verdict) if rank is not None else None
    if rank is None or thread is None:
        return verdict
    read = job.program.variables(rank.rank, verdict.blamed_child or rank.placement.pid)
    if read is None:
        return verdict
    compared = {} if verdict.blamed_child is not None else _of_others(everybody[1:], job)
    places = list(_places(read.frames, thread, compared, job.program))
    cwd = job.run.cwd
    notes: list[Note] = []
    for at, place in enumerate(places):
        apart = tuple(place.differing(rank.rank))
        names = _chosen(place, apart, innermost=at == 0)
        if names:
            notes.append(Note("variables", _row(place.frame, place.values, names, cwd), rank.rank))
        for other, values in _unlike(place, tuple(name for name in apart if name in names)):
            notes.append(Note("variables", _row(place.frame, values, [*values], cwd), other))
    notes += [Note("variables", text, rank.rank) for text in _called(read.frames, thread, cwd)]
    if not verdict.culprits:  # each in a call: with whom?
        for number, (there, whole) in list(compared.items())[:_MOST_IN_CALLS]:
            notes += [Note("variables", text, number) for text in _called(there, whole, cwd)]
    shown = _shown(places, verdict)
    differs, clause, of_name = _difference(places, shown, rank, verdict)
    if counted := rounds_that_differ(verdict, job):
        differs, clause, of_name = "", counted, False
    clauses = [verdict.words, _at_its_line(shown, verdict, differs) if shown is not None else "", clause]
    if shown is not None and verdict.is_of("loop"):
        first = job.program.first_variables(rank.rank, read.pid, shown.frame)
        before = values_of(first) if first is not None else {}
        loop = loop_named(shown.place, verdict)
        passed = passes_its_end(loop, shown.values, before) if loop is not None else ""
        grows = passed or growing(shown.values, before)
        steady = job.program.steady(rank.rank, read.pid, shown.frame)
        asked = read_by(shown.values, _head(shown, verdict)) if verdict.cause == "loops" else ()
        stays = stays_as_it_is(asked, steady) if steady is not None and not grows else ""
        clauses.append(grows or stays)
        if passed:
            verdict = replace(verdict, origin=PASSED)
        if stays and (why := why_unchanged(shown.place, shown.values, verdict)):
            clauses.append(why)
            verdict = gets_nowhere(verdict)
        if why := nothing_fits(shown.place, shown.values):
            clauses.append(why)
            verdict = replace(verdict, origin=FITS)
    verdict = replace(verdict, words=", ".join(filter(None, clauses)))
    if (
        of_name
        and verdict.is_of("polls")
        and verdict.cause != "retries"
        and shown is not None
        and differs not in shown.conditions
    ):
        verdict = replace(verdict, cause="polls_for_a_name_of_its_own", reason=None)
    elif verdict.blamed_child is None and shown is not None:
        verdict = with_condition_met_before(verdict, rank, shown.place, job)
    kept = [note for note in verdict.notes if note.kind == "program"]
    rest = [note for note in verdict.notes if note.kind != "program"]
    return replace(verdict, apart=differs, notes=(*kept, *notes[:_MOST_NOTES], *rest))


def _shown(places: Sequence[_Place], verdict: Verdict) -> _Place | None:
    """Where the loop is that the verdict names, else where the rank is."""
    heads = ((one, text) for one in places if verdict.is_of("loop") for text in one.texts[1:])
    loop = next(
        (one for one, text in heads if text.startswith("while ") and f"the loop `{text}`" in verdict.words),
        None,
    )
    at_a_line = verdict.is_of("place") or verdict.cause in _AT_A_LINE
    return loop or (places[0] if places and at_a_line else None)


# --- which frames


def _places(
    read: Sequence[FrameVariables], thread: ThreadStack, compared: Compared, program: Program
) -> Iterator[_Place]:
    """Innermost first, where the rank still is in the functions in which it was when they were read."""
    for frame in list(reversed(path_of(thread)))[:_OUTWARDS]:
        there = [one for one in read if is_same_function(one, frame)]
        if not there:
            continue
        here = [one for one in there if (one.line, one.thread_id) == (frame.line, thread.thread_id)]
        found = (here or there)[0]  # of one that goes round, at another line of the same function
        values = values_of(found)
        places = [program.at(frame)]
        elsewhere: dict[int, Mapping[str, str]] = {}
        level = True
        for other, (of_other, whole) in compared.items():
            same = next((one for one in of_other if is_same_function(one, frame)), None)
            at = next(
                (one for one in path_of(whole) if (one.file, one.function) == (frame.file, frame.function)),
                None,
            )
            if same is not None and at is not None:
                elsewhere[other] = values_of(same)
                level = level and at.line == frame.line
                places.append(program.at(at))
        place = places[0]
        texts = (place.text, *(block.text for block in place.inside)) if place is not None else ()
        line = read_by(values, texts[:1])
        conditions = read_by(values, [text for place in places for text in _conditions(place)])
        yield _Place(found, values, texts, line, conditions, elsewhere, level, place)


def _of_others(others: Sequence[int], job: JobView) -> Compared:
    found: dict[int, tuple[Sequence[FrameVariables], ThreadStack]] = {}
    for number in others[:_MOST_OTHERS]:
        rank = job.ranks.get(number)
        read = job.program.variables(number, rank.placement.pid) if rank is not None else None
        if rank is not None and read is not None and rank.judged is not None:
            found[number] = read.frames, rank.judged
    return found


def is_same_function(read: FrameVariables, frame: Frame) -> bool:
    return not read.called and (read.file, read.function) == (frame.file, frame.function)


def values_of(frame: FrameVariables) -> dict[str, str]:
    return {one.name: one.text for one in frame.variables}


# --- which variables


def _conditions(place: ProgramPlace | None) -> Iterator[str]:
    """The heads of the blocks around it, and of those that lead out of its loops."""
    if place is not None:
        loops = {block.line for block in place.inside if block.is_loop}
        yield from (block.text for block in place.inside if block.kind in _READ_BY)
        yield from (
            leave.under.text for leave in place.leaves if leave.loop in loops or (loops and not leave.loop)
        )


def read_by(values: Mapping[str, str], texts: Sequence[str]) -> tuple[str, ...]:
    """The variables that these statements name."""
    found = []
    for text in texts:
        keyed = text.replace('"', "'")
        found += [name for name in values if "[" in name and name in keyed]
        found += [_variable(name, values) for name in _NAME.findall(_QUOTED.sub("''", text))]
    return tuple(dict.fromkeys(filter(None, found)))


def _variable(text: str, values: Mapping[str, str]) -> str:
    """The variable that `marker.exists` or `self.queue.get` is about; "" for none."""
    while text and text not in values:
        text = text.rpartition(".")[0]
    return text


def _chosen(place: _Place, apart: Sequence[str], *, innermost: bool) -> list[str]:
    """Those of the line first, then those that differ; of the innermost function some of the rest."""
    named = place.named if innermost else place.conditions
    apart = [
        name
        for name in apart
        if innermost or len(place.values[name]) <= _LONGEST_ARGUMENT or "Path(" in place.values[name]
    ]
    shown = [name for name in (*named, *apart) if not says_little(place.values[name])]
    if innermost:
        shown += [name for name, text in place.values.items() if not text.startswith("<") or " of " in text]
    return list(dict.fromkeys(shown))[:_MOST_SHOWN]


def says_little(text: str) -> bool:
    """A type, and nothing else."""
    return text.startswith("<") and "=" not in text and " of " not in text and ": " not in text


def _unlike(place: _Place, names: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """One rank of each other set of values of these."""
    seen = {tuple(place.values[name] for name in names)}
    for other, values in place.elsewhere.items():
        here = {name: values[name] for name in names if name in values}
        if here and tuple(here.values()) not in seen:
            seen.add(tuple(here.values()))
            yield other, here


def _without_rank(text: str, rank: int) -> str:
    """
    >>> _without_rank("'out/rank1.txt'", 1) == _without_rank("'out/rank0.txt'", 0)
    True
    """
    return _NUMBER.sub(lambda number: "#" if int(number[0][:9]) == rank else number[0], text)


# --- in words


def _row(frame: FrameVariables, values: Mapping[str, str], names: Sequence[str], cwd: str) -> str:
    where = f"{frame.function} ({format_path(frame.file, cwd)}:{frame.line})"
    return f"{where}: " + ", ".join(f"{name}={values[name]}" for name in names)


def _called(read: Sequence[FrameVariables], thread: ThreadStack, cwd: str) -> Iterator[str]:
    """The arguments of the calls that it is in, where they are few and short: src=2, timeout=None."""
    places = {(frame.function, frame.file, frame.line) for frame in thread.frames}
    for frame in read:
        if not frame.called or (frame.function, frame.file, frame.line) not in places:
            continue
        values = {
            one.name: one.text
            for one in frame.variables
            if one.name in _AIMS
            and len(one.text) <= _LONGEST_ARGUMENT
            and (one.text != "None" or one.name == "timeout")
        }
        if values:
            yield _row(frame, values, list(values)[:_MOST_SHOWN], cwd)


def _difference(
    places: Sequence[_Place], shown: _Place | None, rank: RankView, verdict: Verdict
) -> tuple[str, str, bool]:
    """A variable, and "`step` was 61 on rank 1 and 60 on ranks 0,2 when read"; whether the condition of the place reads
    a value that is made of it. Else it is of a condition around, or of the line where the others are at it too."""
    polled = [shown.values[name] for name in shown.conditions] if shown is not None else []
    ranked: list[tuple[int, str, str]] = []
    for depth, place in enumerate(places):
        for name in place.differing(rank.rank):
            text = place.values[name]
            level = verdict.parted or verdict.cause in _LEVEL
            part = _TEXT.fullmatch(text)
            if part is not None and any(part["text"] in whole for whole in polled):
                order = 0
            elif _COUNTER.fullmatch(text) and not level:
                continue  # one is further than the other
            elif name in place.conditions or (name in place.line and place.level and level):
                order = 1 + depth
            elif level and _is_setting(name, text):
                order = 1 + len(places) + depth
            else:
                continue
            if words := _apart(name, place, rank.rank):
                ranked.append((order, name, words))
    if not ranked:
        return "", "", False
    order, name, words = min(ranked, key=lambda one: one[0])
    return name, words, order == 0


def _is_setting(name: str, text: str) -> bool:
    """A switch of a table that all ranks have, which is no rank's own by its name."""
    return bool(_ENTRY.search(name)) and text in ("True", "False", "None") and not OF_RANK.search(name)


def _apart(name: str, place: _Place, rank: int) -> str:
    texts: dict[str, list[int]] = {place.values[name]: [rank]}
    for other, values in place.elsewhere.items():
        if name in values:
            texts.setdefault(values[name], []).append(other)
    parts = [f"{brief(text)} on {format_ranks(tuple(sorted(of)))}" for text, of in texts.items()]
    return (
        f"`{name}` was {', '.join(parts[:-1])} and {parts[-1]} when read" if len(parts) <= _MOST_APART else ""
    )


def _head(place: _Place, verdict: Verdict) -> list[str]:
    """Of the loop that the verdict names."""
    return [text for text in place.texts[1:] if f"the loop `{text}`" in verdict.words]


def brief(text: str) -> str:
    """
    >>> brief("PosixPath('/runs/ready')"), brief("timedelta(seconds=3)")
    ("'/runs/ready'", 'timedelta(seconds=3)')
    """
    inner = text.partition("(")[2].removesuffix(")")
    return inner if inner and "Path(" in text and inner[:1] in "'\"" else text


def _at_its_line(place: _Place, verdict: Verdict, differs: str) -> str:
    """ "its line is `PATTERN.search(text)`, `text` was 'aaaa' when read": what the loop or the line reads."""
    line = place.texts[0] if place.texts else ""
    loop = any(f"the loop `{text}`" in verdict.words for text in place.texts[1:])
    goes_round = any(text.startswith("while ") for text in place.texts[1:])
    head = read_by(place.values, _head(place, verdict))
    names = dict.fromkeys((*head, *place.named)) if goes_round else place.line
    known = in_words([name for name in names if name != differs], place.values, place.conditions)
    if not known:
        return ""
    where = "" if loop or f"`{line}`" in verdict.words else f"its line is `{line}`, "
    most = max(_MOST_IN_WORDS, min(len(head), _MOST_OF_LOOP)) if verdict.cause == "loops" else _MOST_IN_WORDS
    *first, last = known[:most]
    return f"{where}{', '.join(first)}{' and ' if first else ''}{last} when read"


def in_words(names: Iterable[str], values: Mapping[str, str], conditions: Sequence[str]) -> list[str]:
    """Each that can be told in a few words: "`left` was 3". Objects only of `conditions`."""
    return [
        _count(name, text) or f"`{name}` was {text}"
        for name in names
        if (text := brief(values[name])) != _HIDDEN and not says_little(text)
        if name in conditions or "=" not in text or not text.startswith("<")
        if len(text) <= _LONGEST_IN_WORDS
    ]


def _count(name: str, text: str) -> str:
    """ "`out` had 445 items" of a list whose first items say little."""
    found = _ITEMS.search(text)
    return f"`{name}` had {found['count']} items" if found is not None else ""
