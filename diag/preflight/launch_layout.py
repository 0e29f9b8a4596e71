"""TP x PP x CP and batch sizes against the world size, threads against the cores here. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from diag.launch.launchers.command.flags import parse_flags
from diag.launch.launchers.command.options import CommandError
from diag.launch.launchers.command.shell_script import is_computed
from diag.preflight.estimate.parallel import ParallelSizes, parallel_sizes
from diag.preflight.launch_devices import ranks_here
from diag.preflight.launch_facts import ELASTIC, LaunchFacts, flag
from diag.preflight.line import Line, line
from diag.text.units import format_count

_NOT_BY_PAIRS = ("grpo", "gkd")  # their global batch is counted in generations


def world_size(facts: LaunchFacts) -> int | None:
    launch, ranks = facts.launch, ranks_here(facts)
    if launch is None or ranks is None:
        return None
    if launch.total:
        return launch.total
    if launch.slots and not launch.options.get("--num_gpus"):
        return sum(launch.slots.values())
    return None if facts.nodes is None else ranks * facts.nodes


def layout_lines(facts: LaunchFacts) -> Iterator[Line]:
    launch, world = facts.launch, world_size(facts)
    if launch is None or world is None:
        return
    flags = parse_flags(launch.words, launch.environment)
    try:
        if launch.program in ("megatron", "megatron-lm"):
            sizes = parallel_sizes(flags)
            groups = sizes.tp * sizes.pp * sizes.cp
            yield from _megatron(facts, sizes, world)
            if world % groups == 0 and flags.text("rlhf_type") not in _NOT_BY_PAIRS:
                total, micro = (
                    flags.maybe_whole("global_batch_size"),
                    flags.whole("micro_batch_size", default=1),
                )
                step = micro * (world // groups)
                if total is not None and total % step:
                    near, parts = max(step, total // step * step), world // groups
                    yield line(
                        "launch.batch", total=total, micro=micro, data_parallel=parts, step=step, near=near
                    )
        elif launch.program == "swift":
            parts = flags.whole("sequence_parallel_size", default=1, most=4096)
            if world % parts:
                said, smaller = _world(facts, world), _divisor(world, parts)
                yield line("launch.sequence-parallel", world=said, parts=parts, smaller=smaller)
    except CommandError as error:
        if is_computed(str(error)):
            yield line("launch.computed", flag=error)
        else:
            yield line("launch.bad-flag", error=error, hint=error.hint or "correct it")


def _megatron(facts: LaunchFacts, sizes: ParallelSizes, world: int) -> Iterator[Line]:
    needed, said = sizes.tp * sizes.pp * sizes.cp, _world(facts, world)
    named = {"TP": sizes.tp, "PP": sizes.pp, "CP": sizes.cp}
    names = [f"{name} {size}" for name, size in named.items() if size > 1]
    if world % needed:
        groups = " x ".join(names) + (f" = {needed}" if len(names) > 1 else "")
        yield line(
            "launch.groups", world=said, groups=groups, needed=needed, more=_more(facts, needed, world)
        )
        return
    experts = sizes.ep * sizes.etp * sizes.pp
    if sizes.ep > 1 and world % experts:
        smaller = _divisor(world // (sizes.etp * sizes.pp) or 1, sizes.ep)
        yield line("launch.experts", world=said, sizes=sizes, experts=experts, smaller=smaller)
    ranks = ranks_here(facts)
    if ranks and sizes.tp > 1 and (sizes.tp > ranks or ranks % sizes.tp):
        yield line("launch.tp-over-nodes", tp=sizes.tp, ranks=ranks, smaller=_divisor(ranks, sizes.tp))


def core_lines(facts: LaunchFacts) -> Iterator[Line]:
    """Threads of all ranks against the cores. torchrun and accelerate set OMP_NUM_THREADS=1 for several,
    where it is unset."""
    ranks, cores, launch = ranks_here(facts), facts.cores, facts.launch
    if launch is None or ranks is None or cores is None:
        return
    word = facts.environment.get("OMP_NUM_THREADS", "").partition(",")[0]
    threads = int(word[:6]) if word.isdecimal() else None
    fair = max(1, int(cores // ranks))
    if ranks > cores:
        yield line("launch.cores", ranks=ranks, cores=cores)
    elif ranks == 1:
        return
    elif threads is not None:
        if threads * ranks > cores:
            every = threads * ranks
            yield line("launch.threads", threads=threads, ranks=ranks, all=every, cores=cores, fair=fair)
    elif launch.launcher not in ELASTIC and not facts.is_elastic and cores > 1:
        who = launch.launcher or "CMD"
        yield line("launch.threads-unset", launcher=who, ranks=ranks, cores=int(cores), fair=fair)


def _world(facts: LaunchFacts, world: int) -> str:
    launch, ranks, nodes = facts.launch, ranks_here(facts), facts.meeting.nodes
    assert launch is not None
    detail = f" ({ranks} on each of {nodes} nodes)" if nodes > 1 and ranks and ranks * nodes == world else ""
    if not launch.processes_from and launch.program in ("megatron", "swift"):
        detail = " (NPROC_PER_NODE is not set" + (")" if nodes == 1 else f"; {nodes} nodes)")
    return format_count(world, "rank") + detail


def _more(facts: LaunchFacts, needed: int, world: int) -> str:
    assert facts.launch is not None
    step = math.lcm(needed, facts.meeting.nodes)
    ranks = -(-max(world, needed) // step) * step
    return flag("ranks", facts.launch.launcher, ranks // facts.meeting.nodes, facts.meeting.nodes)


def _divisor(number: int, most: int) -> int:
    return max(size for size in range(1, min(number, most) + 1) if number % size == 0)
