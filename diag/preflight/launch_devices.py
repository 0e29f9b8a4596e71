"""Ranks of this node against the devices that they will see. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from diag.launch.launchers.command.flags import parse_flags
from diag.preflight.launch_facts import LaunchFacts
from diag.preflight.line import Line
from diag.preflight.visible import Visible, visible_gpus, visible_npus
from diag.text.units import format_count

_WHAT = "launch"
_ID = "launch-mismatch"


def ranks_here(facts: LaunchFacts) -> int | None:
    """Ranks that CMD starts on this node; None where it is not said, or depends on devices that nobody saw."""
    launch = facts.launch
    if launch is None:
        return None
    if launch.by_word == "cpu" or launch.opaque:
        return None
    if launch.by_word or (launch.processes is None and launch.launcher in ("deepspeed", "accelerate")):
        return seen_by_ranks(facts).count or None
    if launch.hosts is not None and not launch.options.get("--num_gpus") and launch.slots.get(facts.host):
        return launch.slots[facts.host]
    return launch.processes or 1


def seen_by_ranks(facts: LaunchFacts) -> Visible:
    """The devices as CMD's launcher hands them on."""
    launch = facts.launch
    if "ASCEND_RT_VISIBLE_DEVICES" in facts.environment or (facts.npus and not facts.gpus):
        return visible_npus(facts.environment, facts.npus)
    seen = visible_gpus(facts.environment, facts.gpus)
    if launch is None:
        return seen
    if launch.launcher == "deepspeed" and seen.variable and _deepspeed_ignores(facts):
        return visible_gpus({}, facts.gpus)
    chosen = launch.options.get("--gpu_ids", "") if launch.launcher == "accelerate" else ""
    if chosen and chosen != "all":
        return replace(visible_gpus({"CUDA_VISIBLE_DEVICES": chosen}, facts.gpus), variable="--gpu_ids")
    return seen


def trains_on_cpu(facts: LaunchFacts) -> bool:
    launch = facts.launch
    if launch is None:
        return False
    flags = parse_flags(launch.words, launch.environment)
    gloo = flags.text("ddp_backend", "distributed_backend", "backend", "dist_backend") == "gloo"
    said = flags.text("use_cpu", "no_cuda").lower() if flags.words("use_cpu", "no_cuda") else ""
    bare = any(name in flags and not flags.words(name) for name in ("use_cpu", "no_cuda"))
    by_launcher = (
        launch.by_word == "cpu"
        or "--cpu" in launch.options
        or launch.options.get("--use_cpu", "").lower() == "true"
    )
    return gloo or bare or said in ("true", "1", "yes") or by_launcher


def device_lines(facts: LaunchFacts) -> Iterator[Line]:
    seen = seen_by_ranks(facts)
    kind = "NPU" if seen.variable.startswith("ASCEND") or (facts.npus and not facts.gpus) else "GPU"
    if seen.wrong:
        yield Line(
            _WHAT,
            "problem",
            f"{seen.said}: {seen.wrong}; {_devices(seen.count or 0, kind)} left",
            _written_well(seen, facts),
            _ID,
            "critical" if not seen.count else "warning",
        )
    if facts.launch is None or facts.launch.opaque or trains_on_cpu(facts):
        return
    if facts.launch.launcher == "deepspeed":
        yield from _deepspeed(facts)
    yield from _slurm(facts)
    ranks = ranks_here(facts)
    if seen.count is None:
        if facts.gpus is None:
            yield Line(
                _WHAT,
                "not checked",
                f"{_ranks(ranks)} on this node{_from(facts)}, and no {kind} was seen here to hold that against",
                "run it where the job will run: in its container or pod, with its GPUs (docker --gpus all; Kubernetes: "
                "resources.limits nvidia.com/gpu)",
            )
        return
    if seen.mig and ranks and ranks > 1:
        yield Line(
            _WHAT,
            "note",
            f"{seen.said}: CUDA shows each process one instance of MIG, and NCCL joins none of them: "
            f"{ranks} ranks will not get one each",
            "whole GPUs for a job of several ranks (nvidia-smi -mig 0)",
            _ID,
        )
    if not seen.count:
        yield from _none(facts, seen, kind)
    elif ranks and ranks > seen.count:
        yield _too_many(facts, seen, ranks, kind)
    elif ranks and ranks < seen.count:
        yield _idle(facts, seen, ranks, kind)


def _too_many(facts: LaunchFacts, seen: Visible, ranks: int, kind: str) -> Line:
    launch = facts.launch
    assert launch is not None and seen.count is not None
    shown = seen.said or f"{_devices(seen.count, kind)} {'is' if seen.count == 1 else 'are'} here"
    shows = f"{shown} shows {_devices(seen.count, kind)}" if seen.said else shown
    where = "start on this node" if seen.count != 1 or ranks != 1 else "starts on this node"
    more = (
        f"{ranks} devices in {seen.variable}"
        if seen.variable
        else f"{ranks} in the container (nvidia.com/gpu: {ranks})"
    )
    remedy = f"{_count_flag(facts, seen.count)}, or {more}"
    return Line(
        _WHAT,
        "problem",
        f"{ranks} ranks {where}{_from(facts)}, but {shows}: local rank {seen.count} finds none "
        f"({'invalid device ordinal' if kind == 'GPU' else 'its device id is out of range'})",
        remedy,
        _ID,
        "critical",
    )


