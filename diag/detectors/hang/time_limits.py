"""Waits whose end is known: one sleep, or a call with a time limit. And what sleeps again and again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from diag.detectors.hang.conditions import deadline
from diag.detectors.hang.kernel_waits import wait_of
from diag.detectors.hang.partings import head_of, path_of
from diag.detectors.hang.verdict import Verdict, at_most
from diag.model import Confidence
from diag.model.observations import Block, ProgramPlace, VariablesRead
from diag.model.observations.waits import Wait
from diag.state.rank_view import RankView
from diag.state.stack_activity import Activity, format_frame
from diag.state.view import JobView
from diag.text.units import format_seconds, format_time

# Causes of a rank at a line of its own, or in a call of a library, that sleeps there.
_TIMED = (
    "poll",
    "condition",
    "semaphore",
    "child",
    "tcp_receive",
    "unix_receive",
    "pipe_read",
)  # of `Wait.kind`
_LEAST_SECONDS = 10.0  # ours: of a call; shorter ones are those of a loop that looks again
_LAST_ROUND_SECONDS = 5.0  # ours: of a loop that looks at a clock, the round that is under way then
_LATE_SECONDS = 2.0  # a thread may come to a core, and be seen, so late
# Ours: whoever sleeps, and holds nobody up, is waited for so long; and a rank for which others wait for a minute.
_LONGEST_SECONDS = 300.0
_LONGEST_FOR_OTHERS = 60.0


# The line says it also where a look at the kernel falls between two of them.
_OWN_SLEEPS = ("sleeps", "sleeps_once", "retries", "polls", "busy", "not_in_collective")
_SLEEP = re.compile(r"\bsleep\((?P<length>.+)\)$")
# A clock; the headers of an answer over HTTP (urllib, http.client, requests, httpx, aiohttp).
_TELLS = re.compile(
    r"\b(?:monotonic|perf_counter|time)(?:_ns)?\(\)|\bdatetime\.(?:now|utcnow)\(|\bheaders\b|\.getheader\(|retry[-_]after",
    re.IGNORECASE,
)


def with_known_end(verdict: Verdict, job: JobView, now: float) -> Verdict:
    """By the first culprit: the others of one class wait alike."""
    rank = verdict.culprit(job)
    if rank is None or verdict.blamed_child is not None:
        return verdict
    wait = _wait(rank, verdict, job)
    kind = wait.kind if wait is not None else ""
    outside = verdict.is_of("outside")
    if kind == "sleep" and (outside or verdict.cause in ("sleeps", "external_service")):
        ends = _sleeps_until(rank)
        if ends is None:
            return _trying(verdict, rank, job) if _has_woken(rank) else verdict
        return _ending(verdict, "sleeps_once", f"{_name(verdict)} sleeps until", ends, now)
    limited = kind in _TIMED and (outside or verdict.cause == "worker_ended")
    ends = _returns_at(rank, wait, verdict) if limited else None
    if ends is not None and ends > now:
        if verdict.cause == "worker_ended":  # it waits for something else, or has a limit for just that
            verdict = replace(verdict, words="")
        return _ending(verdict, "waits_with_limit", "that wait has a time limit: it ends by", ends, now)
    return verdict


def with_told_sleep(verdict: Verdict, job: JobView, now: float) -> Verdict:
    """Of a rank whose program sleeps as long as a clock or an answer over HTTP says, by its text: a quota, Retry-After."""
    rank = verdict.culprit(job)
    if rank is None or verdict.blamed_child is not None or verdict.cause not in _OWN_SLEEPS:
        return verdict
    path = path_of(rank.judged)
    place = job.program.at(path[-1]) if path else None
    length = _told(place) if place is not None else ""
    if place is None or not length:
        return verdict
    if verdict.cause == "sleeps_once":  # its end is told
        return replace(verdict, cause="sleeps_as_told", words=f"{verdict.words}, as long as `{length}` says")
    here = _here(rank)
    until = f" (this time until {format_time(here[-1][1], now)})" if here and here[-1][1] > now else ""
    times = f", and was seen in {len(here)} such sleeps" if len(here) > 1 else ""
    words = f"it sleeps as long as `{length}` says{until}{times}"
    words = " and ".join(filter(None, (words, verdict.words)))
    return replace(verdict, cause="sleeps_as_told", reason=None, words=words)


def _told(place: ProgramPlace) -> str:
    """How long, with the value of a name where one statement gives it; empty where no clock and no answer says that."""
    found = _SLEEP.search(place.text)
    if found is None:
        return ""
    meaning = place.meaning(found["length"])
    length = meaning.text if meaning is not None and meaning.kind == "value" else found["length"]
    named = [one.text for one in place.names if re.search(rf"(?<![\w.]){re.escape(one.name)}\b", length)]
    return length if any(map(_TELLS.search, (length, *named))) else ""


def with_deadline(verdict: Verdict, job: JobView, now: float) -> Verdict:
    """Of a rank in a loop that a clock ends, by the text and the values that were read of its variables. Of one that polls
    what it polls for stays the cause."""
    rank = verdict.culprit(job)
    if rank is None or verdict.blamed_child is not None or not verdict.is_of("loop"):
        return verdict
    read = job.program.variables(rank.rank, rank.placement.pid)
    if read is None or not read.time:
        return verdict
    for frame in reversed(path_of(rank.judged)):
        place = job.program.at(frame)
        values = {
            variable.name: variable.text
            for one in read.frames
            if not one.called and (one.file, one.function) == (frame.file, frame.function)
            for variable in one.variables
        }
        for loop in place.inside if place is not None and values else ():
            ends = _ends_at(place, loop, values, read)
            if ends is None or ends[0] + _LAST_ROUND_SECONDS <= now:
                continue
            until, latest = ends
            said = "it ends at the latest at" if latest else "it goes on until"
            where = f"the loop {head_of(loop, frame.file, job.run.cwd)} goes by a clock: {said}"
            if not verdict.is_of("polls"):
                found = _ending(replace(verdict, words="", reason=None), "loop_until_time", where, until, now)
            else:
                found = replace(_ending(verdict, verdict.cause, where, until, now), chain=verdict.chain)
            return replace(found, ends_at=until + _LAST_ROUND_SECONDS)
    return verdict


def _ends_at(
    place: ProgramPlace | None, loop: Block, values: Mapping[str, str], read: VariablesRead
) -> tuple[float, bool] | None:
    """By the clock of the host, as it was when the values were read; and whether the loop may end sooner: by another
    condition, or another way out of it."""
    if place is None or loop.kind != "while":
        return None
    ways = [one for one in place.leaves if one.loop == loop.line and one.word != "continue"]
    heads = [loop.text, *(one.under.text for one in ways if one.word == "break")]
    found = next((one for head in heads if (one := deadline(head, values)) is not None), None)
    if found is None:
        return None
    latest = found.latest or len(ways) > (0 if deadline(loop.text, values) is not None else 1)
    return found.at if found.clock == "time" else read.time + found.at - read.monotonic, latest


def patience_to_end(verdict: Verdict) -> float:
    """Seconds of silence until the wait is over by itself and has been looked at again; 0 where it is not known, or too
    far away."""
    if verdict.ends_at is None:
        return 0.0
    seconds = verdict.ends_at + _LATE_SECONDS - verdict.since
    return seconds if seconds <= (_LONGEST_FOR_OTHERS if verdict.waiting else _LONGEST_SECONDS) else 0.0


def _ending(verdict: Verdict, cause: str, words: str, ends: float, now: float) -> Verdict:
    text = f"{words} {format_time(ends, now)} ({format_seconds(max(0.0, ends - now))} from now)"
    confidence = at_most(verdict.confidence, Confidence.MEDIUM)
    words = " and ".join(filter(None, (text, verdict.words)))
    # One step of the chain is that wait itself, with what was left of it when it was read.
    chain = verdict.chain if verdict.chain is not None and len(verdict.chain.steps) > 1 else None
    return replace(verdict, cause=cause, confidence=confidence, ends_at=ends, words=words, chain=chain)


def _name(verdict: Verdict) -> str:
    return "it" if len(verdict.culprits) == 1 else f"rank {verdict.culprits[0]}"


def _wait(rank: RankView, verdict: Verdict, job: JobView) -> Wait | None:
    """Of its own thread. Where that waits for somebody without a limit of its own, that one's end is what counts."""
    chain = wait_of(rank, verdict, job)
    if chain is None or chain.behind is not None or chain.stays_in_job:
        return None
    first = chain.steps[0]
    return first.wait if first.thread.same and (len(chain.steps) == 1 or first.wait.timed) else None


