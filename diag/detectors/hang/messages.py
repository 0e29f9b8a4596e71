"""The sentence of a hang verdict. Text only: `detector` decides; what it rests on is in `evidence`, what to
do in `advice`.

Each rank is reported to be where its own last stack shows it: ranks at one place together, others each with
theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from diag.detectors.hang.rank_wait import cause_of, classify_rank
from diag.detectors.hang.wait_text import format_chain
from diag.model import numbered
from diag.model.observations import StackSample
from diag.state.rank_view import RankView
from diag.state.stack_activity import Activity, Reading, format_frame
from diag.state.view import JobView
from diag.text.units import format_path, format_ranks, format_seconds

if TYPE_CHECKING:
    from diag.detectors.hang.verdict import Verdict

# Phases of which people know the line that the log stopped at, not the name.
_QUOTED_PHASES = ("launch", "rendezvous", "model_load", "comm_init")
_PHASES = {
    "launch": "while starting",
    "rendezvous": "before the process group was up",
    "model_load": "while loading the model",
    "data_prep": "while preparing data",
    "comm_init": "while communicators were created",
    "compile": "while compiling",
    "training": "in training",
    "first_step": "before the first step",
    "eval": "during evaluation",
    "ckpt_save": "while saving a checkpoint",
    "teardown": "while shutting down",
}
_GROUP_IS_UP = (Activity.COLLECTIVE, Activity.COMM_INIT)
_MOST_GROUPS = 4  # of ranks that are listed with their places; of the rest, how many they are


def describe(verdict: Verdict, job: JobView, now: float) -> str:
    """One sentence with numbers: who, what, since when, who waits."""
    where = _phase(verdict, job)
    parts = [_subject(verdict, job) if not verdict.by_kernel else _unmoved(verdict, job)]
    parts.append(_for_how_long(verdict, now))
    if where:
        parts.append(f" {where}")
    if job.phase in _QUOTED_PHASES and job.phases.line:
        parts.append(f', its last line on that "{job.phases.line.strip()[:120]}"')
    if verdict.chain is not None:
        whose = "its" if len(verdict.culprits) == 1 else f"rank {verdict.culprits[0]}'s"
        who = f"pid {verdict.blamed_child}" if verdict.blamed_child else f"{whose} main thread"
        parts.append(f": {format_chain(verdict.chain, who)}")
    waiting = _waiting(verdict, job)
    if waiting:
        parts.append(f"; {waiting}")
    parts.append(f" ({len(job.ranks)} of {max(job.world_size, len(job.ranks))} ranks seen)")
    return "".join(parts)


def _phase(verdict: Verdict, job: JobView) -> str:
    if job.phase == "steady" and job.iteration is not None:
        return f"after {job.progress.step_words()}" + (
            f"/{job.progress.total_iterations}" if job.progress.total_iterations else ""
        )
    if job.phase == "first_step" and job.progress.epoch is not None:
        return f'after "The training of Epoch {job.progress.epoch} starts..." and before the first step'
    if job.phase == "rendezvous" and not _group_is_missing(verdict, job):
        return ""
    return _PHASES.get(job.phase, "")


def _group_is_missing(verdict: Verdict, job: JobView) -> bool:
    """The log or a stack shows it being made, and nothing what a process group does. A job that diag came to
    later, or whose log shows no phases, may have had one for long."""
    activities = {rank.activity for rank in job.ranks.values()}
    recorded = any(rank.recorder is not None and rank.recorder.groups for rank in job.ranks.values())
    if (
        recorded
        or job.nccl.lines
        or verdict.collectives is not None
        or not activities.isdisjoint(_GROUP_IS_UP)
    ):
        return False
    return (
        job.phases.marked == "rendezvous"
        or Activity.RENDEZVOUS in activities
        or verdict.klass == "rendezvous"
    )


def _for_how_long(verdict: Verdict, now: float) -> str:
    if verdict.seconds is None:
        return f" for {format_seconds(now - verdict.since)}"
    return (
        f" for at least {format_seconds(verdict.seconds)}"
        if verdict.seconds >= 1
        else ", in the one moment captured,"
    )


def _unmoved(verdict: Verdict, job: JobView) -> str:
    ranks = verdict.culprits
    return f"{format_ranks(ranks)} {numbered('[has|have]', len(ranks))} not moved{_in(ranks, job)}"


def _subject(verdict: Verdict, job: JobView) -> str:
    ranks = verdict.culprits
    if not ranks:
        return _nobody_apart(verdict, job)
    name = f"{format_ranks(ranks)} {numbered('[has|have]', len(ranks))}"
    if ranks[0] not in job.ranks:
        return f"{name} not appeared"
    what = _WHAT.get(verdict.cause) or _WHAT.get(verdict.klass)
    return f"{name} {what(verdict, job)}" if what is not None else f"{name} not moved{_in(ranks, job)}"


def _unanswered(verdict: Verdict, job: JobView) -> str:
    calls = numbered("[a call|calls] that no rank answers", len(verdict.culprits))
    return f"waited{_in(verdict.culprits, job)}, {calls}"


def _mismatch(verdict: Verdict, job: JobView) -> str:
    other = f"another collective than {format_ranks(verdict.waiting)}"
    return f"called {other if verdict.waiting else 'different collectives'}{calls_that_differ(verdict)}"


def _opposite_order(verdict: Verdict, job: JobView) -> str:
    whom = numbered("[its peers|each other]", len(verdict.culprits))
    return f"waited for {whom} in different process groups{_where_each(verdict)}"


def _save(verdict: Verdict, job: JobView) -> str:
    writers = _children(verdict, job, "whose writer is pid")
    return f"not got on with writing the checkpoint{writers or _in(verdict.culprits, job)}"


# What the culprits have done, by the cause, or else by the class.
_WHAT: dict[str, Callable[[Verdict, JobView], str]] = {
    "ras_dead": lambda verdict, job: "been out of reach of NCCL's RAS network",
    "this_node_cut_off": lambda verdict, job: "heard nothing of any other node",
    "node_silent": lambda verdict, job: f"not been heard of, nor has {_hosts(verdict, job)},",
    "peer_lost": lambda verdict, job: f"been gone{_how_exited(verdict.culprits, job)}",
    "gpu_side": lambda verdict, job: f"waited{_for_gpu(verdict, job)}",
    "network_transport": lambda verdict, job: "reported an error of the network and not moved",
    "rank_says_nothing": lambda verdict, job: (
        f"reported nothing while the collective of {format_ranks(verdict.waiting)} timed out"
    ),
    "stopped": lambda verdict, job: f"been stopped by a signal (state T, pid {_pids(verdict.culprits, job)})",
    "data_loading": lambda verdict, job: (
        f"waited for a batch{_children(verdict, job, 'from DataLoader worker pid')}"
    ),
    "call_unanswered": _unanswered,
    "collective_mismatch": _mismatch,
    "collective_order_deadlock": _opposite_order,
    "gil_deadlock": lambda verdict, job: f"held the GIL without running{_in(verdict.culprits, job)}",
    "checkpoint_io": _save,
    "child_waits_for_lock": lambda verdict, job: f"waited{_children(verdict, job, 'for its child process')}",
    "lock_deadlock": lambda verdict, job: f"waited for a lock{_in(verdict.culprits, job)}",
    "resource_wait": lambda verdict, job: f"been starved of a resource ({verdict.cause})",
    "teardown": lambda verdict, job: f"been stuck in shutdown{_in(verdict.culprits, job)}",
}


def _nobody_apart(verdict: Verdict, job: JobView) -> str:
    seen = [job.ranks[rank] for rank in verdict.waiting if rank in job.ranks]
    if len(seen) == 1 and not seen[0].distributed:
        return f"the process {seen[0].placement.pid} has waited{_in(verdict.waiting, job)}"
    count = len(verdict.waiting)
    name = numbered(f"[the only rank|all {count} ranks] seen [has|have]", count)
    joined = _joined_call(verdict, job)
    place = _in(verdict.waiting, job)
    return f"{name} waited{place.removesuffix(',') if joined else place}{joined}"


def _for_gpu(verdict: Verdict, job: JobView) -> str:
    count = len(verdict.culprits)
    if verdict.cause.startswith("xid_"):
        broken = numbered("[a GPU|GPUs] that the driver reported broken", count)
        return f" for {broken} (Xid {verdict.cause.removeprefix('xid_')})"
    at = _in(verdict.culprits, job)
    if verdict.cause == "kernel_does_not_end":
        runs = "[its GPU, which runs a kernel that does|their GPUs, which run kernels that do] not end"
        return f"{at} for {numbered(runs, count)}"
    spinning = numbered("[GPU of|GPUs of]", len(verdict.waiting)) + f" {format_ranks(verdict.waiting)} "
    return (
        f"{at} with "
        + numbered("[an idle GPU|idle GPUs]", count)
        + f" while the {spinning}"
        + numbered("[spins|spin] in a collective", len(verdict.waiting))
    )


def _how_exited(ranks: Sequence[int], job: JobView) -> str:
    ways: dict[str, list[int]] = {}
    for number in ranks:
        rank = job.ranks.get(number)
        ways.setdefault("gone" if rank is None else _format_exit(rank), []).append(number)
    if len(ways) == 1:
        return f" ({next(iter(ways))})"
    return " (" + _cut([f"{format_ranks(of)} {way}" for way, of in ways.items()], ways.values()) + ")"


def _format_exit(rank: RankView) -> str:
    if rank.exit is None:
        return "gone"
    if rank.exit.signal is not None:
        return f"killed by signal {rank.exit.signal}"
    return f"exit code {rank.exit.exit_code}" if rank.exit.exit_code is not None else "exit code unknown"


def _pids(ranks: Sequence[int], job: JobView) -> str:
    pids = [str(job.ranks[rank].placement.pid) for rank in ranks if rank in job.ranks]
    return " ".join(pids[:_MOST_GROUPS]) + (" ..." if len(pids) > _MOST_GROUPS else "")


def _hosts(verdict: Verdict, job: JobView) -> str:
    hosts = sorted({job.ranks[rank].placement.host for rank in verdict.culprits if rank in job.ranks} - {""})
    return ", ".join(hosts[:4]) + (f" and {len(hosts) - 4} more" if len(hosts) > 4 else "")


def _joined_call(verdict: Verdict, job: JobView) -> str:
    """Of a symmetric hang: ", all in all_reduce 26 of default_pg"."""
    found = verdict.collectives
    if found is None or found.front is None or found.kind != "all_joined":
        return ""
    front = found.front
    hosts = sorted({job.ranks[rank].placement.host for rank in front.waiting if rank in job.ranks} - {""})
    where = f" (hosts {', '.join(hosts[:8])}{' ...' if len(hosts) > 8 else ''})" if len(hosts) > 1 else ""
    return f", {len(front.waiting)} of them joined in {front.op} {front.seq} of {front.desc or front.group}{where}"


def calls_that_differ(verdict: Verdict) -> str:
    """ ": ranks 0,2 call all_reduce [8], rank 1 calls broadcast [8] (default_pg 7)" of a mismatch."""
    found = verdict.collectives
    if found is None or not found.signatures:
        return ""
    parts = []
    for call in found.signatures[:4]:
        sizes = " ".join(str(list(size)) for size in call.sizes[:2])
        parts.append(
            f"{format_ranks(call.ranks)} {numbered('[calls|call]', len(call.ranks))} {call.op} {sizes}".rstrip()
        )
    place = f" ({found.front.desc or found.front.group} {found.front.seq})" if found.front else ""
    return ": " + ", ".join(parts) + place


def _where_each(verdict: Verdict) -> str:
    found = verdict.collectives
    if found is None:
        return ""
    culprits = set(verdict.culprits)
    parts = [
        f"rank {rank} in {wait.op} {wait.seq} of {wait.desc or wait.group}"
        for rank, wait in sorted(found.waiting.items())
        if rank in culprits
    ]
    return " (" + ", ".join(parts[:4]) + ")" if parts else ""


def _waiting(verdict: Verdict, job: JobView) -> str:
    if not verdict.culprits or not verdict.waiting:
        return ""
    calls: dict[str, list[int]] = {}
    for number in verdict.waiting:
        reading = job.ranks[number].reading if number in job.ranks else None
        calls.setdefault(_call(reading, job.run.cwd), []).append(number)
    groups = sorted(calls.items(), key=lambda item: -len(item[1]))
    parts = [
        f"{format_ranks(ranks)} {numbered('[waits|wait]', len(ranks))}{' in ' + call if call else ''}"
        for call, ranks in groups
    ]
    return _cut(parts, [ranks for _, ranks in groups])


def _call(reading: Reading | None, cwd: str) -> str:
    if reading is None or reading.where is None:
        return ""
    inside = reading.caller
    name = reading.where.function
    if inside is None:
        return name
    return f"{name} (from {inside.function}, {format_path(inside.file, cwd)}:{inside.line})"


def _in(ranks: Sequence[int], job: JobView) -> str:
    """ " in step (train.py:7)" where all are at one place; else ": rank 0 in step (train.py:7), rank 1 in load (data.py:3),"."""
    places: dict[str, list[int]] = {}
    for number in ranks:
        reading = job.ranks[number].reading if number in job.ranks else None
        frame = reading.where if reading is not None else None
        place = "" if frame is None else f" in {format_frame(frame, job.run.cwd)}"
        places.setdefault(place, []).append(number)
    if len(places) == 1:
        return next(iter(places))
    groups = sorted(places.items(), key=lambda item: (not item[0], -len(item[1])))
    return (
        ": "
        + _cut(
            [f"{format_ranks(of)}{place or ' not known where'}" for place, of in groups],
            [of for _, of in groups],
        )
        + ","
    )


def _cut(parts: Sequence[str], groups: Iterable[Sequence[int]]) -> str:
    left = sum(len(ranks) for ranks in list(groups)[_MOST_GROUPS:])
    return ", ".join(parts[:_MOST_GROUPS]) + (
        numbered(f" and {left} more [rank|ranks]", left) if left else ""
    )


def children_of(verdict: Verdict, job: JobView) -> dict[int, int]:
    """Of each culprit the child process that it waits for, where the verdict blames one."""
    if verdict.blamed_child is None:
        return {}
    found = {verdict.culprits[0]: verdict.blamed_child}
    for number in verdict.culprits[1:]:
        rank = job.ranks.get(number)
        cause, child = cause_of(rank, classify_rank(rank)) if rank is not None else ("", None)
        if child is not None and cause == verdict.cause:
            found[number] = child
    return found


def _children(verdict: Verdict, job: JobView, how: str) -> str:
    """ " from DataLoader worker pid 7, which is blocked in read (data.py:3)"; of several ": rank 1 from ..., rank 2 from ...,"."""
    children = children_of(verdict, job)
    parts = []
    for number, child in children.items():
        sample = job.ranks[number].child_stacks.get(child) if number in job.ranks else None
        place = _at(sample[1], job.run.cwd) if sample else ""
        lock = " in a lock" if verdict.cause == "child_waits_for_lock" else ""
        parts.append(f" {how} {child}" + (f", which is blocked{lock}{place}" if place or lock else ""))
    if len(verdict.culprits) == 1:
        return "".join(parts)
    parts = [f"rank {number}{text}" for number, text in zip(children, parts, strict=True)]
    return ": " + _cut(parts, [[number] for number in children]) + "," if parts else ""


def _at(sample: StackSample, cwd: str) -> str:
    main = sample.main
    return "" if main is None or not main.frames else f" in {format_frame(main.frames[-1], cwd)}"