def _idle(facts: LaunchFacts, seen: Visible, ranks: int, kind: str) -> Line:
    launch = facts.launch
    assert launch is not None and seen.count is not None
    what = f"{_devices(seen.count, kind)} are visible{f' ({seen.said})' if seen.said else ''}"
    if (
        launch.program in ("swift", "megatron")
        and not facts.is_elastic
        and ranks == 1
        and launch.launcher in ("swift", "megatron")
    ):
        pet = facts.environment.get("PET_NPROC_PER_NODE") or facts.environment.get("PET_NNODES")
        if pet:
            return Line(
                _WHAT,
                "problem",
                f"PET_NPROC_PER_NODE or PET_NNODES is set, but `{launch.program} {launch.verb}` starts torchrun "
                "only with NPROC_PER_NODE or NNODES: it will be one process",
                "NPROC_PER_NODE=$PET_NPROC_PER_NODE NNODES=$PET_NNODES NODE_RANK=$PET_NODE_RANK in front of CMD",
                _ID,
                "critical",
            )
        does = (
            "spreads one model's layers over them (device_map)"
            if launch.program == "swift"
            else "uses one of them"
        )
        return Line(
            _WHAT,
            "note",
            f"NPROC_PER_NODE is not set, so `{launch.program} {launch.verb}` is one process, which {does}; {what}",
            f"NPROC_PER_NODE={seen.count} for one rank a device",
            _ID,
        )
    if launch.launcher == "accelerate" and (launch.nodes or 1) > 1 and launch.total == seen.count:
        return Line(
            _WHAT,
            "note",
            f"accelerate's --num_processes {launch.total} is of all {launch.nodes} machines: {ranks} ranks here, and {what}",
            f"--num_processes {seen.count * (launch.nodes or 1)}",
            _ID,
        )
    if launch.program == "swift" and facts.is_elastic and launch.launcher == "swift":
        does = (
            f"each takes {seen.count // ranks} (device_map)" if seen.count % ranks == 0 else "some stay idle"
        )
        return Line(
            _WHAT,
            "note",
            f"{_ranks(ranks)} on this node{_from(facts)}, and {what}: {does}",
            _count_flag(facts, seen.count),
            _ID,
        )
    return Line(
        _WHAT,
        "note",
        f"{_ranks(ranks)} on this node{_from(facts)}, and {what}: {seen.count - ranks} may stay idle",
        _count_flag(facts, seen.count),
        _ID,
    )


def _none(facts: LaunchFacts, seen: Visible, kind: str) -> Iterator[Line]:
    if seen.wrong:
        return
    if facts.gpus:
        yield Line(
            _WHAT,
            "problem",
            f"{seen.said} hides all {_devices(len(facts.gpus), kind)} from the ranks",
            f"unset {seen.variable}, unless it is meant to train on the CPU (--use_cpu true --ddp_backend gloo)",
            _ID,
            "critical",
        )
    elif seen.variable:
        yield Line(
            _WHAT,
            "note",
            f"{seen.said} shows the ranks no {kind}",
            f"unset {seen.variable} where it should",
            _ID,
        )


def _deepspeed_ignores(facts: LaunchFacts) -> bool:
    """deepspeed 0.14.5 and 0.19.8, launcher/runner.py: "Detected VISIBLE_DEVICES=... but ignoring it"."""
    launch = facts.launch
    assert launch is not None
    options = launch.options
    several = options.get("--num_nodes", "").isdecimal() and int(options["--num_nodes"]) > 1
    by_flag = bool(
        options.get("--include") or options.get("--exclude") or options.get("--num_gpus") or several
    )
    return launch.hosts is None and by_flag


