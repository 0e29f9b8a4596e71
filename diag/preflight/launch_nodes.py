"""Nodes, node ranks and what other launchers left in the environment, as CMD's launcher will read them. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from diag.preflight.launch_facts import ELASTIC, LaunchFacts, flag
from diag.preflight.line import Line, line, table
from diag.text.units import format_count

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
