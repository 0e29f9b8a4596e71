"""A job on Ray: whom its driver waits for, over actors to whoever does not answer; what Ray has no room for; and an actor
whose call is over while its peers wait for it. A worker between two calls, Ray's daemons and a driver that waits are idle
by design: none of them is to blame for that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from diag.detectors.hang.rank_wait import WAITS, classify_rank
from diag.detectors.hang.verdict import Note, Verdict, others
from diag.detectors.hang.wait_text import format_chain
from diag.model import Confidence
from diag.model.observations import Frame, RayDemand, RayProcess, ThreadStack
from diag.state.own_code import own_frames
from diag.state.rank_view import RankView
from diag.state.ray import RayChain, at_work, in_loop, place_of
from diag.state.stack_activity import format_frame
from diag.state.view import JobView
from diag.text.units import format_number, format_path, format_ranks

_FRESH_SECONDS = 60.0  # ours: readings come every 5 to 10 s
_SHOWN = 3
_IN_BYTES = ("memory", "object_store_memory")
_COMMAND = 60
_FRAMES = 5
_DECORATORS = ("wrapper", "auto_init_wrapper")  # around ray.get, ray 2.x


def waits_for_a_task(rank: RankView) -> bool:
    """Its process is a worker of Ray's that runs none now, and no thread of it is in the program either: Ray Train trains in
    one, and its main thread waits for questions."""
    judged = rank.judged
    if judged is None or rank.stack is None or not in_loop(judged):
        return False
    return not any(own_frames(one.frames) for one in rank.stack.threads if one is not judged)


def without_idle(alive: list[RankView], job: JobView) -> list[RankView]:
    """Who may hold anybody up: without those between two calls, unless somebody waits for them in a call among ranks; and
    without a driver that was taken for a rank, which waits for others."""
    driver = [one for one in alive if not one.distributed and _is_driver_that_waits(one, job)]
    alive = [one for one in alive if one not in driver]
    idle = [one for one in alive if waits_for_a_task(one)]
    if not idle or any(classify_rank(one) in WAITS for one in alive):
        return alive
    return [one for one in alive if one not in idle]


def _is_driver_that_waits(rank: RankView, job: JobView) -> bool:
    driver = job.ray.process(rank.placement.pid)
    return driver is not None and driver.kind == "driver" and _in_ray(rank.judged)


def _in_ray(thread: ThreadStack | None) -> bool:
    return (
        thread is not None and bool(thread.frames) and format_path(thread.frames[-1].file).startswith("ray/")
    )


def waiting_driver(job: JobView, now: float) -> Verdict | None:
    """None where a rank is at work, or where the end of the driver's wait is not known or may come."""
    ray = job.ray
    if ray.seen is None or now - ray.at > _FRESH_SECONDS or job.cluster.nodes:
        return None
    if any(one.distributed and not waits_for_a_task(one) for one in job.alive_ranks()):
        return None
    drivers = [*ray.of_kind("driver")]
    chain = ray.chain_of(drivers[0], _ranks(job)) if len(drivers) == 1 else None
    if chain is None or chain.end not in ("pending", "stands"):
        return None
    cause = "ray_has_no_room" if chain.end == "pending" else "ray_call_stands"
    if (
        chain.waits is not None
        and len(chain.waits.steps) > 1
        and chain.waits.last.process.pid != chain.last.pid
    ):
        cause = "ray_service_silent"
    call = _call(drivers[0], job)
    subject = f"the driver (pid {drivers[0].pid}) has waited in {call}"
    verdict = Verdict("resource_wait", (), (), cause, chain.since, Confidence.HIGH, subject=subject)
    words = _words(chain, job)
    return replace(verdict, words=words).noted(*_notes(chain, job))


def with_ray(verdict: Verdict, job: JobView) -> Verdict:
    """A rank to blame that is an actor: between two calls, or in a call of Ray's in its turn."""
    first = verdict.culprit(job)
    if first is None or not verdict.waiting:
        return verdict
    ranks = job.ranks.known(verdict.culprits)
    idle = [one for one in ranks if waits_for_a_task(one)]
    if idle and len(idle) == len(ranks) == len(verdict.culprits):
        words = ", ".join(_actor(one, job) for one in idle[:_SHOWN])
        return replace(
            verdict, klass="peer_not_joined", cause="ray_actor_left", words=words, chain=None, blamed_child=None, reason=None,
        )  # fmt: skip
    actor = job.ray.process(first.placement.pid)
    if actor is None or len(ranks) != 1 or not _in_ray(first.judged):
        return verdict
    joined = [one.placement.pid for one in job.ranks.known(verdict.waiting)]
    chain = job.ray.chain_of(actor, _ranks(job), joined)
    if chain is None or chain.end not in ("pending", "stands"):
        return verdict
    cause = "ray_has_no_room" if chain.end == "pending" else "ray_call_stands"
    return replace(
        verdict, klass="resource_wait", cause=cause, words=_words(chain, job), chain=None,
        waiting=others(verdict.everyone, verdict.culprits), since=max(verdict.since, chain.since), reason=None,
    ).noted(*_notes(chain, job))  # fmt: skip


def _ranks(job: JobView) -> dict[int, int]:
    return {one.placement.pid: one.rank for one in job.alive_ranks() if one.distributed}


def _call(process: RayProcess, job: JobView) -> str:
    """ "get (from main, ppo.py:112)": which call of Ray's, from which line of the program."""
    own, inner = place_of(process)
    thread = at_work(process)
    frames = thread.frames if thread is not None else ()
    at = max((number for number, frame in enumerate(frames) if frame == own), default=-1)
    # the outermost that is no decorator
    called = next(
        (one for one in frames[at + 1 :] if one.function.rpartition(".")[2] not in _DECORATORS and _is_ray(one.file)), inner,
    )  # fmt: skip
    name = f"ray.{called.function.rpartition('.')[2]}" if called is not None else "Ray"
    return (
        f"{name} (from {format_frame(own, job.run.cwd)[:-1].replace(' (', ', ', 1)})"
        if own is not None
        else name
    )


