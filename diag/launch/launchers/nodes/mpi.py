"""MPI's nodes: of a process that mpirun started, and of mpirun's own command line. No MPI gives a process the
number of its node or the names of the others, so most of it is reckoned, and only where one answer is
possible.
"""

from __future__ import annotations

from diag.launch.launchers.command.mpirun import Mpirun
from diag.launch.launchers.nodes.facts import Engine, Environment, Hosts, number, shown


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
