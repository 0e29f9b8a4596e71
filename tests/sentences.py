"""What no finding may say: words about others where there are none, a place where a rank is not, a verb that
does not agree.

`watched()` holds every finding that an engine of a test comes to against it, whatever evidence the test
tells.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from diag.engine.engine import Engine
from diag.model import Change, ChangeKind, Finding
from diag.state.rank_view import RankView
from diag.state.stack_activity import Activity
from diag.state.view import JobView

_OTHERS = re.compile(r"\bthe others\b|\ball others\b|\bothers'|\bother ranks?\b")
_LIST = r"\d+(?:-\d+)?(?:, \d+(?:-\d+)?)*"
_FEWER = r"(?:, \.\.\. \(\d+ of them\))?"
_RANKS = rf"[Rr]anks? (?P<ranks>{_LIST}){_FEWER}"
_DISAGREE = (
    re.compile(r"\b[Rr]ank \d+-\d+\b"),
    re.compile(r"\b[Rr]anks \d+(?![\d-])(?!, (?:\d|\.\.\.))"),
    re.compile(
        rf"(?<!of )(?<!on )\b[Rr]anks {_LIST}{_FEWER} "
        r"(?:is|has|was|does|waits|holds|runs|calls|uses|sleeps|moves)\b"
    ),
    re.compile(r"(?<!of )(?<!on )\b[Rr]ank \d+ (?:are|have|were|do|wait|hold|run|call|use|sleep|move)\b"),
)
_TEMPLATE = re.compile(r"\[[^|\]]*\|[^|\]]*\]|\{\w*\}")
_INSIDE = r"(?:[^()]*\([^()]*\)(?: of its [^,]+)?, inside (?P<inner>[\w.<>]+) \()?"
_IN = re.compile(
    _RANKS
    + r"(?: (?:has|have) [\w ']*?)? (?:in(?:side)?) (?!training \()(?P<function>[\w.<>]+)(?= \()"
    + _INSIDE
)
_WAITS_IN = re.compile(_RANKS + r" waits? in (?P<function>[\w.<>]+)")
_ALL_IN = re.compile(
    r"^(?:all \d+ ranks|the only rank) seen (?:has|have) waited in (?P<function>[\w.<>]+)(?= \()" + _INSIDE
)
_CHILD_IN = re.compile(r"pid (?P<pid>\d+), which is blocked(?: in a lock)? in (?P<function>[\w.<>]+) \(")
_HOOK = re.compile(r"_diag_hook|diag/launch/inject")  # diag's own frames are no place of the job
_IN_CALL = re.compile(r"rank \d+ waits in (\w+ \d+ of [^;:]+?)(?=, rank \d|[;:]|$)")
_OF_ONE_CALL = re.compile(r"\bthe call (?:that|in which) ranks? ")
_TELLS = (", which ", " is in ", "there is no such process any more", "which is another process since")
_COMPOSED = ("proc", "stacks", "flight_recorder", "nvml")  # kinds of evidence that are diag's own words
# Its advice tells what other ranks print after a death, in every world.
_NOT_HELD = ("rank-died",)


@contextmanager
def watched() -> Iterator[None]:
    """Every engine of this process, until the end."""
    check = Engine._check

    def checked(self: Engine, now: float) -> list[Change]:
        changes = check(self, now)
        for change in changes:
            if change.kind is ChangeKind.RESOLVED:  # it was true until now
                continue
            wrong = faults(change.finding, self.job)
            assert not wrong, (
                f"{change.finding.id}: {'; '.join(wrong)}\n{change.finding.summary}\n{change.finding.advice}"
            )
        return changes

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "_check", checked)
        yield


def faults(finding: Finding, job: JobView) -> list[str]:
    """What is wrong with its words; nothing of rules', which their authors write."""
    if finding.rule or finding.reported_by or finding.id in _NOT_HELD:
        return []
    composed = [item.excerpt for item in finding.evidence if item.kind in _COMPOSED]
    wrong = []
    for text in (finding.summary, finding.advice, *composed):
        wrong += [f"does not agree: {found[0]!r}" for form in _DISAGREE if (found := form.search(text))]
        if _OTHERS.search(text) and not _others_exist(finding, job):
            wrong.append(f"there are no others: {text!r}")
    if finding.id in ("hang", "held-up"):
        wrong += _misplaced(finding, job)
        wrong += _beyond_evidence(finding, job)
        own_words = (
            re.sub("`[^`]*`", "", finding.summary) + finding.advice
        )  # the program may have templates of its own
        wrong += [f"not filled in: {left[0]}" for left in _TEMPLATE.finditer(own_words)]
        if "before the process group was up" in finding.summary and _group_seen(job):
            wrong.append("a process group was seen")
    return wrong


