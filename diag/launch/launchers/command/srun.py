"""`srun`: the nodes and tasks that it is told of, and the variables that it hands on."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diag.launch.launchers.command.options import number, split_options

# slurm.h: the numbers of what is no step of srun: interactive (salloc's shell), batch, extern
NO_STEPS = frozenset({"", "4294967290", "4294967291", "4294967292"})

# srun(1): those that people give with a value, as letters and as words
_LETTERS = "NnpAtcGwxJoeDq"
_VALUED = """
--nodes --ntasks --ntasks_per_node --export --partition --account --time --job_name --nodelist --exclude --output --error
--chdir --gres --gpus --gpus_per_node --gpus_per_task --cpus_per_task --mem --mpi --qos --constraint --jobid --cpu_bind
--gpu_bind --distribution --container_image --container_mounts --container_name --container_workdir --reservation
--kill_on_bad_exit --network
"""


@dataclass(frozen=True, slots=True)
class Srun:
    """The nodes that it starts its program on, with who says so, and its tasks on each."""

    nodes: int | None = None
    nodes_from: str = ""
    tasks: int | None = None


class _Bare:
    """Its options without a value: of those not known here, a number behind one is its value."""

    def __init__(self, words: Sequence[str]) -> None:
        followed = {_plain(name) for name, after in itertools.pairwise(words) if after.isdecimal()}
        self._valued = followed.union(_VALUED.split())

    def __contains__(self, word: object) -> bool:
        name = _plain(str(word))
        return name not in self._valued if name.startswith("--") else name[1:] not in _LETTERS


def _plain(name: str) -> str:
    return "--" + name[2:].replace("-", "_") if name.startswith("--") else name


def read_srun(
    words: list[str], environment: Mapping[str, str]
) -> tuple[Srun, int | None, dict[str, str], list[str]]:
    """What it is told, the number of all its tasks, the environment of its program, and the program's words.

    >>> read_srun("-N2 --ntasks-per-node 8 --export=ALL,A=1 python t.py".split(), {})
    (Srun(nodes=2, nodes_from='srun -N', tasks=8), None, {'A': '1'}, ['python', 't.py'])
    """
    options, rest = split_options(words, _Bare(words), _LETTERS)
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
