"""Ranks of this node against the devices that they will see. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from diag.launch.launchers.command import Command
from diag.launch.launchers.command.flags import parse_flags
from diag.launch.launchers.hostlist import Hostfile
from diag.preflight.launch_facts import LaunchFacts, flag
from diag.preflight.line import Line, line
from diag.preflight.visible import Visible, visible_gpus, visible_npus
from diag.text.units import format_count


def ranks_here(facts: LaunchFacts) -> int | None:
    """Ranks that CMD starts on this node; None where that is not given, or depends on devices that were not seen."""
    launch = facts.launch
    if launch is None or launch.by_word == "cpu" or launch.opaque:
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
        yield _wrong(facts, seen, kind)
    if facts.launch is None or facts.launch.opaque or trains_on_cpu(facts):
        return
    if facts.launch.launcher == "deepspeed":
        yield from _deepspeed(facts, facts.launch)
    yield from _slurm(facts)
    if seen.count is not None:
        yield from _compared(facts, facts.launch, seen, kind)
    elif facts.gpus is None:
        ranks = _ranks(ranks_here(facts))
        yield line("launch.no-device-seen", ranks=ranks, given_by=_given_by(facts), kind=kind)


def _wrong(facts: LaunchFacts, seen: Visible, kind: str) -> Line:
    name = seen.variable or "CUDA_VISIBLE_DEVICES"
    every = map(str, range(len(facts.gpus or "01")))
    example = ",".join(dict.fromkeys(seen.devices)) or ",".join(every)
    left = count_devices(seen.count or 0, kind)
    key = "wrong-devices" if seen.count else "no-devices-left"
    return line(f"launch.{key}", seen=seen, devices=left, name=name, example=example)


def _compared(facts: LaunchFacts, launch: Command, seen: Visible, kind: str) -> Iterator[Line]:
    """Ranks of this node against the devices that they see."""
    ranks, count = ranks_here(facts), seen.count or 0
    if seen.mig and ranks and ranks > 1:
        yield line("launch.mig", seen=seen, ranks=ranks)
    if not count and not seen.wrong and facts.gpus:
        yield line("launch.all-hidden", seen=seen, devices=count_devices(len(facts.gpus), kind))
    elif not count and not seen.wrong and seen.variable:
        yield line("launch.none-shown", seen=seen, kind=kind)
    elif count and ranks and ranks > count:
        yield _too_many(facts, seen, ranks, kind)
    elif ranks and ranks < count:
        yield _idle(facts, launch, seen, ranks, kind)


def _too_many(facts: LaunchFacts, seen: Visible, ranks: int, kind: str) -> Line:
    devices = count_devices(seen.count or 0, kind)
    error = "invalid device ordinal" if kind == "GPU" else "its device id is out of range"
    if seen.variable:
        shown, more = f"{seen.said} shows {devices}", f"{ranks} devices in {seen.variable}"
    else:
        shown = f"{devices} {'is' if seen.count == 1 else 'are'} here"
        more = f"{ranks} in the container (nvidia.com/gpu: {ranks})"
    do = f"{_count_flag(facts, seen.count or 0)}, or {more}"
    start = f"{ranks} ranks start on this node{_given_by(facts)}"
    return line("launch.too-many-ranks", start=start, shown=shown, seen=seen, error=error, do=do)


def _idle(facts: LaunchFacts, launch: Command, seen: Visible, ranks: int, kind: str) -> Line:
    count = seen.count or 0
    visible = f"{count_devices(count, kind)} are visible" + (f" ({seen.said})" if seen.said else "")
    by_swift = launch.launcher in ("swift", "megatron") and launch.program in ("swift", "megatron")
    if by_swift and not facts.is_elastic and ranks == 1:
        if facts.environment.get("PET_NPROC_PER_NODE") or facts.environment.get("PET_NNODES"):
            return line("launch.pet-unread", launch=launch)
        spreads = "spreads one model's layers over them (device_map)"
        does = spreads if launch.program == "swift" else "uses one of them"
        return line("launch.one-process", launch=launch, does=does, visible=visible, count=count)
    nodes = launch.nodes or 1
    if launch.launcher == "accelerate" and nodes > 1 and launch.total == count:
        return line("launch.all-machines", launch=launch, ranks=ranks, visible=visible, wanted=count * nodes)
    does = f"{count - ranks} may stay idle"
    if launch.program == launch.launcher == "swift" and facts.is_elastic:
        does = f"each takes {count // ranks} (device_map)" if count % ranks == 0 else "some stay idle"
    wanted, given_by = _count_flag(facts, count), _given_by(facts)
    return line(
        "launch.idle", ranks=_ranks(ranks), given_by=given_by, visible=visible, does=does, flag=wanted
    )


def _deepspeed_ignores(facts: LaunchFacts) -> bool:
    """deepspeed 0.14.5 and 0.19.8, launcher/runner.py: "Detected VISIBLE_DEVICES=... but ignoring it"."""
    launch = facts.launch
    assert launch is not None
    options = launch.options
    several = options.get("--num_nodes", "").isdecimal() and int(options["--num_nodes"]) > 1
    by_flag = any(options.get(name) for name in ("--include", "--exclude", "--num_gpus"))
    return launch.hosts is None and (by_flag or several)


def _deepspeed(facts: LaunchFacts, launch: Command) -> Iterator[Line]:
    options, value = launch.options, facts.environment.get("CUDA_VISIBLE_DEVICES", "")
    given = [name for name in ("--include", "--exclude", "--num_gpus", "--num_nodes") if options.get(name)]
    if value and _deepspeed_ignores(facts):
        by_number = given[0] == "--num_gpus" and (launch.processes or 1) > 1
        taken = f"GPUs 0-{(launch.processes or 1) - 1}" if by_number else "what that says"
        yield line("launch.deepspeed-ignores", value=value, flag=given[0], taken=taken)
    if {"--include", "--exclude"} & set(given) and {"--num_gpus", "--num_nodes"} & set(given):
        yield line("launch.deepspeed-refuses")
    hosts = launch.hosts
    if hosts is None:
        if options.get("--hostfile"):
            yield line("launch.hostfile-missing", path=options["--hostfile"])
    elif hosts.bad:
        yield line("launch.hostfile-line", hosts=hosts)
    elif not hosts.slots:
        yield line("launch.hostfile-empty", hosts=hosts)
    else:
        yield from _against_hosts(options, hosts)


def _against_hosts(options: Mapping[str, str], hosts: Hostfile) -> Iterator[Line]:
    asked = int(options["--num_nodes"]) if options.get("--num_nodes", "").isdecimal() else 0
    if asked > len(hosts.slots):
        yield line("launch.hostfile-few", asked=asked, hosts=hosts, count=len(hosts.slots))
    for spec in filter(None, options.get("--include", "").split("@")):
        host, _, text = spec.partition(":")
        slots = hosts.slots.get(host)
        if slots is None:
            yield line("launch.include-host", host=host, hosts=hosts)
        elif any(slot.isdecimal() and int(slot) >= slots for slot in text.split(",")):
            yield line("launch.include-slots", spec=spec, host=host, hosts=hosts, slots=slots)


def _slurm(facts: LaunchFacts) -> Iterator[Line]:
    """What Slurm gave this job on this node, where that is fewer than the ranks. `h100:4` and `4` are both
    used."""
    ranks = ranks_here(facts)
    for name in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"):
        value = facts.environment.get(name, "")
        word = value.rpartition(":")[2]
        if word.isdecimal() and ranks and 0 < int(word[:6]) < ranks:
            given = f"{count_devices(int(word[:6]), 'GPU')} a node ({name}={value})"
            wanted = _count_flag(facts, int(word[:6]))
            yield line("launch.slurm-gpus", ranks=ranks, given_by=_given_by(facts), given=given, flag=wanted)
            return


def _count_flag(facts: LaunchFacts, number: int) -> str:
    """The flag or variable that gives CMD its ranks of a node."""
    assert facts.launch is not None
    return flag("ranks", facts.launch.launcher, number, facts.launch.nodes or 1)


def _given_by(facts: LaunchFacts) -> str:
    launch = facts.launch
    if launch is None or not launch.processes_from:
        return ""
    name, number, nodes = launch.processes_from, launch.by_word or launch.processes, launch.nodes or 1
    if name in ("NPROC_PER_NODE", "PET_NPROC_PER_NODE"):
        return f" ({name}={number})"
    if name == "--num_processes":
        return f" ({name} {launch.total}" + (f" on {nodes} machines)" if nodes > 1 else ")")
    number = launch.processes if name == "--num_gpus" else number
    return f" ({name} {number})" if name in ("--nproc_per_node", "--num_gpus") else f" ({name})"


def _ranks(number: int | None) -> str:
    return "as many ranks as devices" if number is None else format_count(number, "rank")


def count_devices(number: int, kind: str) -> str:
    return format_count(number, kind) if number else f"no {kind}"
