"""What starts the nodes, and lists their hosts: Slurm, MPI, DeepSpeed, the files of PBS and LSF, and the setting `nodes`."""

from __future__ import annotations

import base64
import binascii
import itertools
import json
import re
from collections.abc import Sequence

from diag.launch.launchers import Environment
from diag.launch.launchers.command import Command, ReadText
from diag.launch.launchers.command.options import last_options
from diag.launch.launchers.command.starters import DEFAULT_HOSTFILE, NO_STEPS, Mpirun
from diag.launch.launchers.hostlist import MOST_HOSTS, BadHostlist, Hosts, expand_hostlist, is_host, mpi_hosts
from diag.launch.launchers.nodes.facts import Engine, first, number, shown

# Words that bring CMD to the other nodes; a shell script may contain them.
_SPREADS = frozenset({"srun", "mpirun", "mpiexec", "mpiexec.hydra", "prterun", "bash", "sh", "zsh", "dash"})


def of_slurm(env: Environment, words: Sequence[str] = ()) -> Engine | None:
    """srun(1) and sbatch(1) of Slurm 22.05 to 25.05, "OUTPUT ENVIRONMENT VARIABLES". SLURM_NODEID counts in
    the step's list, SLURM_STEP_NODELIST; SLURM_JOB_NODELIST is the whole allocation's.
    SLURM_LAUNCH_NODE_IPADDR is not used: it is where srun was typed, which may be a login node.
    """
    job, _ = first(env, "SLURM_JOB_ID", "SLURM_JOBID")
    if not job:
        return None
    program = words[0].rpartition("/")[2] if words else ""
    # The batch script has no step's number; SLURM_NODEID=0 and SLURM_PROCID=0 it has. srun makes a step of
    # its own.
    step, _ = first(env, "SLURM_STEP_ID", "SLURM_STEPID")
    in_step = step not in NO_STEPS and program != "srun"
    names = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    counts = ("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
    hosts, hosts_from, bad = _hosts(*first(env, *names[0 if in_step else 1 :]))
    count, count_from = number(env, *counts[0 if in_step else 1 :])
    node_rank, rank_from = number(env, "SLURM_NODEID")
    if count is None and hosts:
        count, count_from = len(hosts), hosts_from
    if program == "srun":
        asked = _nodes_of_srun(words)
        if asked is not None and (count is None or asked <= count):
            count, count_from = asked, "srun --nodes"
    elif not in_step and words and program not in _SPREADS and not program.endswith(".sh"):
        # a batch script's own line without srun: it stays on the first node, however many are allocated
        count, count_from = 1, "no srun"
    if node_rank is not None and count is not None and node_rank >= count > 1:
        bad = (*bad, shown("SLURM_NODEID", env["SLURM_NODEID"]))
        node_rank = None
    return Engine("slurm", job, count, count_from, node_rank, rank_from, hosts, hosts_from, bad)


def _hosts(text: str, variable: str) -> tuple[tuple[str, ...], str, tuple[str, ...]]:
    """The hosts, the variable that lists them ("" where there are none), and what cannot be read."""
    try:
        hosts = expand_hostlist(text)
    except BadHostlist:
        return (), "", (shown(variable, text),)
    return hosts, variable if hosts else "", ()


def _nodes_of_srun(words: Sequence[str]) -> int | None:
    """
    >>> _nodes_of_srun(["srun", "-N2", "a"]), _nodes_of_srun(["srun", "--nodes", "1-4", "a"]), _nodes_of_srun(["srun", "a"])
    (2, 4, None)
    """
    options, _ = last_options(words[1:], "srun")
    text = options.get("-N") or options.get("--nodes", "")
    return int(text.rpartition("-")[2]) or None if re.fullmatch(r"\d{1,6}(?:-\d{1,6})?", text) else None


def slots(env: Environment, hosts: Sequence[str]) -> Hosts:
    """With how many tasks each host was allocated, which mpirun takes for its slots.

    >>> slots({"SLURM_TASKS_PER_NODE": "2(x2),1"}, ["a", "b", "c"])
    (('a', 2), ('b', 2), ('c', 1))
    """
    tasks: list[int | None] = []
    for one, times in re.findall(
        r"(\d{1,6})(?:\(x(\d{1,6})\))?", env.get("SLURM_TASKS_PER_NODE", "")[:10_000]
    ):
        tasks += [int(one)] * min(int(times or 1), len(hosts))
    return tuple(zip(hosts, tasks if len(tasks) == len(hosts) else [None] * len(hosts), strict=True))


def openmpi(env: Environment) -> Engine | None:
    """Seen of Open MPI 4.1.4 on two nodes: OMPI_MCA_orte_num_nodes counts nodes. OMPI_COMM_WORLD_NODE_RANK is
    no node's number, but a process's place on its node. Ranks fill node after node unless an OMPI_MCA_rmaps_*
    says otherwise."""
    rank, _ = number(env, "OMPI_COMM_WORLD_RANK")
    if rank is None:
        return None
    local, _ = number(env, "OMPI_COMM_WORLD_LOCAL_RANK")
    size, _ = number(env, "OMPI_COMM_WORLD_SIZE")
    on_node, _ = number(env, "OMPI_COMM_WORLD_LOCAL_SIZE")
    count, count_from = _count(size, on_node, "OMPI_COMM_WORLD_SIZE / OMPI_COMM_WORLD_LOCAL_SIZE")
    nodes, nodes_from = number(env, "OMPI_MCA_orte_num_nodes")
    if nodes and nodes != count:
        # nodes of different sizes: nothing follows from a rank
        return Engine("openmpi", count=nodes, count_from=nodes_from)
    mapped = any(name.startswith("OMPI_MCA_rmaps_") and "oversubscribe" not in name for name in env)
    node_rank = None
    if on_node == 1:
        node_rank = rank
    elif on_node and local is not None and not mapped and (rank - local) % on_node == 0:
        node_rank = (rank - local) // on_node
    if node_rank is not None and (count is None or not 0 <= node_rank < count):
        node_rank = None
    return Engine(
        "openmpi", "", count, count_from, node_rank, "" if node_rank is None else "OMPI_COMM_WORLD_RANK"
    )


def hydra(env: Environment) -> Engine | None:
    """MPICH's and Intel's. Seen of MPICH 4.0.2 on two nodes: PMI_RANK, PMI_SIZE, MPI_LOCALRANKID,
    MPI_LOCALNRANKS, and nothing of how ranks are laid out, so that a node's number is known only with one
    process on each."""
    rank, _ = number(env, "PMI_RANK", "PMIX_RANK")
    if rank is None:
        return None
    size, _ = number(env, "PMI_SIZE")
    on_node, _ = number(env, "MPI_LOCALNRANKS")
    count, count_from = _count(size, on_node, "PMI_SIZE / MPI_LOCALNRANKS")
    node_rank = rank if on_node == 1 and count is not None and rank < count else None
    return Engine("pmi", "", count, count_from, node_rank, "" if node_rank is None else "PMI_RANK")


def _count(size: int | None, on_node: int | None, who: str) -> tuple[int | None, str]:
    if not size or not on_node or size % on_node:
        return None, ""
    return size // on_node, who


def mpirun(line: Mpirun | None, env: Environment, allocated: tuple[Hosts, str]) -> Engine | None:
    """Of mpirun's own command line: its hosts, else those of the batch system (`allocated`), else this
    machine alone."""
    if line is None:
        return None
    launcher = "pmi" if line.name == "mpiexec.hydra" or "I_MPI_ROOT" in env else "openmpi"
    if line.not_read:
        return Engine(launcher, bad=(shown(*line.not_read),))
    hosts, who = (line.hosts, line.hosts_from) if line.hosts else allocated
    if not hosts:
        return Engine(launcher, count=1, count_from="no hostfile")
    used = tuple(host for host, _ in line.used(hosts))
    return Engine(launcher, count=len(used), count_from=who, hosts=used, hosts_from=who)


_LOWEST_PORT = 1024  # below it a number behind a colon in a hostfile is MPICH's number of processes: no hub listens there


def given_hosts(text: str, read_text: ReadText) -> tuple[Hosts, tuple[str, ...]]:
    """The setting `nodes`: "host[:port],..." (brackets as Slurm writes them are expanded) or "@FILE" with a
    host on each line.

    >>> given_hosts("gpu[1-2]:9095,[fd00::1]:9000,fd00::2", lambda path: None)
    ((('gpu1', 9095), ('gpu2', 9095), ('fd00::1', 9000), ('fd00::2', None)), ())
    """
    if not text.startswith("@"):
        # at the commas outside of brackets
        apart = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\]|[\[\]])+", text) if "[" in text else text.split(",")
        return _list(apart, "nodes", text)
    read = read_text(text[1:])
    if read is None:
        return (), (f"nodes={text[:120]!r}: no such file can be read",)
    lines = [line.partition("#")[0].split() for line in read.splitlines()]
    hosts, bad = _list([words[0] for words in lines if words], text, read.strip())
    return tuple((host, port if port is None or port >= _LOWEST_PORT else None) for host, port in hosts), bad


def _list(entries: Sequence[str], name: str, text: str) -> tuple[Hosts, tuple[str, ...]]:
    hosts: list[tuple[str, int | None]] = []
    for entry in filter(None, map(str.strip, entries)):
        host, port = _split_port(entry)
        try:
            names = expand_hostlist(host) if "[" in host else (host,)
        except BadHostlist:
            return (), (shown(name, text),)
        many = len(hosts) + len(names) > MOST_HOSTS
        if many or int(port or 0) > 65535 or not all(map(is_host, names)):
            return (), (shown(name, text),)
        hosts.extend((one, int(port) if port else None) for one in names)
    if len({host for host, _ in hosts}) == len(hosts) or len(set(hosts)) == len(hosts):
        return tuple(hosts), ()
    return (), (f"{shown(name, text)} names a host twice",)


def _split_port(entry: str) -> tuple[str, str]:
    """
    >>> _split_port("[fd00::1]:9000"), _split_port("fd00::2"), _split_port("gpu[1-2]:9095")
    (('fd00::1', '9000'), ('fd00::2', ''), ('gpu[1-2]', '9095'))
    """
    found = re.fullmatch(r"\[([0-9A-Fa-f:.%a-z]{2,60})\](?::(\d{1,5}))?", entry)
    if found is not None and ":" in found[1]:
        return found[1], found[2] or ""
    host, colon, port = entry.rpartition(":")
    if not colon or ":" in host.partition("[")[0] or not re.fullmatch(r"[0-9]{1,5}", port):
        return entry, ""
    return host, port


def deepspeed(command: Command) -> Engine:
    """The hosts that deepspeed starts ranks on, in the order of its hostfile; without a file this machine
    alone."""
    file, path = command.hosts, command.options.get("--hostfile") or DEFAULT_HOSTFILE
    if file is None:
        if command.options.get("--num_nodes", "") not in ("", "-1", "1"):
            # DeepSpeed asks for the file then: it is not seen from here
            return Engine("deepspeed", bad=(shown("--hostfile", path),))
        return Engine("deepspeed", count=1, count_from=f"no {path}")
    hosts = tuple(command.slots)
    if not hosts or file.bad:
        return Engine("deepspeed", bad=(shown(path, file.bad or ", ".join(file.slots)),))
    return Engine("deepspeed", count=len(hosts), count_from=path, hosts=hosts, hosts_from=path)


def world_info(words: Sequence[str]) -> tuple[str, ...]:
    """The hosts in the command line of deepspeed.launcher.launch, one on each node: --world_info=BASE64 of
    {host: [GPUs]}."""
    text = ""
    for word, after in itertools.pairwise([*words, ""]):
        name, equals, value = word.partition("=")
        if name == "--world_info":
            text = value if equals else after
            break
    try:
        ranks = json.loads(base64.urlsafe_b64decode(text[: 1 << 20].encode()))
    except (ValueError, binascii.Error, RecursionError):
        return ()
    hosts = tuple(str(host) for host in ranks) if isinstance(ranks, dict) else ()
    return hosts if len(hosts) <= MOST_HOSTS and all(is_host(host) for host in hosts) else ()


def allocation(env: Environment, read_text: ReadText) -> tuple[Hosts, str, str, tuple[str, ...]]:
    """What PBS and LSF allocated: the hosts with their slots, the variable they are from, the job's id, and what cannot be
    read. How many of the hosts CMD uses is not known. PBS: PBS_NODEFILE has a line for each slot. LSF 10.1: so
    has LSB_DJOB_HOSTFILE, LSB_HOSTS a word for each, and LSB_MCPU_HOSTS a host and its number in turn."""
    job, _ = first(env, "PBS_JOBID", "LSB_JOBID")
    path, who = first(env, "PBS_NODEFILE", "LSB_DJOB_HOSTFILE")
    text = read_text(path) if path else None
    if text is None and env.get("LSB_HOSTS"):
        text, who = env["LSB_HOSTS"].replace(" ", "\n"), "LSB_HOSTS"
    if text is None and env.get("LSB_MCPU_HOSTS"):
        words = env["LSB_MCPU_HOSTS"].split()
        text, who = (
            "\n".join(f"{host} slots={slots}" for host, slots in zip(words[::2], words[1::2], strict=False)),
            "LSB_MCPU_HOSTS",
        )
    if text is None:
        return (), "", job, (shown(who, path),) if path else ()
    hosts = mpi_hosts(text)
    return hosts, who if hosts else "", job, () if hosts else (shown(who, text.strip()),)
