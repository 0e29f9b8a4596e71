"""Who am I: a process's rank from its environment, by launcher. Pure functions of a mapping."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from diag.launch.launchers.secrets import is_secret, table, without_secrets

Environment = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Identity:
    """What a launcher set for one process. `launcher` is torchrun, deepspeed, ray, slurm, openmpi, pmi or env; group
    where the process group says who is which rank."""

    rank: int
    local_rank: int
    world_size: int
    launcher: str
    node_rank: int = 0
    local_world_size: int = 0


def _number(env: Environment, *names: str) -> int | None:
    for name in names:
        value = env.get(name, "")
        if value.isdecimal() and len(value) < 10:
            return int(value)
    return None


def _torchrun(env: Environment) -> Identity | None:
    """torchrun, accelerate, DeepSpeed's launcher, and verl's actors, whose LOCAL_RANK is RAY_LOCAL_RANK. RANK alone is
    not enough: Kubeflow puts a RANK that is the NODE's into the environment of torchrun itself; only ranks have
    LOCAL_RANK too."""
    rank, local_rank = _number(env, "RANK"), _number(env, "LOCAL_RANK", "RAY_LOCAL_RANK")
    if rank is None or local_rank is None:
        return None
    launcher = "torchrun" if "TORCHELASTIC_RUN_ID" in env else "env" if "LOCAL_RANK" in env else "ray"
    if launcher == "env" and "CROSS_RANK" in env:
        # deepspeed/launcher/launch.py sets CROSS_RANK, CROSS_SIZE, LOCAL_SIZE beside RANK
        launcher = "deepspeed"
    return Identity(
        rank,
        local_rank,
        _number(env, "WORLD_SIZE") or rank + 1,
        launcher,
        _number(env, "GROUP_RANK", "CROSS_RANK", "NODE_RANK") or 0,
        _number(env, "LOCAL_WORLD_SIZE", "LOCAL_SIZE", "RAY_LOCAL_WORLD_SIZE") or 0,
    )


def by_rank_alone(env: Environment, counted: int = 0) -> Identity | None:
    """A script that starts each rank by itself need not set LOCAL_RANK: init_process_group asks for RANK and WORLD_SIZE.
    `counted`: how many there are, where the environment does not say so by this name.

    >>> by_rank_alone({"RANK": "2", "WORLD_SIZE": "3"}).rank
    2
    >>> by_rank_alone({"RANK": "2"}, counted=3).world_size
    3
    """
    rank, size = _number(env, "RANK"), _number(env, "WORLD_SIZE") or counted
    known = rank is not None and rank < size > 1
    return Identity(rank or 0, rank or 0, size, "env") if known else None


def _openmpi(env: Environment) -> Identity | None:
    rank = _number(env, "OMPI_COMM_WORLD_RANK")
    if rank is None:
        return None
    local = _number(env, "OMPI_COMM_WORLD_LOCAL_RANK") or 0
    on_node = _number(env, "OMPI_COMM_WORLD_LOCAL_SIZE") or 0
    size = _number(env, "OMPI_COMM_WORLD_SIZE") or rank + 1
    # OMPI_COMM_WORLD_NODE_RANK is the process's place on its node, not the node's number. Ranks fill node
    # after node.
    node_rank = (
        (rank - local) // on_node if on_node and rank >= local and (rank - local) % on_node == 0 else 0
    )
    return Identity(rank, local, size, "openmpi", node_rank, on_node)


def _slurm(env: Environment) -> Identity | None:
    """A task of srun. One task a node with torchrun below it is a launcher, and torchrun's own variables win
    there."""
    rank, size = _number(env, "SLURM_PROCID"), _number(env, "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS")
    if rank is None or size is None or _number(env, "SLURM_LOCALID") is None:
        return None
    if "SLURM_STEP_ID" not in env or size <= 1:
        return None  # the batch script itself has SLURM_PROCID=0
    return Identity(
        rank, _number(env, "SLURM_LOCALID") or 0, size, "slurm", _number(env, "SLURM_NODEID") or 0
    )


def _pmi(env: Environment) -> Identity | None:
    rank = _number(env, "PMI_RANK", "PMIX_RANK")
    if rank is None:
        return None
    return Identity(rank, _number(env, "MPI_LOCALRANKID") or 0, _number(env, "PMI_SIZE") or rank + 1, "pmi")


LAUNCHERS: tuple[Callable[[Environment], Identity | None], ...] = (_torchrun, _openmpi, _slurm, _pmi)


def identify(env: Environment) -> Identity | None:
    """The first launcher whose variables are there; None for a process that is no rank.

    >>> identify({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "x"}).launcher
    'torchrun'
    >>> identify({"RANK": "0", "WORLD_SIZE": "2"}) is None
    True
    """
    for launcher in LAUNCHERS:
        identity = launcher(env)
        if identity is not None:
            return identity
    return None


# Programs that start ranks and never train themselves. `srun torchrun ...` gives them a rank's variables (the
# task's).
_PROGRAMS = frozenset({"torchrun", "accelerate", "deepspeed", "swift", "megatron"})
_MODULES = frozenset(
    {
        "torch.distributed.run",
        "torch.distributed.launch",
        "accelerate.commands.launch",
        "deepspeed.launcher.runner",
        "deepspeed.launcher.launch",
    }
)


def launches(argv: Sequence[str]) -> bool:
    """Whether this command line is a launcher's own: what it starts are the ranks, not itself.

    >>> launches(["/usr/bin/python3", "/usr/local/bin/torchrun", "--nproc_per_node", "8", "train.py"])
    True
    >>> launches(["python", "-u", "-m", "torch.distributed.run", "train.py"])
    True
    >>> launches(["python", "-u", "train.py"])
    False
    """
    program, module = _started(argv)
    return module in _MODULES if module else program in _PROGRAMS


# Python's own helpers and inductor's, which inherit a rank's variables and outlive it by some moments.
# `spawn_main` is none of them: a rank may be started so. Python 3.11, ms-swift 4.6.0 with --async_save; torch
# 2.11:
#   python -B -c from multiprocessing.resource_tracker import main;main(117)
#   python .../torch/_inductor/compile_worker/__main__.py --pickler=torch._inductor.compile_worker.subproc_pool.SubprocPickler ...
_HELPERS = ("resource_tracker import ", "forkserver import ")
_COMPILE_WORKER = "torch/_inductor/compile_worker/__main__.py"


def helps(argv: Sequence[str]) -> bool:
    """Whether this command line is that of a helper which can be no rank, whatever its environment says.

    >>> helps(["python3", "-B", "-c", "from multiprocessing.resource_tracker import main;main(117)"])
    True
    >>> helps(["python3", "-c", "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=118, pipe_handle=123)"])
    False
    """
    if "-c" in argv[:6]:
        code = argv[list(argv).index("-c") + 1 :][:1]
        return (
            bool(code)
            and code[0].startswith("from multiprocess")
            and any(word in code[0] for word in _HELPERS)
        )
    return any(word.endswith(_COMPILE_WORKER) for word in argv[1:4])


def is_spawned(argv: Sequence[str]) -> bool:
    """Whether Python's multiprocessing has started it anew (spawn): torch's mp.spawn, a worker.

    >>> is_spawned(["python3", "-c", "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=4)"])
    True
    >>> is_spawned(["python3", "-c", "import train"])
    False
    """
    return any(word.startswith("from multiprocessing.spawn import ") for word in argv[1:8])


def is_diag(argv: Sequence[str]) -> bool:
    """Whether this command line is diag's own, which has a rank's variables where srun started it.

    >>> is_diag(["python3", "-m", "diag.agent.sidecar", "{}"]), is_diag(["/usr/bin/python3", "/usr/bin/diag", "run", "--", "x"])
    (True, True)
    >>> is_diag(["python", "-m", "diag_job"])
    False
    """
    program, module = _started(argv)
    return module in ("diag", "diag.agent.sidecar") if module else program == "diag"


def _started(argv: Sequence[str]) -> tuple[str, str]:
    """Name of the program or of Python's script, and Python's module; the other is empty."""
    words = iter(argv)
    program = next(words, "").rpartition("/")[2]
    if not program.startswith("python"):
        return program, ""
    for word in words:
        if word == "-m":
            return "", next(words, "")
        if word == "-c":
            break
        if word in ("-X", "-W"):
            next(words, "")
        elif not word.startswith("-"):
            return word.rpartition("/")[2], ""
    return "", ""


def relevant(env: Environment) -> dict[str, str]:
    """The variables that matter to diagnosis, by an allow-list, long values cut. A family's secrets are left
    out."""
    kept = table("kept")
    prefixes = tuple(kept["prefixes"])
    return {
        name: without_secrets(value[:1000])
        for name, value in sorted(env.items())
        if name in kept["names"]
        or (
            name.startswith(prefixes)
            and not any(word in name.upper() for word in kept["but"])
            and not is_secret(name)
        )
    }
