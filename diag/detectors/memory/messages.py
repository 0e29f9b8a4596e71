"""Processes, phases and what to use less of, as memory findings name them."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping

from diag.detectors.findings import row
from diag.detectors.memory.causes import Event, Verdict
from diag.detectors.memory.growth import Holders, Seen, held_bytes
from diag.knowledge.flags import flag_values
from diag.state.idle import is_idle_child
from diag.state.stack_activity import Activity, read_stack
from diag.state.view import JobView
from diag.text.units import format_bytes, format_ranks, format_seconds

_WORKER_NAMED = re.compile(
    r"DataLoader worker \(pid\(?s?\)? ?([\d, ]{1,200})\)? (?:is killed|exited unexpectedly)"
)
_MIB = 1 << 20
_SAVE_FLAGS = ("save_steps", "save_interval")
_NOTABLE = 0.05  # of the limit: what holds less is not named
_MUCH = 0.2  # of the limit: what holds less needs no advice


def flag(job: JobView, name: str) -> str | None:
    """The value that the command gives a flag, "true" where it stands alone; None where the command does not
    show it."""
    return next(flag_values(job.run.argv, name), None)


def phase_of(job: JobView, at: float) -> str:
    """The phase then; a save that began in that moment may not have been seen yet, and is inferred from its
    turn."""
    phase = job.phases.then(at)
    # one without a duration was reported by its end alone, or is in a log without times
    lasting = (save for save in job.saves.log.saves if save.began != save.ended)
    if any(save.began <= at <= (save.ended or at) for save in lasting):
        return "ckpt_save"
    if phase in ("steady", "training", "first_step") and _save_due(job, job.progress.iteration_then(at)):
        return "save_due"
    return phase


def _save_due(job: JobView, iteration: int | None) -> bool:
    every = next((value for name in _SAVE_FLAGS if (value := flag(job, name)) is not None), "")
    if not every.isdigit() or not int(every) or not iteration:
        return False
    return iteration % int(every) == 0


def format_phase(job: JobView, at: float, known: str = "") -> str:
    """What the job did then, with a space before it, by the counts of that moment: a restart has begun to count anew
    since. Nothing of an excerpt that does not show it."""
    phase = known or phase_of(job, at)
    if phase == "ended" or (phase == "launch" and job.run.end_unknown):
        return ""
    iteration = job.progress.iteration_then(at)
    done = f"after iteration {iteration}" if iteration is not None else ""
    return " " + {
        "ckpt_save": f"while saving a checkpoint {done}".rstrip(),
        "save_due": f"{done}, when a checkpoint was to be saved",
        "steady": done or "in training",
        "training": done or "in training",
        "eval": "during an evaluation",
        "model_load": "while the model was loaded",
        "data_prep": "while the data was prepared",
        "compile": "while it compiled",
    }.get(phase, f"in phase {phase}")


def role_of(job: JobView, seen: Seen) -> str:
    """What a process below a rank is, where that is known."""
    own = f"rank {seen.rank}"
    return own if seen.main else f"{_kind(job, seen)} {seen.pid} of {own}"


def _kind(job: JobView, seen: Seen) -> str:
    rank = job.ranks.get(seen.rank)
    if seen.name == "pt_data_worker":  # its own name from torch 2.6 on
        return "DataLoader worker"
    sample = rank.child_stacks.get(seen.pid) if rank is not None else None
    if rank is not None and sample is not None and sample[1].main is not None:
        if is_idle_child(rank, sample[1]):
            return "DataLoader worker"
        for thread in sample[1].threads:
            reading = read_stack(thread)
            if Activity.CHECKPOINT in (reading.activity, reading.context):
                return "checkpoint writer"
            if Activity.DATA in (reading.activity, reading.context):
                return "DataLoader worker"
    tail = list(rank.tail) if rank is not None else []
    if any(
        str(seen.pid) in re.split(r"[, ]+", match[1])
        for line in (*tail, *job.log.tail)
        if (match := _WORKER_NAMED.search(line))
    ):
        return "DataLoader worker"
    if seen.kept and job.phases.then(seen.kept[0][0]) == "ckpt_save":
        return f"process ({seen.name}), started in the save,"
    return f"child process ({seen.name})"


def format_victim(job: JobView, verdict: Verdict) -> str:
    kill, seen = verdict.kernel, verdict.victim
    held = f", which held {format_bytes(held_bytes(kill))}," if kill is not None else ""
    if seen is not None:
        who = role_of(job, seen)
        return (
            f"{who} (pid {seen.pid}){held}"
            if seen.main
            else f"{who}{held or (f', which held {format_bytes(seen.rss_bytes)},')}"
        )
    if verdict.ranks and not any(_was_killed(job, rank) for rank in verdict.ranks):
        who = f"process {kill.comm} (host pid {kill.pid}){held}" if kill is not None else "a process"
        return f"{who} in the cgroup of {format_ranks(verdict.ranks)}"
    if verdict.ranks:
        return format_ranks(verdict.ranks)
    if kill is not None:
        where = "" if verdict.group is None else " in the job's cgroup"
        return f"process {kill.comm} (host pid {kill.pid}){held or where}{where if held else ''}"
    return "a process of the job's cgroup"


def _was_killed(job: JobView, rank: int) -> bool:
    """Or may have been: its exit could not be read."""
    ends = [
        one.exit for one in (job.ranks.get(rank), *job.ranks.past) if one is not None and one.rank == rank
    ]
    known = [end for end in ends if end is not None]
    return any(
        end.signal == signal.SIGKILL or (end.signal is None and end.exit_code is None) for end in known
    )


def format_grower(job: JobView, holders: Holders, victim: Seen | None) -> str:
    """Which process grew most, apart from which was killed."""
    if holders.grower is None:
        return ""
    rank, pid, name, main, grown, seconds = holders.grower
    who = "it"
    if victim is None or victim.pid != pid:
        who = role_of(job, Seen(rank, pid, 0, name, main, holders.at, 0))
    return f"{who} grew most, by {format_bytes(grown)} in {format_seconds(max(1.0, seconds))}"


_KINDS = {
    "anon": "processes' own memory",
    "cache": "page cache",
    "dirty": "of it not yet written",
    "shmem": "/dev/shm, tmpfs",
}


def filled_by(event: Event, verdict: Verdict, known: frozenset[int]) -> list[str]:
    """What the limit was filled with, biggest kinds as the kernel or the last reading shows them."""
    kill, least = verdict.kernel, _NOTABLE * (verdict.limit_bytes or 0)
    parts: list[str] = []
    if verdict.cause != "global_oom":
        kinds = _kinds(event, verdict)
        parts += [
            f"{text} {format_bytes(kinds[name])}"
            for name, text in _KINDS.items()
            if kinds.get(name, 0) > least
        ]
    for count, held in event.holders.children:
        if held > least and count:
            parts.append(f"{count} processes below a rank {format_bytes(held)}")
    if event.holders.pinned_bytes > least:
        parts.append(f"pinned {format_bytes(event.holders.pinned_bytes)}")
    if kill is not None and verdict.victim is not None and verdict.victim.pid == kill.pid:
        parts += [
            f"{name} (pid {pid}, not of the job) {format_bytes(held)}"
            for pid, name, held in kill.tasks
            if pid not in known and held > max(least, 64 * _MIB)
        ]
    return parts


def _kinds(event: Event, verdict: Verdict) -> Mapping[str, int]:
    """Bytes by kind: by the kernel's line, else by the fullest reading of the event."""
    if verdict.kernel is not None and verdict.kernel.breakdown:
        return dict(verdict.kernel.breakdown)
    if verdict.group is None:
        return {}
    readings = (before for before, _ in event.groups.values())
    full = max(readings, key=lambda one: one.usage_bytes, default=verdict.group)
    return {
        "anon": full.anon_bytes, "cache": full.cache_bytes, "dirty": full.dirty_bytes, "shmem": full.shmem_bytes
    }  # fmt: skip


def less_after_kill(job: JobView, verdict: Verdict, phase: str, grower: str) -> str:
    """How to use less, and what else fills a cgroup."""
    texts = row("host-oom")
    parts = [_use_less(job, phase, grower)]
    group = verdict.group
    if group is not None and group.limit_bytes:
        notable = _MUCH * group.limit_bytes
        kinds = (("dirty", group.dirty_bytes), ("shmem", group.shmem_bytes))
        parts += [texts["beside"][name] for name, size in kinds if size > notable]
    return " ".join(parts)


def _use_less(job: JobView, phase: str, grower: str) -> str:
    texts = row("host-oom")
    use: dict[str, str] = texts["use"]
    if "DataLoader worker" in grower:
        return use["workers"]
    if phase in ("ckpt_save", "save_due"):
        flags = texts["save_flags"].items()
        given = [f"{text}; " for name, text in flags if flag(job, name) not in (None, "false", "False")]
        return use["ckpt_save"].replace("{flags}", "".join(given))
    return use.get(phase, use["other"])
