"""MPI's nodes: of a process that mpirun started, and of mpirun's own command line. No MPI tells a process the
number of its node or the names of the others, so most of it is reckoned, and only where one answer is
possible.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from diag.launch.launchers.nodes.facts import (
    Engine,
    Environment,
    Hosts,
    ReadText,
    before_program,
    number,
    shown,
)
from diag.launch.launchers.nodes.hostfiles import mpi_hosts

__all__ = ["MPI_LAUNCHERS", "hydra", "mpirun", "openmpi"]

MPI_LAUNCHERS = frozenset(
    {"mpirun", "mpiexec", "mpiexec.hydra", "prterun", "mpirun.openmpi", "mpiexec.openmpi", "orterun"}
)
_FILES = ("--hostfile", "-hostfile", "--machinefile", "-machinefile", "-f")
_HOSTS = ("--host", "-host", "-H", "-hosts", "--hosts")
_PROCESSES = ("-np", "--np", "-n", "--n")
_SPREAD = ("-npernode", "--npernode", "-N", "-ppn", "-perhost", "--map-by", "-map-by", "-bynode", "--bynode")


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
        return Engine(
            "openmpi", count=nodes, count_from=nodes_from
        )  # nodes of different sizes: nothing follows from a rank
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


def mpirun(
    words: Sequence[str], env: Environment, read_text: ReadText, allocated: tuple[Hosts, str]
) -> Engine | None:
    """Of mpirun's own command line: its hosts, else those of the batch system (`allocated`), else this
    machine alone.

    Nodes are filled one after the other. A host without a number of slots has as many as it has cores, which
    is not known here; then all hosts are taken, as far as there are processes."""
    place = next(
        (index for index, word in enumerate(words) if word.rpartition("/")[2] in MPI_LAUNCHERS), None
    )
    if place is None:
        return None
    name = words[place].rpartition("/")[2]
    own = before_program(words[place + 1 :])
    launcher = "pmi" if name == "mpiexec.hydra" or "I_MPI_ROOT" in env else "openmpi"
    hosts, who, bad = _listed(own, env, read_text)
    if bad:
        return Engine(launcher, bad=bad)
    hosts, who = (hosts, who) if hosts else allocated
    if not hosts:
        return Engine(launcher, count=1, count_from="no hostfile")
    processes = _processes(own)
    if any(word.startswith(_SPREAD) for word in own):
        used = hosts[:processes]
    else:
        used = _filled(hosts, processes) if processes else hosts
    return Engine(
        launcher, count=len(used), count_from=who, hosts=tuple(host for host, _ in used), hosts_from=who
    )


def _processes(words: Sequence[str]) -> int | None:
    for word, after in itertools.pairwise(words):
        if word in _PROCESSES and after.isdecimal() and 0 < len(after) < 10:
            return int(after) or None
    return None


def _filled(hosts: Hosts, processes: int) -> Hosts:
    if any(slots is None for _, slots in hosts):
        return hosts[:processes]
    room = 0
    for index, (_, slots) in enumerate(hosts):
        room += slots or 0
        if room >= processes:
            return hosts[: index + 1]
    return hosts


def _listed(
    words: Sequence[str], env: Environment, read_text: ReadText
) -> tuple[Hosts, str, tuple[str, ...]]:
    for word, after in itertools.pairwise(words):
        if word in _HOSTS:
            # Open MPI's `a:2,b:2` and `a,a,b`: a host has a slot for each time that it is named
            hosts = mpi_hosts(after.replace(",", "\n"))
            return hosts, word, () if hosts else (shown(word, after),)
        if word in _FILES:
            return _of_file(after, word, read_text)
    path = env.get("OMPI_MCA_orte_default_hostfile", "")  # kubeflow/mpi-operator 0.4: /etc/mpi/hostfile
    return _of_file(path, "OMPI_MCA_orte_default_hostfile", read_text) if path else ((), "", ())


def _of_file(path: str, who: str, read_text: ReadText) -> tuple[Hosts, str, tuple[str, ...]]:
    text = read_text(path)
    hosts = mpi_hosts(text) if text is not None else ()
    return hosts, f"{who} {path}" if who.startswith("-") else who, () if hosts else (shown(who, path),)
