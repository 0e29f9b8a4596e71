"""What is remembered of a run beside its findings: what it ran, on what, where, how far and how fast. Small enough for
run.json; two runs are compared by it."""

from __future__ import annotations

from typing import Any

from diag.engine.engine import Engine
from diag.model import Severity
from diag.state.gpustate import gpus_of_ranks
from diag.state.view import JobView

_MOST_HOSTS = 1024
_MOST_RANKS = 64


def facts(engine: Engine) -> dict[str, Any]:
    """Null is what was not read. The engine's lock is held by the caller."""
    job = engine.job
    here = [rank.rank for rank in job.ranks.values() if rank.placement.host in ("", job.run.host)]
    hosts = sorted({rank.placement.host for rank in job.ranks.values() if rank.placement.host})
    return {
        "ended_at": job.run.ended_at or engine.now or None,
        "cwd": job.run.cwd,
        "iteration": job.iteration,
        "total_iterations": job.progress.total_iterations or None,
        "world_size": job.world_size or len(job.ranks) or None,
        "first_rank": min(here, default=None),
        "ranks_here": len(here),
        "hosts": hosts[:_MOST_HOSTS] or ([job.run.host] if job.run.host else []),
        "gpus": _gpus(job),
        "versions": job.software.versions(),
        "packages": _packages(job),
        "environment": _environment(job),
        "transports": _transports(job),
        "phases": engine.timeline.phase_seconds(engine.now),
        "steps": _steps(job),
        "culprits": _culprits(engine),
    }


def _packages(job: JobView) -> dict[str, str] | None:
    seen = job.software.seen
    return None if seen is None or seen.packages is None else dict(seen.packages)


def _environment(job: JobView) -> dict[str, str] | None:
    """The allow-listed variables that all ranks have alike: what differs among them is a rank's own. The run's own
    directory, which diag puts into some, is RUN_DIR in all runs."""
    seen = [rank.variables for rank in job.ranks.values() if rank.variables]
    if not seen:
        return None
    first, *others = seen
    own = [disk.path for _, disk in job.machine.disks.values() if disk.purpose == "run_dir"]
    return {
        name: value.replace(own[0], "RUN_DIR") if own else value
        for name, value in sorted(first.items())
        if all(one.get(name) == value for one in others)
    }


def _gpus(job: JobView) -> list[dict[str, Any]] | None:
    """Of this node's ranks, by their number."""
    if not job.machine.gpus:
        return None
    samples = {sample.index: sample for sample in gpus_of_ranks(job).values()}
    return [
        {
            "index": index,
            "uuid": sample.uuid,
            "name": sample.name,
            "memory_peak_bytes": was.memory_peak_bytes or None,
            "busy_clock_hertz": None if was.busy_clock_hertz is None else round(was.busy_clock_hertz),
            "power_limit_watts": sample.power_limit_watts,
        }
        for index, sample in sorted(samples.items())
        if (was := job.gpu_past.by_index.get(index)) is not None
    ]


def _transports(job: JobView) -> dict[str, Any] | None:
    """As NCCL's log tells them; null without one."""
    processes = [process for _, process in job.nccl_processes.everywhere() if process.talks]
    if not processes:
        return None
    nets = {net for process in processes for net in process.nets_between_nodes()}
    devices = {
        f"{one.name}:{one.port}"
        for process in processes
        if process.devices
        for one in process.devices.devices
    }
    direct = {carried for process in processes for _, carried in process.channels}
    return {
        "nets": sorted(nets or {net for process in processes for net in process.chosen}),
        "between_nodes": bool(nets),
        "devices": sorted(devices),
        "gpu_direct": direct.pop() if len(direct) == 1 else None,
        "bootstrap": sorted({process.bootstrap.interface for process in processes if process.bootstrap}),
    }


def _steps(job: JobView) -> dict[str, Any] | None:
    steps = job.progress.steps
    quantiles = steps.quantiles()
    if quantiles is None:
        return None
    return {"count": steps.counted, **{name: round(value, 4) for name, value in quantiles.items()}}


def _culprits(engine: Engine) -> list[dict[str, Any]]:
    """Of critical findings that are open at the end: the ranks of this node that they name, and their GPUs."""
    job, gpus = engine.job, gpus_of_ranks(engine.job)
    found = []
    for finding in engine.active():
        here = [
            rank
            for rank in finding.ranks
            if rank in job.ranks and job.ranks[rank].placement.host in ("", job.run.host)
        ]
        if finding.severity is Severity.CRITICAL and here:
            found.append(
                {
                    "id": finding.id,
                    "class": finding.klass,
                    "ranks": here[:_MOST_RANKS],
                    "all_ranks_named": len(finding.ranks),
                    "gpus": sorted({gpus[rank].uuid for rank in here[:_MOST_RANKS] if rank in gpus}),
                }
            )
    return found
