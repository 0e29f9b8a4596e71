"""Nodes, node ranks and what other launchers left in the environment, as CMD's launcher will read them. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from diag.preflight.launch_facts import ELASTIC, LaunchFacts
from diag.preflight.line import Line

_WHAT = "launch"
_ID = "launch-mismatch"
_SWIFTS = ("swift", "megatron")
_HERE = ("localhost", "127.0.0.1", "::1", "")


def node_lines(facts: LaunchFacts) -> Iterator[Line]:
    meeting, env = facts.meeting, facts.environment
    nodes = meeting.nodes
    rank, rank_from = meeting.node_rank, meeting.rank_from
    if not facts.unsure and rank is not None and rank >= nodes and rank_from and rank_from != "the default":
        told = (
            f"{meeting.nodes_from}: {nodes}" if meeting.nodes_from else f"{nodes}, as nothing says otherwise"
        )
        yield Line(
            _WHAT,
            "problem",
            f"node rank {rank} ({rank_from}), and the number of nodes is {nodes} ({told}): they go from 0 to {nodes - 1}",
            _nodes_flag(facts, rank + 1),
            _ID,
            "critical",
        )
    yield from _least_and_most(facts)
    if not facts.unsure and nodes > 1 and rank == 0 and rank_from == "the default":
        for name, who in (
            ("JOB_COMPLETION_INDEX", "this pod's number in its Job"),
            ("SLURM_NODEID", "this node's number in its Slurm job"),
        ):
            if env.get(name, "").isdecimal() and int(env[name][:9]) > 0:
                yield Line(
                    _WHAT,
                    "problem",
                    f"CMD takes node rank 0, the default, and {who} is {env[name]} ({name}): more than one node would be node 0",
                    _rank_flag(facts, name),
                    _ID,
                    "critical",
                )
                break
    if not facts.unsure:
        yield from _slurm_nodes(facts, nodes)
    yield from _not_read(facts)


def _least_and_most(facts: LaunchFacts) -> Iterator[Line]:
    text = (
        facts.launch.options.get("--nnodes", "")
        if facts.launch is not None and facts.launch.launcher == "torchrun"
        else ""
    )
    least, colon, most = text.partition(":")
    if colon and least.isdecimal() and most.isdecimal() and int(least[:9]) > int(most[:9]):
        yield Line(
            _WHAT,
            "problem",
            f"--nnodes {text}: at least {least} nodes, and at most {most}",
            f"--nnodes {most}:{least}",
            _ID,
            "critical",
        )


def _slurm_nodes(facts: LaunchFacts, nodes: int) -> Iterator[Line]:
    env, launch = facts.environment, facts.launch
    if launch is None:
        return
    starts_ranks = launch.launcher in ELASTIC or (launch.launcher in _SWIFTS and launch.by_torchrun)
    by_srun = launch.srun.nodes if launch.srun is not None else None
    tasks = launch.srun.tasks if launch.srun is not None else None
    if tasks is not None and tasks > 1 and starts_ranks:
        yield Line(
            _WHAT,
            "problem",
            f"srun starts {tasks} tasks on each node, and each would be a {launch.launcher} that starts ranks of its own, "
            "on the same port",
            "srun --ntasks-per-node=1",
            _ID,
            "critical",
        )
    if (
        launch.srun is not None
        and by_srun is not None
        and by_srun > nodes == 1
        and starts_ranks
        and not facts.meeting.nodes_from
    ):
        yield Line(
            _WHAT,
            "problem",
            f"srun starts CMD on {by_srun} nodes ({launch.srun.nodes_from}), and {launch.launcher} is told of one: each node "
            "would train for itself",
            _nodes_flag(facts, by_srun),
            _ID,
            "critical",
        )
        return
    word = env.get("SLURM_NNODES") or env.get("SLURM_JOB_NUM_NODES") or ""
    if not word.isdecimal():
        return
    given = int(word[:9])
    if nodes > given:
        yield Line(
            _WHAT,
            "problem",
            f"CMD is of {nodes} nodes ({facts.meeting.nodes_from}), and Slurm gave this job {given} "
            "(SLURM_NNODES)",
            f"#SBATCH --nodes={nodes}, or {_nodes_flag(facts, given)}",
            _ID,
            "critical",
        )
    elif nodes > 1 and "SLURM_STEP_ID" not in env and starts_ranks and launch.srun is None:
        yield Line(
            _WHAT,
            "note",
            f"a batch script runs on the first of Slurm's {given} nodes alone, and CMD waits for {nodes}",
            f"srun --nodes={nodes} --ntasks-per-node=1 in front of CMD",
            _ID,
        )


def _not_read(facts: LaunchFacts) -> Iterator[Line]:
    """Variables of ms-swift in front of a plain torchrun, which reads flags and PET_* only."""
    launch, env = facts.launch, facts.environment
    if launch is None or launch.launcher not in ("torchrun", "accelerate", "deepspeed"):
        return
    flags = {
        "torchrun": ("--nproc_per_node", "--nnodes"),
        "accelerate": ("--num_processes", "--num_machines"),
        "deepspeed": ("--num_gpus", "--num_nodes"),
    }[launch.launcher]
    told = {
        "NPROC_PER_NODE": bool(launch.processes_from or launch.by_word),
        "NNODES": bool(facts.meeting.nodes_from),
    }
    for name, flag in zip(("NPROC_PER_NODE", "NNODES"), flags, strict=True):
        value = env.get(name, "")
        if value.isdecimal() and int(value[:9]) > 1 and not told[name]:
            number = (
                "one rank"
                if name == "NPROC_PER_NODE" and launch.launcher == "torchrun"
                else "its own default"
            )
            yield Line(
                _WHAT,
                "problem",
                f"{launch.launcher} does not read {name}={value} and no {flag} is given: it takes "
                f"{number if name == 'NPROC_PER_NODE' else 'one node'}",
                f"{flag} {value}",
                _ID,
            )


def environment_lines(facts: LaunchFacts) -> Iterator[Line]:
    """RANK, WORLD_SIZE and their kin: of a platform that counts pods with them, or left from another job."""
    env, launch = facts.environment, facts.launch
    size, rank = env.get("WORLD_SIZE", ""), env.get("RANK", "")
    if launch is None or not (size.isdecimal() or rank.isdecimal()):
        return
    world = int(size[:9]) if size.isdecimal() else 1
    said = ", ".join(
        f"{name}={env[name]}"
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        if env.get(name)
    )
    by_platform = "KUBERNETES_SERVICE_HOST" in env and "LOCAL_RANK" not in env
    if facts.is_elastic:
        # A script that exports WORLD_SIZE for itself counts ranks with it; a platform counts nodes, and sets
        # RANK too.
        counts_nodes = (
            world > 1 and rank.isdecimal() and "LOCAL_RANK" not in env and world != launch.processes
        )
        one_node = facts.nodes == 1 and "PET_NNODES" not in env
        if one_node and counts_nodes and env.get("MASTER_ADDR", "") not in (*_HERE, facts.host):
            yield Line(
                _WHAT,
                "problem",
                f"{said} are there, by which a platform counts {world} nodes, and CMD starts a job of one node: each node "
                "would train for itself",
                _platform_flags(facts),
                _ID,
            )
        return  # torch's agent gives its ranks their own
    if any(
        name not in facts.inherited or facts.inherited[name] != env[name]
        for name in ("RANK", "WORLD_SIZE")
        if name in env
    ):
        return  # CMD itself sets them
    if launch.launcher in ("srun", "mpirun") or (world <= 1 and rank in ("", "0")):
        return
    waits = f"it would wait for {world - 1} others" if world > 1 else "it would wait for others"
    from_elastic = "TORCHELASTIC_RUN_ID" in env or "LOCAL_RANK" in env
    if from_elastic or not (by_platform or env.get("MASTER_ADDR")):
        yield Line(
            _WHAT,
            "problem",
            f"CMD is one process, and {said} are left in the environment from another job: {waits}",
            "unset RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT, or a new shell",
            _ID,
            "critical",
        )
    else:
        yield Line(
            _WHAT,
            "note",
            f"CMD is one process and {said} are there: {waits}",
            "unset them if this is a job of its own",
            _ID,
        )


def _nodes_flag(facts: LaunchFacts, number: int) -> str:
    return {
        "torchrun": f"--nnodes {number}",
        "accelerate": f"--num_machines {number}",
        "deepspeed": f"--num_nodes {number}",
        "torch.distributed.run": f"--nnodes {number}",
    }.get(facts.meeting.launcher, f"NNODES={number}")


def _rank_flag(facts: LaunchFacts, variable: str) -> str:
    return {
        "torchrun": f"--node_rank ${variable}",
        "torch.distributed.run": f"--node_rank ${variable}",
        "accelerate": f"--machine_rank ${variable}",
    }.get(facts.meeting.launcher, f"NODE_RANK=${variable}")


def _platform_flags(facts: LaunchFacts) -> str:
    return {
        "torchrun": "--nnodes $WORLD_SIZE --node_rank $RANK --master_addr $MASTER_ADDR --master_port $MASTER_PORT",
        "deepspeed": "torchrun --nnodes $WORLD_SIZE --node_rank $RANK in place of deepspeed, or a hostfile that names all nodes",
        "accelerate": "--num_machines $WORLD_SIZE --machine_rank $RANK --main_process_ip $MASTER_ADDR",
    }.get(
        facts.launch.launcher if facts.launch is not None else "",
        "NNODES=$WORLD_SIZE NODE_RANK=$RANK in front of CMD",
    )
