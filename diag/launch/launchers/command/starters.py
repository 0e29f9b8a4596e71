"""What the launchers' own command lines and files say: srun, mpirun, deepspeed, accelerate."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from diag.launch.launchers.command.options import CommandError, last_options, number
from diag.launch.launchers.hostlist import Hostfile, Hosts, mpi_hosts, parse_hostfile

# slurm.h: the numbers of what is no step of srun: interactive (salloc's shell), batch, extern
NO_STEPS = frozenset({"", "4294967290", "4294967291", "4294967292"})


@dataclass(frozen=True, slots=True)
class Srun:
    """The nodes that it starts its program on, with who says so, and its tasks on each."""

    nodes: int | None = None
    nodes_from: str = ""
    tasks: int | None = None


def read_srun(
    words: list[str], environment: Mapping[str, str]
) -> tuple[Srun, int | None, dict[str, str], list[str]]:
    """What it is given, the number of all its tasks, the environment of its program, and the program's words.

    >>> read_srun("-N2 --ntasks-per-node 8 --export=ALL,A=1 python t.py".split(), {})
    (Srun(nodes=2, nodes_from='srun -N', tasks=8), None, {'A': '1'}, ['python', 't.py'])
    """
    options, rest = last_options(words, "srun")
    nodes_text, nodes_from = options.get("--nodes", ""), "srun --nodes"
    if "-N" in options:
        nodes_text, nodes_from = options["-N"], "srun -N"
    nodes = number(nodes_text.rpartition("-")[2], nodes_from)
    if nodes is None:
        nodes, nodes_from = number(environment.get("SLURM_NNODES", ""), "SLURM_NNODES"), "SLURM_NNODES"
    tasks = number(options.get("--ntasks_per_node", ""), "srun --ntasks-per-node")
    in_all = number(options.get("--ntasks") or options.get("-n", ""), "srun --ntasks")
    if tasks is None and in_all is not None:
        tasks = max(1, in_all // (nodes or 1))
    elif tasks is None:
        tasks = number(environment.get("SLURM_NTASKS_PER_NODE", ""), "SLURM_NTASKS_PER_NODE")
    found = Srun(nodes, nodes_from if nodes else "", tasks)
    return found, in_all, _exported(options.get("--export", ""), environment), rest


def _exported(text: str, environment: Mapping[str, str]) -> dict[str, str]:
    """`ALL,A=1` adds, a list without ALL leaves only its own and SLURM_*."""
    parts = [part for part in text.split(",") if part]
    names = {part for part in parts if "=" not in part}
    keeps_all = not parts or "ALL" in names
    kept = {
        name: value
        for name, value in environment.items()
        if keeps_all or name in names or name.startswith("SLURM_")
    }
    return kept | dict(part.split("=", 1) for part in parts if "=" in part)


_FILES = ("--hostfile", "-hostfile", "--machinefile", "-machinefile", "-f")
_HOSTS = ("--host", "-host", "-H", "-hosts", "--hosts")
_PROCESSES = ("-np", "--np", "-n", "--n")
_SPREAD = ("-npernode", "--npernode", "-N", "-ppn", "-perhost", "--map-by", "-map-by", "-bynode", "--bynode")
_DEFAULT = "OMPI_MCA_orte_default_hostfile"


@dataclass(frozen=True, slots=True)
class Mpirun:
    """`name` is the program's, `is_spread` whether ranks go to nodes in another way than one node after the
    other. `not_read` is a flag or variable with the hosts or the file that could not be read."""

    name: str
    hosts: Hosts = ()
    hosts_from: str = ""
    processes: int | None = None
    is_spread: bool = False
    not_read: tuple[str, str] | None = None

    def used(self, hosts: Hosts) -> Hosts:
        """Nodes are filled one after the other. A host without a number of slots has as many as it has cores,
        which is not known here; then all hosts are taken, as far as there are processes."""
        if self.is_spread or self.processes is None or any(slots is None for _, slots in hosts):
            return hosts[: self.processes]
        room = itertools.accumulate(slots or 0 for _, slots in hosts)
        return hosts[: sum(before < self.processes for before in (0, *list(room)[:-1]))]

    @property
    def ranks(self) -> int | None:
        """Of each node, where all have as many; None where that is not known."""
        slots = {slots for _, slots in self.used(self.hosts)}
        ranks = next(iter(slots)) if len(slots) == 1 and not self.is_spread else None
        return ranks if ranks and self.processes == ranks * len(self.used(self.hosts)) else None


def read_mpirun(
    name: str, words: Sequence[str], environment: Mapping[str, str], maybe: Callable[[str], str | None]
) -> Mpirun:
    """
    >>> found = read_mpirun("mpirun", ["-np", "16", "-H", "a:8,b:8,c:8"], {}, lambda path: None)
    >>> found.used(found.hosts), found.ranks
    ((('a', 8), ('b', 8)), 8)
    """
    processes = next(
        (
            int(after) or None
            for word, after in itertools.pairwise(words)
            if word in _PROCESSES and after.isdecimal() and len(after) < 10
        ),
        None,
    )
    is_spread = any(word.startswith(_SPREAD) for word in words)
    flag, value = next(
        ((word, after) for word, after in itertools.pairwise(words) if word in _HOSTS + _FILES), ("", "")
    )
    if not flag:
        # kubeflow/mpi-operator 0.4: /etc/mpi/hostfile
        flag, value = _DEFAULT, environment.get(_DEFAULT, "")
    # Open MPI's `a:2,b:2` and `a,a,b`: a host has a slot for each time that it is named
    text = value.replace(",", "\n") if flag in _HOSTS else maybe(value) if value else ""
    hosts = mpi_hosts(text or "")
    who = f"{flag} {value}" if flag in _FILES else flag
    not_read = (flag, value) if value and not hosts else None
    return Mpirun(name, hosts, who if hosts else "", processes, is_spread, not_read)


DEFAULT_HOSTFILE = "/job/hostfile"  # launcher/runner.py: DLTS_HOSTFILE


@dataclass(frozen=True, slots=True)
class DeepSpeed:
    """`slots` are the ranks of each host that takes part, empty where no hostfile is there."""

    hosts: Hostfile | None
    slots: dict[str, int]
    processes: int | None
    processes_from: str
    nodes: int | None
    nodes_from: str


def read_deepspeed(options: Mapping[str, str], maybe: Callable[[str], str | None]) -> DeepSpeed:
    """Without a hostfile DeepSpeed takes this machine alone."""
    path = options.get("--hostfile") or DEFAULT_HOSTFILE
    text = maybe(path)
    hosts = parse_hostfile(text, path) if text is not None else None
    processes = number(options.get("--num_gpus", "").removeprefix("-1"), "--num_gpus")
    asked = number(options.get("--num_nodes", "").removeprefix("-1"), "--num_nodes")
    include = options.get("--include", "")
    slots = _filtered(hosts.slots, include, options.get("--exclude", ""), asked) if hosts else {}
    processes_from = "--num_gpus" if processes else ""
    if processes is None and slots:
        processes, processes_from = max(slots.values()), "--include" if include else "slots of the hostfile"
    elif processes is None and ":" in include:
        processes, processes_from = len(include.partition("@")[0].rpartition(":")[2].split(",")), "--include"
    nodes, nodes_from = asked, "--num_nodes" if asked else ""
    if slots and (nodes is None or nodes > len(slots)):
        nodes, nodes_from = len(slots), "--include" if include else "the hostfile"
    elif nodes is None and "@" in include:
        nodes, nodes_from = len(include.split("@")), "--include"
    return DeepSpeed(hosts, slots, processes, processes_from, nodes, nodes_from)


def _filtered(slots: Mapping[str, int], include: str, exclude: str, most: int | None) -> dict[str, int]:
    """deepspeed/launcher/runner.py, parse_resource_filter and main: in the file's order.

    >>> _filtered({"a": 8, "b": 8, "c": 8}, "", "b:0,1@c", None), _filtered({"a": 8, "b": 8}, "b:0,1", "", None)
    ({'a': 8, 'b': 6}, {'b': 2})
    """
    wanted, gone = _by_host(include), _by_host(exclude)
    left = {
        host: (len(wanted.get(host, ())) or count) - len(gone.get(host, ()))
        for host, count in slots.items()
        if (not include or host in wanted) and gone.get(host) != set()
    }
    return dict([(host, count) for host, count in left.items() if count > 0][:most])


def _by_host(text: str) -> dict[str, set[str]]:
    parts = (part.partition(":") for part in text.split("@") if part)
    return {host: set(filter(None, slots.split(","))) for host, _, slots in parts}


# accelerate 1.15, commands/launch.py: what a flag leaves out is taken from the file, under the same name
_MEETING = ("num_machines", "machine_rank", "main_process_ip", "main_process_port")
_OTHERS = ("num_processes", "gpu_ids", "use_cpu")
_MOST_TEXT = 200_000


@dataclass(frozen=True, slots=True)
class Accelerate:
    """`flags` are those of CMD, `file` what the file at `path` says of the nodes under the names of flags,
    and `options` both. `total` are the processes of all machines, `processes` those of one."""

    flags: Mapping[str, str] = field(default_factory=dict)
    file: Mapping[str, str] = field(default_factory=dict)
    path: str = ""
    options: dict[str, str] = field(default_factory=dict)
    distributed: Mapping[str, Any] = field(default_factory=dict)
    total: int | None = None
    processes: int | None = None
    processes_from: str = ""
    notes: tuple[str, ...] = ()


def read_accelerate(
    flags: Mapping[str, str],
    environment: Mapping[str, str],
    required: Callable[[str], str],
    maybe: Callable[[str], str | None],
) -> Accelerate:
    """`required` raises CommandError for a file that cannot be read."""
    config: dict[str, Any] = {}
    notes: tuple[str, ...] = ()
    path = flags.get("--config_file", "")
    if "--config_file" in flags:
        config = _parsed(required(path), path)
    else:
        path = _default(environment)
        text = maybe(path)
        try:
            config = _parsed(text, path) if text is not None else {}
            notes = (f"accelerate reads {path}, as no --config_file is given",) if text is not None else ()
        except CommandError as error:
            notes = (f"accelerate will read {path}, and diag could not: {error}",)
    written = {
        f"--{key}": str(config[key])
        for key in (*_MEETING, *_OTHERS)
        if config.get(key) is not None and not isinstance(config[key], (dict, list))
    }
    options = {**written, **flags}
    nodes = number(options.get("--num_machines", ""), "--num_machines")
    total = number(options.get("--num_processes", ""), "--num_processes")
    own = {name.removeprefix("--"): value for name, value in flags.items() if name.startswith("--")}
    by_flag = bool(flags.get("--num_processes"))
    return Accelerate(
        flags=flags,
        file={name: value for name, value in written.items() if name.removeprefix("--") in _MEETING},
        path=path,
        options=options,
        distributed={**_distributed(config, own), **own},
        total=total,
        processes=max(1, total // (nodes or 1)) if total else None,
        processes_from="" if not total else "--num_processes" if by_flag else "num_processes of its file",
        notes=notes,
    )


def _distributed(config: Mapping[str, Any], flags: Mapping[str, str]) -> dict[str, Any]:
    """What the file says of DeepSpeed and FSDP, and under `kind` which of them is used."""
    found: dict[str, Any] = {}
    for part in ("deepspeed_config", "fsdp_config"):
        inner = config.get(part)
        if isinstance(inner, Mapping):
            found.update({str(key): value for key, value in inner.items()})
    kind = str(config.get("distributed_type", ""))
    if "use_deepspeed" in flags or kind == "DEEPSPEED":
        found["kind"] = "deepspeed"
    elif "use_fsdp" in flags or kind == "FSDP":
        found["kind"] = "fsdp"
    return found


def _default(environment: Mapping[str, str]) -> str:
    """accelerate/commands/config/config_args.py: HF_HOME, XDG_CACHE_HOME or ~/.cache, and there this file."""
    cache = environment.get("XDG_CACHE_HOME") or f"{environment.get('HOME', '')}/.cache"
    return f"{environment.get('HF_HOME') or f'{cache}/huggingface'}/accelerate/default_config.yaml"


def _parsed(text: str, path: str) -> dict[str, Any]:
    import yaml  # not for who only asks for a name of a job

    try:
        data = yaml.safe_load(text[:_MOST_TEXT])
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise CommandError(f"cannot read {path}: {error}") from error
    return data if isinstance(data, dict) else {}
