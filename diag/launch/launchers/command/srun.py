"""`srun`: the nodes and tasks that it is given, and the variables that it hands on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from diag.launch.launchers.command.options import last_options, number

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
