"""Ranks that wait in the first call of a group: NCCL makes a group's communicator there, all its members together, and
no recorder has the call before that is done. NCCL's log shows who has begun, the kernel who still waits for the id.

The first rank of a group makes the id and puts it into the job's store, then begins; the others fetch it there first
(torch 1.8-2.13, ProcessGroupNCCL; a point-to-point call: the lower rank of the two).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from diag.detectors.hang.kernel_waits import lasting_wait
from diag.detectors.hang.messages import call_of
from diag.detectors.hang.verdict import Note, Verdict, blaming, format_who
from diag.model import Confidence
from diag.state.collective_fronts import Front
from diag.state.ncclprocess import Communicator
from diag.state.rank_view import RankView
from diag.state.stack_activity import Activity
from diag.state.view import JobView
from diag.state.wait_graph import Explanation, most_waited_for
from diag.text.units import format_ranks

_MOST_GROUPS = 4
_SAMPLED_SECONDS = 15.0  # ours: a call is older than the first stack that shows it, by a few samples at most
_ARRIVES_SECONDS = 2.0  # ours: an id that was put into the store has come to all by then
# What the recorder alone makes of a rank that waits for a communicator: its call is not there.
_BY_RECORDER = ("call_unanswered", "not_in_collective")


@dataclass(frozen=True, slots=True)
class _Need:
    """These ranks wait until `least` of `candidates` have come; which ones of them, is not known where they are more."""

    ranks: tuple[int, ...]
    candidates: frozenset[int]
    least: int


@dataclass(frozen=True, slots=True)
class _Making:
    """`begun`: of each communicator that members are missing in, those that have begun it. `fetching`: ranks that wait
    at the store for the id of one."""

    begun: dict[str, dict[int, Communicator]]
    fetching: tuple[int, ...]

    @property
    def ranks(self) -> frozenset[int]:
        return frozenset((*self.fetching, *(rank for members in self.begun.values() for rank in members)))


def with_communicators(verdict: Verdict, found: Explanation | None, job: JobView) -> Verdict:
    """`found`: what the recorder says, to which the calls that are in no recorder are added here."""
    undecided = verdict.klass == "unknown" and not verdict.culprits
    by_recorder = verdict.collectives is not None and verdict.cause in _BY_RECORDER
    if not (undecided or by_recorder):
        return verdict
    making = _making(verdict, job)
    if not making.ranks or not (undecided or making.ranks.issuperset(verdict.culprits)):
        return verdict
    everyone = tuple(sorted(set(verdict.everyone)))
    needs = _needs(making, found, job)
    stuck = _stuck(needs)
    if stuck and stuck.issuperset(everyone):
        culprits = _culprits(needs, making, stuck)
        cause = "communicators_wait_for_each_other"
        sure = Confidence.HIGH if making.begun and making.fetching else Confidence.MEDIUM
        return _described(blaming(verdict, culprits, "comm_init", cause, sure), making, job)
    if not undecided:
        return verdict
    late = tuple(rank for rank in everyone if rank not in making.ranks)
    if late and all(_waits_for_its_gpu(rank, job) for rank in late):
        described, cause = _described(verdict, making, job), "not_in_collective"
        return blaming(described, late, "peer_not_joined", cause, Confidence.MEDIUM, words="")
    cause = "communicator_not_made" if verdict.cause == "all_ranks_wait" else verdict.cause
    return _described(replace(verdict, cause=cause), making, job)


def _making(verdict: Verdict, job: JobView) -> _Making:
    begun: dict[str, dict[int, Communicator]] = {}
    in_one: set[int] = set()
    latest = verdict.since
    for number, process in job.nccl_processes.placed().items():
        rank = job.ranks.get(number)
        if rank is None or not rank.alive or not _is_in_a_call(rank):
            continue
        for communicator in process.communicators.values():
            # one that was given up earlier has no line for that
            if communicator.began is None or communicator.began[0] < rank.stack_since - _SAMPLED_SECONDS:
                continue
            in_one.add(number)
            latest = max(latest, communicator.began[0] + _ARRIVES_SECONDS)
            if communicator.comm_id:  # one that is split off has none in most versions
                begun.setdefault(communicator.comm_id, {})[number] = communicator
    missed = {
        name: members
        for name, members in begun.items()
        if len(members) < max(member.size for member in members.values())
    }
    fetching = (number for number in verdict.everyone if number not in in_one)
    return _Making(missed, tuple(sorted(rank for rank in fetching if _fetches_an_id(rank, latest, job))))


def _is_in_a_call(rank: RankView) -> bool:
    return rank.activity is not None and rank.activity.waits_for_peers


def _fetches_an_id(number: int, since: float, job: JobView) -> bool:
    """In a call of its GPU's, and at the job's store: no call that has its communicator goes there. Read later than
    what others began, which may have been what it waited for."""
    rank = job.ranks.get(number)
    if rank is None or not _is_in_a_call(rank) or not (rank.on_gpu or number in job.nccl_processes.placed()):
        return False
    chain = lasting_wait(rank, since, job)
    if chain is None or chain.end != "store" or len(chain.steps) > 1:
        return False
    wait = chain.last.wait
    return (
        chain.last.thread.same and not wait.unsent_bytes and not wait.retransmits
    )  # the store has its question


def _needs(making: _Making, found: Explanation | None, job: JobView) -> list[_Need]:
    everybody = frozenset(range(max(job.world_size, len(job.ranks))))
    needs = [
        _Need(
            tuple(sorted(members)),
            everybody - set(members),
            max(member.size for member in members.values()) - len(members),
        )
        for members in making.begun.values()
    ]
    needs += [_Need((rank,), everybody - {rank}, 1) for rank in making.fetching]
    if found is not None and found.kind == "absent_rank":
        recorded = tuple(sorted(set(found.waiting) - making.ranks - set(found.culprits)))
        needs += [_Need(recorded, frozenset(found.culprits), 1)] if recorded else []
    return needs


def _stuck(needs: list[_Need]) -> frozenset[int]:
    """Ranks of which none can go on before another one of them does: whoever might be released from outside, and all
    that these could release in turn, are taken away."""
    stuck = frozenset(rank for need in needs for rank in need.ranks)
    while True:
        released = {
            rank for need in needs if len(need.candidates - stuck) >= need.least for rank in need.ranks
        }
        if not released & stuck:
            return stuck
        stuck -= released


def _culprits(needs: list[_Need], making: _Making, stuck: frozenset[int]) -> tuple[int, ...]:
    """Whom most wait for; all of them where it is not known who is missing in a communicator that some have begun."""
    fronts = []
    for need in needs:
        missing = need.candidates
        fetches = set(need.ranks) <= set(making.fetching)
        if fetches:  # from a rank below, at last from one that does not fetch
            below = {rank for rank in missing if rank < need.ranks[0]} - set(making.fetching)
            missing = frozenset(below) or missing
        elif making.ranks.issuperset(need.ranks) and len(missing) > need.least:
            return tuple(sorted(stuck))
        fronts.append(Front("nccl", "", "", 0, "", False, need.ranks, tuple(sorted(missing)), ()))
    return most_waited_for(fronts, set(stuck))


def _waits_for_its_gpu(number: int, job: JobView) -> bool:
    """For its own work: it has no call pending, and is in none."""
    rank = job.ranks.get(number)
    return (
        rank is not None
        and rank.activity is Activity.GPU_SYNC
        and rank.recorder is not None
        and not any(entry.pending for entry in rank.recorder.entries)
    )


# --- in words


def _described(verdict: Verdict, making: _Making, job: JobView) -> Verdict:
    parts = []
    notes = []
    for members in making.begun.values():
        ranks = tuple(sorted(members))
        size = max(member.size for member in members.values())
        parts.append(
            f"{format_who(ranks, '[has|have]')} begun a communicator of {size} ranks{_in_call(ranks, verdict, job)}"
        )
        began = members[ranks[0]].began
        if began is not None:
            notes.append(Note("nccl", began[1].text[:300], ranks[0]))
    calls: dict[str, list[int]] = {}
    for rank in making.fetching:
        calls.setdefault(_in_call((rank,), verdict, job), []).append(rank)
    parts += [
        f"{format_who(ranks, '[waits|wait]')}{call} for another rank to begin a communicator"
        for call, ranks in calls.items()
    ]
    words = ", ".join(parts[:_MOST_GROUPS]) + (" ..." if len(parts) > _MOST_GROUPS else "")
    if unread := _without_log(making, job):
        words += f" (not checked: NCCL's log of {format_ranks(unread)}, which NCCL_DEBUG=INFO writes)"
    return replace(verdict, words=words).noted(*notes[:3])


def _in_call(ranks: tuple[int, ...], verdict: Verdict, job: JobView) -> str:
    """Not of those for which the sentence has it anyhow."""
    if verdict.culprits and ranks[0] in verdict.waiting:
        return ""
    call = call_of(job.ranks[ranks[0]].reading, job.run.cwd)
    return f" in {call}" if call else ""


def _without_log(making: _Making, job: JobView) -> tuple[int, ...]:
    placed = job.nccl_processes.placed()
    return tuple(
        sorted(
            rank.rank
            for rank in job.alive_ranks()
            if rank.rank not in making.ranks and not (rank.rank in placed and placed[rank.rank].talks)
        )
    )
