"""What the Flight Recorders of all ranks show together: who is waited for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from diag.detectors.hang.partings import path_of
from diag.detectors.hang.pipeline import Messages, awaited_message, is_between_stages, pipeline_fronts
from diag.detectors.hang.rank_wait import WAITS
from diag.detectors.hang.verdict import Verdict, blaming, others, undecided
from diag.knowledge.flags import pipeline_parallel_size
from diag.model import Confidence
from diag.model.observations import FlightRecorder, LayoutReported, RankFound
from diag.state.call_order import passed_calls
from diag.state.collective_fronts import Front
from diag.state.stack_activity import Activity
from diag.state.view import JobView
from diag.state.wait_graph import Explanation, WaitGraph, build

# A reading older than this means nothing now; under suspicion they come every 30 s.
_FRESH_SECONDS = 90.0
_RANKS_A_SECOND = 1024  # ours, put into graphs; a graph of 8,192 ranks takes a second or two
_MOST_COMPARED = 64  # ranks whose calls are held against what they called before
_WAITING = (Activity.COLLECTIVE, Activity.GPU_SYNC)


class Collectives:
    """Keeps the last two readings of each rank: what is in both of them does not move."""

    listens = (RankFound, LayoutReported, FlightRecorder)

    def __init__(self) -> None:
        self._last: dict[int, tuple[float, FlightRecorder]] = {}
        self._before: dict[int, tuple[float, FlightRecorder]] = {}
        self._stages: int | None = None  # of the pipeline, as the command line or the log says
        self._messages = Messages()
        self._explain_at = 0.0
        self._explained: tuple[tuple[object, ...], Explanation | None] = ((), None)

    def observe(self, at: float, fact: RankFound | LayoutReported | FlightRecorder) -> None:
        if isinstance(fact, RankFound):
            self._stages = pipeline_parallel_size(fact.command) or self._stages
        elif isinstance(fact, LayoutReported):
            self._stages = fact.stages
        elif fact.rank is not None:
            # not the same one reported again
            if fact.rank in self._last and self._last[fact.rank][1].emitted != fact.emitted:
                self._before[fact.rank] = self._last[fact.rank]
            self._last[fact.rank] = (at, fact)

    def explain(self, now: float, job: JobView, *, once: bool = False) -> Explanation | None:
        """What all ranks' calls come to. A circle of sends and receives that stacks show needs no recorder."""
        return self._messages.explain(job, once=once) or self._recorded(now, job, once=once)

    def _recorded(self, now: float, job: JobView, *, once: bool) -> Explanation | None:
        """None before every living rank that has a recorder was read twice, or when nothing is certain.
        `once`: evidence that is one moment has one reading."""
        living = {rank.rank: rank.placement.pid for rank in job.alive_ranks()}
        last = self._of(self._last, living, now)
        before = last if once else self._of(self._before, living, now)
        if not last or set(last) != set(before):
            return None
        key = tuple((rank, at, job.ranks[rank].stack_signature) for rank, (at, _) in sorted(last.items()))
        # Readings of many nodes come one after the other: with each of them the graph of a large job would be
        # made anew.
        if self._explained[0] != key and (now >= self._explain_at or not self._explained[0]):
            self._explain_at = now + len(living) / _RANKS_A_SECOND
            size = max(job.world_size, len(living))
            earlier = build({rank: fact for rank, (_, fact) in before.items()}, world_size=size)
            graph = build({rank: fact for rank, (_, fact) in last.items()}, world_size=size).still(earlier)
            graph = graph.joined_by(self._between_stages(job, size))
            dumps = {rank: fact for rank, (_, fact) in last.items()}
            found = _with_passed(graph.explain(), graph, dumps, job)
            # gloo's recorder names no members: they are guessed from who called. With every rank's dump at
            # hand the guess can only miss a rank that never called in the group; the verdict is then less
            # sure, not wrong.
            usable = found.certain or not graph.no_dump
            self._explained = (key, found if usable and found.kind != "no_pending" else None)
        return self._explained[1]

    def _between_stages(self, job: JobView, world_size: int) -> list[Front]:
        if self._stages is None or self._stages < 2:
            return []
        waiting = [rank for rank in job.alive_ranks() if rank.activity in _WAITING]
        return pipeline_fronts(waiting, world_size, self._stages)

    def _of(
        self, readings: dict[int, tuple[float, FlightRecorder]], living: dict[int, int], now: float
    ) -> dict[int, tuple[float, FlightRecorder]]:
        return {
            rank: (at, fact)
            for rank, (at, fact) in readings.items()
            if rank in living and fact.pid in (0, living[rank]) and now - at < _FRESH_SECONDS
        }


def _with_passed(
    found: Explanation, graph: WaitGraph, dumps: Mapping[int, FlightRecorder], job: JobView
) -> Explanation:
    """Of calls that do not fit together, whoever has come to another one than it came to before. Where most ranks have,
    they went there together, and what they did before tells nothing of the others; ranks at one line of their program
    have left none out, they come to the same ones in another order."""
    involved = {rank for rank in found.waiting if rank in dumps}
    compared = sorted({*found.culprits} & involved if len(involved) > _MOST_COMPARED else involved)
    if found.kind not in ("order_cycle", "mismatch") or len(compared) > _MOST_COMPARED:
        return found
    passed = passed_calls(graph.fronts, dumps, compared)
    if found.kind == "mismatch":
        passed = [one for one in passed if one.front == found.front]
    ranks = tuple(one.rank for one in passed)
    paths = [path_of(rank.judged) for rank in job.ranks.known(sorted(involved))]
    at_one_line = bool(paths) and bool(paths[0]) and all(path == paths[0] for path in paths)
    if not ranks or 2 * len(ranks) > len(involved):
        return found
    if all(one.resized for one in passed):
        return replace(found, culprits=ranks)
    return found if at_one_line else replace(found, culprits=ranks, passed=tuple(passed))


