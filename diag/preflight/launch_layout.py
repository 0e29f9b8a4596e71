"""TP x PP x CP and batch sizes against the world size, threads against the cores here. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from diag.launch.launchers.command.errors import CommandError
from diag.launch.launchers.command.flags import parse_flags
from diag.launch.launchers.command.shell_script import is_computed
from diag.preflight.estimate.parallel import ParallelSizes, parallel_sizes
from diag.preflight.launch_devices import ranks_here
from diag.preflight.launch_facts import ELASTIC, LaunchFacts
from diag.preflight.line import Line

_WHAT = "launch"
_ID = "launch-mismatch"
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
            yield from _megatron(facts, sizes, world)
            if world % (sizes.tp * sizes.pp * sizes.cp) == 0 and flags.text("rlhf_type") not in _NOT_BY_PAIRS:
                yield from _batch(
                    flags.maybe_whole("global_batch_size"),
                    flags.whole("micro_batch_size", default=1),
                    world // (sizes.tp * sizes.pp * sizes.cp),
                )
        elif launch.program == "swift":
            parts = flags.whole("sequence_parallel_size", default=1, most=4096)
            if world % parts:
                yield Line(
                    _WHAT,
                    "problem",
                    f"{_world(facts, world)} cannot be divided by --sequence_parallel_size {parts}",
                    f"--sequence_parallel_size {_divisor(world, parts)}, or a number of ranks that {parts} divides",
                    _ID,
                    "critical",
                )
    except CommandError as error:
        if is_computed(str(error)):
            yield Line(
                _WHAT,
                "not checked",
                f"{error}: only the shell that starts it knows",
                "the flag with its value",
            )
            return
        yield Line(_WHAT, "problem", str(error), error.hint or "correct it", _ID, "critical")


def _megatron(facts: LaunchFacts, sizes: ParallelSizes, world: int) -> Iterator[Line]:
    needed = sizes.tp * sizes.pp * sizes.cp
    names = " x ".join(
        f"{name} {size}" for name, size in (("TP", sizes.tp), ("PP", sizes.pp), ("CP", sizes.cp)) if size > 1
    )
    if world % needed:
        yield Line(
            _WHAT,
            "problem",
            f"{_world(facts, world)} cannot be divided into groups of {names}"
            + (f" = {needed}" if " x " in names else ""),
            f"ranks x nodes must be a multiple of {needed}: {_more(facts, needed, world)}, or smaller "
            "--tensor_model_parallel_size, --pipeline_model_parallel_size, --context_parallel_size",
            _ID,
            "critical",
        )
        return
    experts = sizes.ep * sizes.etp * sizes.pp
    if sizes.ep > 1 and world % experts:
        smaller = _divisor(world // (sizes.etp * sizes.pp) or 1, sizes.ep)
        yield Line(
            _WHAT,
            "problem",
            f"{_world(facts, world)} cannot be divided into groups of EP {sizes.ep} x ETP {sizes.etp} x PP {sizes.pp} = "
            f"{experts}",
            f"--expert_model_parallel_size {smaller}, or ranks in multiples of {experts}",
            _ID,
            "critical",
        )
    ranks = ranks_here(facts)
    if ranks and sizes.tp > 1 and (sizes.tp > ranks or ranks % sizes.tp):
        yield Line(
            _WHAT,
            "note",
            f"TP {sizes.tp} does not fit into the {ranks} ranks of a node: its collectives, several a layer, would go over "
            "the network",
            f"--tensor_model_parallel_size {_divisor(ranks, sizes.tp)}, and more pipeline or context parallelism",
            _ID,
        )


def _batch(total: int | None, micro: int, data_parallel: int) -> Iterator[Line]:
    """megatron-core 0.16.1, num_microbatches_calculator.py; ms-swift 4.6.0, megatron_args.py: both refuse it."""
    step = micro * data_parallel
    if total is not None and total % step:
        yield Line(
            _WHAT,
            "problem",
            f"--global_batch_size {total} is no multiple of --micro_batch_size {micro} x data parallelism {data_parallel} "
            f"= {step}",
            f"--global_batch_size {max(step, total // step * step)}",
            _ID,
            "critical",
        )


def core_lines(facts: LaunchFacts) -> Iterator[Line]:
    """Threads of all ranks against the cores. torchrun and accelerate set OMP_NUM_THREADS=1 for several,
    where it is unset."""
    ranks, cores, launch = ranks_here(facts), facts.cores, facts.launch
    if launch is None or ranks is None or cores is None:
        return
    word = facts.environment.get("OMP_NUM_THREADS", "").partition(",")[0]
    threads = int(word[:6]) if word.isdecimal() else None
    if ranks > cores:
        yield Line(
            _WHAT,
            "note",
            f"{ranks} ranks on this node, and it has {cores:g} cores for them: each rank needs one for itself, and its "
            "DataLoader workers more",
            "more CPU for the container (resources.limits cpu, docker --cpus), or cpuset",
            _ID,
        )
    elif threads is not None and threads * ranks > cores and ranks > 1:
        yield Line(
            _WHAT,
            "note",
            f"OMP_NUM_THREADS={threads} x {ranks} ranks = {threads * ranks} threads for {cores:g} cores: they take turns",
            f"OMP_NUM_THREADS={max(1, int(cores // ranks))}",
            _ID,
        )
    elif (
        threads is None
        and ranks > 1
        and launch.launcher not in ELASTIC
        and not facts.is_elastic
        and cores > 1
    ):
        yield Line(
            _WHAT,
            "note",
            f"OMP_NUM_THREADS is not set, and {launch.launcher or 'CMD'} does not set it: each of {ranks} ranks would start "
            f"{int(cores)} threads",
            f"OMP_NUM_THREADS={max(1, int(cores // ranks))}",
            _ID,
        )


def _world(facts: LaunchFacts, world: int) -> str:
    launch, ranks = facts.launch, ranks_here(facts)
    assert launch is not None
    nodes = facts.meeting.nodes
    detail = f" ({ranks} on each of {nodes} nodes)" if nodes > 1 and ranks and ranks * nodes == world else ""
    if not launch.processes_from and launch.program in ("megatron", "swift"):
        detail = (
            " (NPROC_PER_NODE is not set)" if nodes == 1 else f" (NPROC_PER_NODE is not set; {nodes} nodes)"
        )
    return f"{world} rank{'' if world == 1 else 's'}{detail}"


def _more(facts: LaunchFacts, needed: int, world: int) -> str:
    launch = facts.launch
    assert launch is not None
    nodes = facts.meeting.nodes
    ranks = -(-max(world, needed) // needed) * needed
    while ranks % nodes:
        ranks += needed
    name = {"torchrun": "--nproc_per_node", "deepspeed": "--num_gpus"}.get(launch.launcher, "NPROC_PER_NODE")
    if launch.launcher == "accelerate":
        return f"--num_processes {ranks}"
    return f"{name}{'=' if name.isupper() else ' '}{ranks // nodes}"


def _divisor(number: int, most: int) -> int:
    return max(size for size in range(1, min(number, most) + 1) if number % size == 0)