def _is_ray(file: str) -> bool:
    return format_path(file).startswith("ray/")


def _words(chain: RayChain, job: JobView) -> str:
    """For whom the first one waits, and on to the end."""
    whom = [_named(one, job) for one in chain.steps[1:]]
    if chain.end == "pending":
        totals = {name: most for name, _, most in (job.ray.seen.totals if job.ray.seen is not None else ())}
        what = " and for ".join(_demand(one) + _lacks(one, totals) for one in chain.demands[:_SHOWN])
        more = f" and {len(chain.demands) - _SHOWN} more" if len(chain.demands) > _SHOWN else ""
        if whom and at_work(chain.last) is None:
            return f"for {', which waits for '.join(whom)}, and Ray has not placed {what}{more}"
        return ", which waits ".join(
            [f"for {one}" for one in whom] + [f"for {what}{more}: Ray has not placed it"]
        )
    text = ", which waits for ".join(whom)
    waits = chain.waits
    assert waits is not None
    text = f"for {text}, which {format_chain(waits, '').strip()}"
    last = job.ray.process(waits.last.process.pid)
    if last is not None and last.pid != chain.last.pid and (place := _place(last, job)):
        text += f", in {place}"
    return text


def _named(process: RayProcess, job: JobView) -> str:
    place = _place(process, job)
    return f"{process.task or process.title[:_COMMAND]} (pid {process.pid}{f', in {place}' if place else ''})"


def _place(process: RayProcess, job: JobView) -> str:
    """The innermost line of the program in the thread at work."""
    main = process.main
    own = own_frames(main.frames) if main is not None and process.kind == "service" else []
    frame = own[-1] if own else place_of(process)[0]
    return format_frame(frame, job.run.cwd) if frame is not None else ""


def _actor(rank: RankView, job: JobView) -> str:
    actor = job.ray.process(rank.placement.pid)
    name = f"the actor {actor.name}" if actor is not None and actor.name else "its actor"
    return f"{name} (pid {rank.placement.pid}) runs no method: its last call has returned, and it waits for the next one"


def _demand(one: RayDemand) -> str:
    """
    >>> _demand(RayDemand(True, ((("CPU", 2.0),),) * 3, "PACK")), _demand(RayDemand(False, ((("judge", 1.0),),)))
    ('a placement group of 3 bundles of {CPU: 2} (PACK)', 'an actor or task that needs {judge: 1}')
    """
    shapes = list(dict.fromkeys(one.shape))
    if one.group:
        count = len(one.shape)
        bundles = f"{count} bundle{'s' if count != 1 else ''} of " + " and ".join(
            map(_shape, shapes[:_SHOWN])
        )
        return f"a placement group of {bundles}" + (f" ({one.strategy})" if one.strategy else "")
    what = "an actor or task that needs" if one.count == 1 else f"{one.count} actors or tasks that need"
    return f"{what} {_shape(shapes[0]) if shapes else 'nothing'}"


def _lacks(one: RayDemand, totals: dict[str, float]) -> str:
    """What the whole cluster does not have, used or free. Memory is not among what the status counts in numbers.

    >>> _lacks(RayDemand(True, ((("CPU", 2.0),),) * 3), {"CPU": 4.0})
    ' (CPU: 6 in all, and the cluster has 4)'
    >>> _lacks(RayDemand(False, ((("judge", 1.0),),)), {"CPU": 4.0}), _lacks(RayDemand(False, ((("CPU", 1.0),),)), {"CPU": 4.0})
    (' (the cluster has no judge)', '')
    """
    needs: dict[str, float] = {}
    for name, amount in (pair for bundle in one.shape for pair in bundle):
        if totals and name not in _IN_BYTES and not name.startswith("node:"):
            needs[name] = needs.get(name, 0.0) + amount
    lacks = [
        f"{name}: {format_number(amount)} in all, and the cluster has {format_number(totals[name])}"
        if name in totals
        else f"the cluster has no {name}"
        for name, amount in needs.items()
        if amount > totals.get(name, 0.0)
    ]
    return f" ({'; '.join(lacks)})" if lacks else ""


def _shape(needs: Iterable[tuple[str, float]]) -> str:
    return "{" + ", ".join(f"{name}: {format_number(amount)}" for name, amount in needs) + "}"


def _told(thread: ThreadStack) -> list[Frame]:
    """The innermost frames, without Ray's decorators."""
    frames = [one for one in thread.frames if one.function.rpartition(".")[2] not in _DECORATORS]
    return frames[-_FRAMES:]


def _notes(chain: RayChain, job: JobView) -> Iterator[Note]:
    for one in (chain.steps[0], *chain.steps[1:][-1:]):
        thread = at_work(one)
        if thread is not None and thread.frames:
            who = "driver" if one.kind == "driver" else one.task
            inner = " < ".join(format_frame(frame, job.run.cwd) for frame in reversed(_told(thread)))
            yield Note("ray", f"{who}, pid {one.pid}: {inner}")
    totals = job.ray.seen.totals if job.ray.seen is not None else ()
    if chain.end == "pending" and totals:
        used = ", ".join(
            f"{format_number(used)} of {format_number(most)} {name}" for name, used, most in totals[:6]
        )
        yield Note("ray", f"Ray's status: {used} in use")
    idle = [one.rank for one in job.alive_ranks() if one.distributed and waits_for_a_task(one)]
    if idle:
        yield Note("ray", f"{format_ranks(idle)}: actors between two calls")