def with_collectives(
    verdict: Verdict, found: Explanation | None, states: dict[int, str], job: JobView
) -> Verdict:
    """Stacks show where ranks are, the Flight Recorder who has not come: two channels that should agree.

    A rank that died, stopped or is stuck in its shutdown outranks what it did not call; so does a block that
    explains itself (data, a lock, a save). The recorder decides where the stacks see all ranks waiting alike.
    """
    if found is None or verdict.klass in ("peer_lost", "stopped", "teardown", "rendezvous"):
        return verdict
    everyone = verdict.everyone
    own = [rank for rank in everyone if states.get(rank) not in (*WAITS, "blind")]
    all_wait = not own or (
        found.kind in ("mismatch", "order_cycle")
        and all(states.get(rank) == "outside" and _waits_unnamed(rank, found, job) for rank in own)
    )
    in_order = bool(found.passed) and all(one.seen_next for one in found.passed)
    if all_wait and (in_order or (found.passed and found.kind == "order_cycle")):
        return _decided(verdict, found, "collective_mismatch", "call_skipped", Confidence.MEDIUM)
    if found.kind == "mismatch" and all_wait:
        sure = Confidence.HIGH if 2 * len(found.culprits) < len(everyone) else Confidence.MEDIUM
        return _decided(verdict, found, "collective_mismatch", "calls_differ", sure)
    if found.kind == "order_cycle" and all_wait:
        sure = Confidence.HIGH if found.certain else Confidence.MEDIUM
        return _decided(verdict, found, "collective_order_deadlock", "groups_in_opposite_order", sure)
    if found.kind == "message_circle" and all_wait:
        # That they wait for each other is certain; whose call is wrong is concluded from what the others wait for.
        named = found.circle is not None and len(found.culprits) < len(found.circle.ranks)
        sure = Confidence.MEDIUM if named or not found.certain else Confidence.HIGH
        return _decided(verdict, found, "collective_mismatch", "messages_do_not_match", sure)
    if found.kind == "absent_rank":
        unrecorded = tuple(
            rank for rank in found.culprits if states.get(rank) == "joined" and _is_in_a_call(rank, job)
        )
        if all_wait and unrecorded:
            return _unanswered(verdict, found, unrecorded, job)
        if all_wait:
            return _decided(verdict, found, "peer_not_joined", "not_in_collective", Confidence.MEDIUM)
        if set(verdict.culprits).intersection(found.culprits):
            return _without_those_in_a_call(verdict, found)
    if found.kind == "all_joined" and undecided(verdict) and found.certain:
        return replace(verdict, collectives=found)
    return verdict


def _waits_unnamed(number: int, found: Explanation, job: JobView) -> bool:
    """In a call that no table names, which looks like code of its own. On a GPU calls are made ahead: a rank that is
    elsewhere has one pending as well, and is not on a futex, as whoever waits in gloo."""
    return number in found.waiting and number in job.ranks and job.ranks[number].on_futex


def _without_those_in_a_call(verdict: Verdict, found: Explanation) -> Verdict:
    """Of ranks that all seem to be in code of their own, those wait that the recorder has in a call which others have
    not made: the call is one that no table names."""
    joined = tuple(rank for rank in verdict.culprits if rank in found.waiting and rank not in found.culprits)
    return replace(
        verdict,
        klass="peer_not_joined" if joined and verdict.klass == "unknown" else verdict.klass,
        culprits=others(verdict.culprits, joined),
        waiting=tuple(sorted({*verdict.waiting, *joined})),
        collectives=found,
    )


def _is_in_a_call(number: int, job: JobView) -> bool:
    """By its own frames, or the text. A rank in the autograd engine only may be: of that the recorder knows better."""
    rank = job.ranks.get(number)
    return rank is not None and (rank.activity is Activity.COLLECTIVE or bool(awaited_message(rank, job)))


def _unanswered(verdict: Verdict, found: Explanation, ranks: tuple[int, ...], job: JobView) -> Verdict:
    """Missing in the recorder, yet their stacks stand in a call: a send or receive, which gloo's recorder
    does not keep. Between pipeline stages of an unknown layout the peer is not known either; elsewhere,
    nobody answers this call."""
    absent = tuple(rank for rank in found.culprits if rank not in ranks)
    if absent:
        found = replace(found, culprits=absent)
        return _decided(verdict, found, "peer_not_joined", "not_in_collective", Confidence.MEDIUM)
    if any(map(is_between_stages, job.ranks.known(ranks))):
        return verdict
    if found.waiting and len(found.waiting) < len(ranks):
        # As many as have gone on to a collective: the fewer of two kinds of ranks are more likely wrong.
        ahead = replace(found, culprits=tuple(sorted(found.waiting)))
        return _decided(verdict, ahead, "collective_mismatch", "calls_differ", Confidence.MEDIUM)
    return _decided(verdict, found, "collective_mismatch", "call_unanswered", Confidence.MEDIUM)


def _decided(verdict: Verdict, found: Explanation, klass: str, cause: str, confidence: Confidence) -> Verdict:
    return blaming(verdict, found.culprits, klass, cause, confidence, blamed_child=None, collectives=found)
