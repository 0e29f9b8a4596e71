"""Which known troubles a hang looks like: versions and a frame, the operation, a variable or a flag, all as they were read.

They are told beside the verdict and change nothing of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from diag.detectors.hang.verdict import Verdict
from diag.knowledge.known_troubles import Facts, Trouble, at_a_hang, packages_of
from diag.state.rank_view import RankView
from diag.state.view import JobView

_MOST = 2
_MOST_RANKS = 4
# Where all that the ranks show is that they wait for each other, a variable or the operation may tell more.
_OPEN = ("unknown", "gpu_side", "comm_init", "network_transport")
# /usr/lib/aarch64-linux-gnu/libc.so.6, _posixsubprocess.cpython-312-x86_64-linux-gnu.so
_MACHINE = re.compile(r"\b(x86_64|aarch64)-linux-gnu\b")


def known_troubles(verdict: Verdict, job: JobView) -> Iterator[str]:
    """A sentence each: which, what fits, what happens, what helps, and where it is reported. Frames of ranks that wait for a
    culprit tell nothing: until it comes they may well be held up at that place."""
    ranks = job.ranks.known((verdict.culprits or verdict.waiting)[:_MOST_RANKS])
    told: set[str] = set()
    for rank in ranks:
        facts = _facts(rank, verdict, job)
        for one in at_a_hang(facts):
            if one.id in told or len(told) == _MOST or not (one.frames or _is_open(verdict)):
                continue
            told.add(one.id)
            yield _sentence(one, facts, rank)


def _is_open(verdict: Verdict) -> bool:
    return not verdict.culprits or verdict.klass in _OPEN


def _sentence(one: Trouble, facts: Facts, rank: RankView) -> str:
    there = one.there(facts)
    if one.frames:
        there += f", rank {rank.rank}: {one.frame_in(facts.frames)}"
    elif one.operations:
        there += f", {facts.operation}"
    return one.said(there)


def _facts(rank: RankView, verdict: Verdict, job: JobView) -> Facts:
    seen = job.software.seen
    installed = {
        name: found for name, found in (seen.packages if seen and seen.packages else ()) if " " not in found
    }
    packages = packages_of(installed) | dict(job.log.versions)
    if job.nccl.version:
        packages["nccl"] = job.nccl.version
    frames = [*_frames(rank, verdict)]
    front = verdict.collectives.front if verdict.collectives is not None else None
    return Facts(
        packages,
        job.run.machine or _machine_of(frames),
        rank.variables,
        job.run.words,
        frames,
        front.op if front is not None else "",
        max(job.world_size, len(job.ranks)),
    )


def _frames(rank: RankView, verdict: Verdict) -> Iterator[str]:
    """Innermost first, of all threads; those of C code only where they were read while it stood."""
    for thread in rank.stack.threads if rank.stack is not None else ():
        yield from (f"{frame.function} {frame.file}" for frame in reversed(thread.frames))
    if rank.native_at >= verdict.since:
        yield from rank.native


def _machine_of(frames: list[str]) -> str:
    found = {match[1] for frame in frames if (match := _MACHINE.search(frame))}
    return found.pop() if len(found) == 1 else ""
