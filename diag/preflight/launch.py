"""Whether what CMD's flags and the environment say of ranks, nodes, devices, model parallelism and cores fits together. Names
each disagreement. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from diag.launch.launchers.command.flags import parse_flags
from diag.launch.launchers.command.options import CommandError
from diag.launch.launchers.command.shell_script import is_computed
from diag.preflight.launch_devices import count_devices, device_lines, ranks_here, seen_by_ranks
from diag.preflight.launch_facts import ELASTIC, LaunchFacts, flag
from diag.preflight.line import Line, line, table
from diag.text.units import format_count, ranks_on_nodes

if TYPE_CHECKING:
    from diag.preflight.estimate.plan import ParallelSizes


def check_launch(facts: LaunchFacts) -> Iterable[Line]:
    """Pure. The last line says what was compared, where nothing is wrong."""
    if not facts.given:
        return [line("launch.no-command")]
    lines = [*node_lines(facts), *environment_lines(facts), *device_lines(facts)]
    if facts.launch is None:
        return [*lines, line("launch.unread", why=facts.unread)]
    lines += [*layout_lines(facts), *core_lines(facts)]
    if facts.unsure and not any(one.status == "not checked" for one in lines):
        lines.append(line("launch.nodes-unknown", ranks=_ranks(facts), why=facts.unsure))
    if not any(one.status in ("problem", "not checked") for one in lines):
        lines.insert(0, line("launch.fits", summary=_summary(facts)))
    return lines


def _ranks(facts: LaunchFacts) -> str:
    ranks = ranks_here(facts)
    if ranks:
        return format_count(ranks, "rank")
    opaque = facts.launch is not None and facts.launch.opaque
    return "an unknown number of ranks" if opaque else "a rank for each device"


def _summary(facts: LaunchFacts) -> str:
    assert facts.launch is not None
    seen, nodes, given_by = seen_by_ranks(facts), facts.nodes or 1, facts.launch.processes_from
    ranks = ranks_here(facts)
    text = _ranks(facts) if nodes == 1 else f"{_ranks(facts)} on each of {nodes} nodes"
    text = ranks_on_nodes(ranks, nodes) if ranks and nodes > 1 else text
    text += f" ({given_by})" if given_by else ""
    if seen.count:
        kind = "NPU" if seen.variable.startswith("ASCEND") else "GPU"
        text += f", {count_devices(seen.count, kind)} for them" + (f" ({seen.said})" if seen.said else "")
    return text


_SWIFTS = ("swift", "megatron")
_HERE = ("localhost", "127.0.0.1", "::1", "")
_NUMBERED = {
    "JOB_COMPLETION_INDEX": "this pod's number in its Job",
    "SLURM_NODEID": "this node's number in its Slurm job",
}


def node_lines(facts: LaunchFacts) -> Iterator[Line]:
    meeting, env = facts.meeting, facts.environment
    nodes, rank, launcher = meeting.nodes, meeting.node_rank, meeting.launcher
    by_default = meeting.rank_from == "the default"
    if not facts.unsure and rank is not None and rank >= nodes and meeting.rank_from and not by_default:
        count, nodes_from = format_count(nodes, "node"), meeting.nodes_from or "default"
        wanted, last = flag("nodes", launcher, rank + 1), nodes - 1
        yield line(
            "launch.rank-outside", meeting=meeting, last=last, nodes=count, nodes_from=nodes_from, flag=wanted
        )
    yield from _least_and_most(facts)
    if not facts.unsure and nodes > 1 and rank == 0 and by_default:
        for name, who in _NUMBERED.items():
            if env.get(name, "").isdecimal() and int(env[name][:9]) > 0:
                wanted = flag("node-rank", launcher, name)
                yield line("launch.rank-defaults", who=who, number=env[name], variable=name, flag=wanted)
                break
    if not facts.unsure:
        yield from _slurm_nodes(facts, nodes)
    yield from _not_read(facts)
    yield from kept_back_lines(facts)


def _least_and_most(facts: LaunchFacts) -> Iterator[Line]:
    launch = facts.launch
    text = launch.options.get("--nnodes", "") if launch is not None and launch.launcher == "torchrun" else ""
    least, colon, most = text.partition(":")
    if colon and least.isdecimal() and most.isdecimal() and int(least[:9]) > int(most[:9]):
        yield line("launch.least-over-most", least=least, most=most)


def _slurm_nodes(facts: LaunchFacts, nodes: int) -> Iterator[Line]:
    env, launch = facts.environment, facts.launch
    if launch is None:
        return
    srun, nodes_from, launcher = launch.srun, facts.meeting.nodes_from, facts.meeting.launcher
    starts_ranks = launch.launcher in ELASTIC or (launch.launcher in _SWIFTS and launch.by_torchrun)
    if srun is not None and starts_ranks:
        if (srun.tasks or 0) > 1:
            yield line("launch.srun-tasks", launch=launch)
        if srun.nodes is not None and srun.nodes > nodes == 1 and not nodes_from:
            yield line("launch.srun-nodes", launch=launch, flag=flag("nodes", launcher, srun.nodes))
            return
    word = env.get("SLURM_NNODES") or env.get("SLURM_JOB_NUM_NODES") or ""
    if not word.isdecimal():
        return
    given = int(word[:9])
    if nodes > given:
        yield line(
            "launch.slurm-nodes", meeting=facts.meeting, given=given, flag=flag("nodes", launcher, given)
        )
    elif nodes > 1 and "SLURM_STEP_ID" not in env and starts_ranks and srun is None:
        yield line("launch.batch-script", given=given, nodes=nodes)


def _not_read(facts: LaunchFacts) -> Iterator[Line]:
    """Variables of ms-swift in front of a plain torchrun, which reads flags and PET_* only."""
    launch, env = facts.launch, facts.environment
    flags = table("launch")["flags"]["unread"].get(launch.launcher) if launch is not None else None
    if launch is None or flags is None:
        return
    of_ranks = "one rank" if launch.launcher == "torchrun" else "its own default"
    for name, option, given, instead in (
        ("NPROC_PER_NODE", flags[0], launch.processes_from or launch.by_word, of_ranks),
        ("NNODES", flags[1], facts.meeting.nodes_from, "one node"),
    ):
        value = env.get(name, "")
        if value.isdecimal() and int(value[:9]) > 1 and not given:
            said = f"{launch.launcher} does not read {name}={value}"
            yield line("launch.not-read", said=said, value=value, flag=option, instead=instead)


def kept_back_lines(facts: LaunchFacts) -> Iterator[Line]:
    """What a script sets for its own lines alone, and a program that it starts would read."""
    launch = facts.launch
    if launch is None:
        return
    reads = table("launch")["read_from_environment"]
    own = reads[
        "swift" if launch.launcher in _SWIFTS else launch.launcher if launch.launcher in ELASTIC else ""
    ]
    names = [
        name
        for name, value in launch.kept_back.items()
        if value != f"${name}"  # under a condition
        and name not in launch.environment
        and (name in own or name.startswith(tuple(reads["all"])))
    ]
    if names:
        settings = ", ".join(f"{name}={launch.kept_back[name]}" for name in names)
        who = launch.launcher or "the program"
        yield line("launch.kept-back", settings=settings, who=who, names=" ".join(names))


def environment_lines(facts: LaunchFacts) -> Iterator[Line]:
    """RANK, WORLD_SIZE and their kin: of a platform that counts pods with them, or left from another job."""
    env, launch = facts.environment, facts.launch
    size, rank = env.get("WORLD_SIZE", ""), env.get("RANK", "")
    if launch is None or not (size.isdecimal() or rank.isdecimal()):
        return
    world = int(size[:9]) if size.isdecimal() else 1
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    variables = ", ".join(f"{name}={env[name]}" for name in names if env.get(name))
    if facts.is_elastic:  # torch's agent gives its ranks their own
        if _counts_nodes(facts, world):
            yield line(
                "launch.platform-nodes",
                variables=variables,
                world=world,
                flags=flag("platform", launch.launcher, 0),
            )
        return
    if any(facts.inherited.get(name) != env[name] for name in ("RANK", "WORLD_SIZE") if name in env):
        return  # CMD itself sets them
    if launch.launcher in ("srun", "mpirun") or (world <= 1 and rank in ("", "0")):
        return
    waits = f"it would wait for {world - 1} others" if world > 1 else "it would wait for others"
    by_platform = "KUBERNETES_SERVICE_HOST" in env or env.get("MASTER_ADDR")
    left = "TORCHELASTIC_RUN_ID" in env or "LOCAL_RANK" in env or not by_platform
    yield line(f"launch.{'left' if left else 'platform'}-environment", variables=variables, waits=waits)


def _counts_nodes(facts: LaunchFacts, world: int) -> bool:
    """Whether a platform counts several nodes where CMD starts one. A script that exports WORLD_SIZE for
    itself counts ranks with it; a platform counts nodes, and sets RANK too."""
    env, launch = facts.environment, facts.launch
    if launch is None or facts.nodes != 1 or "PET_NNODES" in env or "LOCAL_RANK" in env:
        return False
    by_rank = env.get("RANK", "").isdecimal() and world > 1 and world != launch.processes
    return by_rank and env.get("MASTER_ADDR", "") not in (*_HERE, facts.host)


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
    from diag.preflight.estimate.plan import parallel_sizes  # much to load where there is no CMD

    flags = parse_flags(launch.words, launch.environment)
    try:
        if launch.program in ("megatron", "megatron-lm"):
            sizes = parallel_sizes(flags)
            groups = sizes.tp * sizes.pp * sizes.cp
            yield from _megatron(facts, sizes, world)
            if world % groups == 0 and flags.text("rlhf_type") not in _NOT_BY_PAIRS:
                total = flags.maybe_whole("global_batch_size")
                micro = flags.whole("micro_batch_size", default=1)
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