def _beyond_evidence(finding: Finding, job: JobView) -> Iterator[str]:
    places = [
        item.excerpt for item in finding.evidence if item.kind in (*_COMPOSED, "remote_stack", "variables")
    ]
    for text in (finding.summary, finding.advice, *places):
        if _HOOK.search(text):
            yield f"a frame of diag's own hook: {text!r}"
    if "(above)" in finding.advice and not any(word in finding.summary for word in _TELLS):
        yield "nothing stands above"
    calls = {
        call
        for item in finding.evidence
        if item.kind == "flight_recorder"
        for call in _IN_CALL.findall(item.excerpt)
    }
    if len(calls) > 1 and _OF_ONE_CALL.search(finding.advice):
        yield f"they are in several calls: {sorted(calls)}"
    backward = any(rank.activity is Activity.BACKWARD for rank in job.ranks.values())
    if (
        re.search(r" in training[,;: (]", finding.summary)
        and not backward
        and job.phases.marked != "training"
    ):
        yield "nothing shows a step"


def _others_exist(finding: Finding, job: JobView) -> bool:
    if finding.id in ("hang", "held-up"):
        return bool(finding.waiting_ranks)
    return (
        bool(finding.waiting_ranks)
        or len(finding.ranks) < max(job.world_size, len(job.ranks))
        or len(job.cluster.nodes) > 1
    )


def _misplaced(finding: Finding, job: JobView) -> Iterator[str]:
    """Functions that are in no stack of a rank that they are told of."""
    subject, _, waiting = finding.summary.partition("; ")
    named = [
        (numbers(found["ranks"]), found[part])
        for found in _IN.finditer(subject)
        for part in ("function", "inner")
    ]
    named += [(numbers(found["ranks"]), found["function"]) for found in _WAITS_IN.finditer(waiting)]
    named += [
        (finding.waiting_ranks, found[part])
        for found in _ALL_IN.finditer(subject)
        for part in ("function", "inner")
    ]
    for ranks, function in named:
        for number in ranks:
            if function and number in job.ranks and function not in _functions(job.ranks[number]):
                yield f"rank {number} is not in {function}"
    for found in _CHILD_IN.finditer(subject):
        children = {
            pid: sample for rank in job.ranks.values() for pid, (_, sample) in rank.child_stacks.items()
        }
        sample = children.get(int(found["pid"]))
        main = sample.main if sample is not None else None
        if main is None or found["function"] not in [frame.function for frame in main.frames]:
            yield f"child {found['pid']} is not in {found['function']}"


def _functions(rank: RankView) -> set[str]:
    frames = list(rank.judged.frames) if rank.judged is not None else []
    if not frames and rank.reading is not None and rank.reading.where is not None:
        frames = [rank.reading.where]  # of another node only that is told
    return {frame.function for frame in frames}


def _group_seen(job: JobView) -> bool:
    recorded = any(rank.recorder is not None and rank.recorder.groups for rank in job.ranks.values())
    return (
        recorded
        or job.nccl.lines > 0
        or any(_functions(rank) & {"all_reduce", "barrier"} for rank in job.ranks.values())
    )


def numbers(text: str) -> list[int]:
    """
    >>> numbers("0-2, 5")
    [0, 1, 2, 5]
    """
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found
