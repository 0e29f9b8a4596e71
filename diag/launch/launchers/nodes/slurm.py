"""Slurm's nodes: the step's where there is one, else the allocation's."""

from __future__ import annotations

import re
from collections.abc import Sequence

from diag.launch.launchers.command.options import last_options
from diag.launch.launchers.command.srun import NO_STEPS
from diag.launch.launchers.hostlist import BadHostlist, expand_hostlist
from diag.launch.launchers.nodes.facts import Engine, Environment, Hosts, first, number, shown

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