def _here(rank: RankView) -> list[tuple[float, float]]:
    """Its sleeps since it is at this line, or in this call."""
    return [one for one in rank.sleeps if one[0] >= rank.stack_since - _LATE_SECONDS]


def _has_woken(rank: RankView) -> bool:
    """And is there again."""
    here = _here(rank)
    return len(here) > 1 or (bool(here) and here[0][1] + _LATE_SECONDS < min(rank.stack_at, rank.tree_at))


def _sleeps_until(rank: RankView) -> float | None:
    """Of one long sleep, as far as was seen."""
    here = _here(rank)
    long = bool(here) and here[0][1] - here[0][0] >= _LEAST_SECONDS / 2
    return here[0][1] if long and not _has_woken(rank) else None


def _trying(verdict: Verdict, rank: RankView, job: JobView) -> Verdict:
    """Of who sleeps again and again, and not by a sleep of the program's own: in a library, or in C code that its line
    has called, as a database that waits for a lock."""
    reading, frames = rank.reading, rank.judged.frames if rank.judged is not None else ()
    if reading is None or not frames:
        return verdict
    if reading.own is not None or reading.activity is Activity.SERVICE:
        words = f"{_name(verdict)} sleeps in {format_frame(frames[-1], job.run.cwd)}, not for the first time"
    elif (place := job.program.at(frames[-1])) is not None and "sleep" not in place.text.lower():
        words = f"the call in `{place.text}` sleeps again and again by itself"
    else:
        return verdict
    return replace(verdict, cause="tries_again", by_kernel=True, words=verdict.words or words)


def _returns_at(rank: RankView, wait: Wait | None, verdict: Verdict) -> float | None:
    """At the latest: since when it has been in this call is known where its main thread has not woken once."""
    if wait is None or not wait.timed or wait.seconds is None:
        return None
    began, seen = rank.asleep
    asleep = not rank.thread and wait.kind == "poll" and began < rank.waits_at <= seen + _LATE_SECONDS
    ends = (began if asleep else rank.waits_at) + wait.seconds
    return ends if ends - verdict.since >= _LEAST_SECONDS else None
