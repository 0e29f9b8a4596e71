"""A hang verdict as a sentence, and as advice. `detector` decides, what it rests on is in `evidence`; what is said
of each cause is in `catalogue`, and put together here.

Each rank is reported to be where its own last stack shows it: ranks at one place together, others each with
theirs.
"""

from __future__ import annotations

from diag.detectors.hang.catalogue import entry_of
from diag.detectors.hang.facts import anybody_waits, cut, filled, place_of
from diag.detectors.hang.verdict import Verdict, format_who
from diag.detectors.hang.wait_text import format_chain
from diag.model import numbered
from diag.state.stack_activity import Activity, Reading
from diag.state.view import JobView
from diag.text.units import format_path, format_seconds

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


def describe(verdict: Verdict, job: JobView, now: float) -> str:
    """One sentence with numbers: who, what, since when, who waits."""
    parts = [f"{claim(verdict, job, now)} {_phase(verdict, job)}".rstrip(" ,")]
    if job.phase in _QUOTED_PHASES and job.phases.line and not verdict.subject:
        parts.append(f', the last log line of that phase is "{job.phases.line.strip()[:120]}"')
    if verdict.chain is not None and (first := verdict.culprit(job)) is not None:
        whose = "its" if len(verdict.culprits) == 1 else f"rank {first.rank}'s"
        who = f"pid {verdict.blamed_child}" if verdict.blamed_child else f"{whose} {first.thread_name}"
        parts.append(f": {format_chain(verdict.chain, who, verdict.cause)}")
    if verdict.words:
        parts.append(
            f"{', and' if verdict.chain is not None and not verdict.subject else ':'} {verdict.words.rstrip(',')}"
        )
    if waiting := _waiting(verdict, job):
        parts.append(f"; {waiting}")
    if not verdict.subject:
        parts.append(f" ({len(job.ranks)} of {max(job.world_size, len(job.ranks))} ranks seen)")
    return "".join(parts)


def claim(verdict: Verdict, job: JobView, now: float) -> str:
    """What is claimed, and what the sentence begins with: "rank 1 has waited for a batch for 40 s"."""
    text = _subject(verdict, job) + _for_how_long(verdict, now)
    return text.replace(",,", ",")  # a list of places ends in one


def advice_for(verdict: Verdict, job: JobView) -> str:
    """What to do; of others only where any are seen to wait."""
    entry = entry_of(verdict.reason.kind if verdict.reason is not None else verdict.cause)
    advice = filled((entry.others if anybody_waits(verdict, job) else entry.alone).advice, verdict, job)
    return f"{verdict.origin} {advice}" if verdict.origin else advice


def _subject(verdict: Verdict, job: JobView) -> str:
    ranks = verdict.culprits
    if not ranks:
        return _nobody_apart(verdict, job)
    name = format_who(ranks, "[has|have]")
    if ranks[0] not in job.ranks:
        return f"{name} not appeared"
    entry = entry_of(verdict.cause)
    return f"{name} {filled((entry.others if verdict.waiting else entry.alone).summary, verdict, job)}"


def _nobody_apart(verdict: Verdict, job: JobView) -> str:
    if verdict.subject:
        return verdict.subject
    place = place_of(verdict.waiting, job)
    seen = job.ranks.known(verdict.waiting)
    if len(seen) == 1 and not seen[0].distributed:
        return f"process {seen[0].placement.pid} has waited{place}"
    count = len(verdict.waiting)
    name = numbered(f"[the only rank|all {count} ranks] seen [has|have]", count)
    joined = _joined_call(verdict, job)
    return f"{name} waited{place.removesuffix(',') if joined else place}{joined}"


def _joined_call(verdict: Verdict, job: JobView) -> str:
    """Of a symmetric hang: ", all in all_reduce 26 of default_pg"."""
    found = verdict.collectives
    if found is None or found.front is None or found.kind != "all_joined":
        return ""
    front = found.front
    hosts = sorted({rank.placement.host for rank in job.ranks.known(front.waiting)} - {""})
    where = f" (hosts {', '.join(hosts[:8])}{' ...' if len(hosts) > 8 else ''})" if len(hosts) > 1 else ""
    return f", {len(front.waiting)} of them joined in {front.op} {front.seq} of {front.desc or front.group}{where}"


def _for_how_long(verdict: Verdict, now: float) -> str:
    if verdict.seconds is None:
        return f" for {format_seconds(now - verdict.since)}"
    return (
        f" for at least {format_seconds(verdict.seconds)}"
        if verdict.seconds >= 1
        else ", in the one moment captured,"
    )


def _phase(verdict: Verdict, job: JobView) -> str:
    if verdict.subject:
        return ""
    if job.phase == "steady" and job.iteration is not None:
        return f"after {job.progress.step_words()}" + (
            f"/{job.progress.total_iterations}" if job.progress.total_iterations else ""
        )
    if job.phase == "first_step" and job.progress.epoch is not None:
        return f'after "The training of Epoch {job.progress.epoch} starts..." and before the first step'
    if job.phase == "rendezvous" and not _group_is_missing(verdict, job):
        return ""
    if job.phases.guessed and job.phase == "model_load":
        return ""  # only that no other phase was seen
    if job.phase == "training" and not _is_in_a_step(job):
        return ""
    return _PHASES.get(job.phase, "")


def _is_in_a_step(job: JobView) -> bool:
    """The log says so, or a rank is in its backward now. A collective may be called before the first step as well as after the
    last, and what ranks were in before, they may have left."""
    return job.phases.marked == "training" or any(
        rank.activity is Activity.BACKWARD for rank in job.alive_ranks()
    )


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


def _waiting(verdict: Verdict, job: JobView) -> str:
    if not verdict.culprits or not verdict.waiting:
        return ""
    calls: dict[str, list[int]] = {}
    for number in verdict.waiting:
        reading = job.ranks[number].reading if number in job.ranks else None
        calls.setdefault(call_of(reading, job.run.cwd), []).append(number)
    groups = sorted(calls.items(), key=lambda item: -len(item[1]))
    parts = [f"{format_who(ranks, '[waits|wait]')}{' in ' + call if call else ''}" for call, ranks in groups]
    return cut(parts, [ranks for _, ranks in groups])


def call_of(reading: Reading | None, cwd: str) -> str:
    if reading is None or reading.where is None:
        return ""
    inside = reading.own or reading.caller
    name = reading.where.function
    if inside is None:
        return name
    return f"{name} (from {inside.function}, {format_path(inside.file, cwd)}:{inside.line})"