def _deepspeed(facts: LaunchFacts) -> Iterator[Line]:
    launch = facts.launch
    assert launch is not None
    options, value = launch.options, facts.environment.get("CUDA_VISIBLE_DEVICES", "")
    if value and _deepspeed_ignores(facts):
        flag = next(
            name for name in ("--include", "--exclude", "--num_gpus", "--num_nodes") if options.get(name)
        )
        taken = (
            f"GPUs 0-{(launch.processes or 1) - 1}"
            if flag == "--num_gpus" and (launch.processes or 1) > 1
            else "what that says"
        )
        yield Line(
            _WHAT,
            "problem",
            f"CUDA_VISIBLE_DEVICES={value} is ignored by deepspeed beside {flag}: it takes {taken}",
            f"--include localhost:{value}, without --num_gpus, or CUDA_VISIBLE_DEVICES alone",
            _ID,
        )
    if (options.get("--include") or options.get("--exclude")) and (
        options.get("--num_gpus") or options.get("--num_nodes")
    ):
        yield Line(
            _WHAT,
            "problem",
            "deepspeed refuses --include or --exclude together with --num_gpus or --num_nodes",
            "one of them",
            _ID,
            "critical",
        )
    hosts = launch.hosts
    if hosts is None:
        if options.get("--hostfile"):
            yield Line(
                _WHAT,
                "problem",
                f"{options['--hostfile']} is not there: deepspeed would go on with this machine alone",
                "correct --hostfile",
                _ID,
                "critical",
            )
        return
    if hosts.bad or not hosts.slots:
        yield Line(
            _WHAT,
            "problem",
            f"{hosts.path}: {hosts.bad!r} is no line `HOST slots=N`, or names a host again"
            if hosts.bad
            else f"{hosts.path} names no host",
            "one line for each host: HOST slots=8",
            _ID,
            "critical",
        )
        return
    asked = int(options["--num_nodes"]) if options.get("--num_nodes", "").isdecimal() else 0
    if asked > len(hosts.slots):
        yield Line(
            _WHAT,
            "problem",
            f"--num_nodes {asked}, and {hosts.path} names {len(hosts.slots)}",
            "name the others there",
            _ID,
            "critical",
        )
    for spec in filter(None, options.get("--include", "").split("@")):
        host, _, slots = spec.partition(":")
        wrong = [
            slot
            for slot in slots.split(",")
            if slot.isdecimal() and int(slot) >= hosts.slots.get(host, 1 << 20)
        ]
        if host not in hosts.slots:
            yield Line(
                _WHAT,
                "problem",
                f"--include names {host}, and {hosts.path} does not",
                "the same name in both",
                _ID,
                "critical",
            )
        elif wrong:
            yield Line(
                _WHAT,
                "problem",
                f"--include {spec}: {hosts.path} gives {host} {hosts.slots[host]} slots, numbered from 0",
                f"slots below {hosts.slots[host]}",
                _ID,
                "critical",
            )


def _slurm(facts: LaunchFacts) -> Iterator[Line]:
    """What Slurm gave this job on this node, where that is fewer than the ranks. `h100:4` and `4` are both
    used."""
    ranks = ranks_here(facts)
    for name in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"):
        word = facts.environment.get(name, "").rpartition(":")[2]
        if word.isdecimal() and ranks and 0 < int(word[:6]) < ranks:
            yield Line(
                _WHAT,
                "problem",
                f"{ranks} ranks on this node{_from(facts)}, and Slurm gave this job "
                f"{_devices(int(word[:6]), 'GPU')} a node ({name}={facts.environment[name]})",
                f"#SBATCH --gpus-per-node={ranks}, or {_count_flag(facts, int(word[:6]))}",
                _ID,
                "critical",
            )
            return


def _count_flag(facts: LaunchFacts, number: int) -> str:
    """The flag or variable by which CMD is told its ranks of a node."""
    launch = facts.launch
    assert launch is not None
    nodes = launch.nodes or 1
    return {
        "torchrun": f"--nproc_per_node {number}",
        "deepspeed": f"--num_gpus {number}",
        "accelerate": f"--num_processes {number * nodes}",
        "srun": f"srun --ntasks-per-node={number}",
        "mpirun": f"-np {number * nodes}",
    }.get(launch.launcher, f"NPROC_PER_NODE={number}")


def _written_well(seen: Visible, facts: LaunchFacts) -> str:
    name = seen.variable or "CUDA_VISIBLE_DEVICES"
    example = ",".join(dict.fromkeys(seen.devices)) or ",".join(
        str(number) for number in range(len(facts.gpus or "01"))
    )
    return f"{name}={example}: numbers or uuids with commas between them, each once"


def _from(facts: LaunchFacts) -> str:
    launch = facts.launch
    if launch is None or not launch.processes_from:
        return ""
    number = launch.by_word or launch.processes
    values = {
        "NPROC_PER_NODE": f"NPROC_PER_NODE={number}",
        "PET_NPROC_PER_NODE": f"PET_NPROC_PER_NODE={number}",
        "--nproc_per_node": f"--nproc_per_node {number}",
        "--num_gpus": f"--num_gpus {launch.processes}",
        "--num_processes": f"--num_processes {launch.total} on {launch.nodes or 1} machines"
        if (launch.nodes or 1) > 1
        else f"--num_processes {launch.total}",
    }
    return f" ({values.get(launch.processes_from, launch.processes_from)})"


def _ranks(number: int | None) -> str:
    return "as many ranks as devices" if number is None else format_count(number, "rank")


def _devices(number: int, kind: str) -> str:
    return format_count(number, kind) if number else f"no {kind}"
