"""The programs by which a training is started, under the names that command lines have for them."""

from __future__ import annotations

from collections.abc import Sequence

# `python -m`
MODULES = {
    "torch.distributed.run": "torchrun", "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate", "deepspeed.launcher.runner": "deepspeed",
    "swift.cli.main": "swift", "swift.cli._megatron.main": "megatron",
}  # fmt: skip
MPI = frozenset(
    {"mpirun", "mpiexec", "mpiexec.hydra", "prterun", "mpirun.openmpi", "mpiexec.openmpi", "orterun"}
)
SHELLS = frozenset({"bash", "sh", "zsh", "dash", "ksh"})
# These start CMD somewhere else, with an environment and devices that are not those here.
ELSEWHERE = frozenset(
    {"docker", "podman", "kubectl", "ssh", "singularity", "apptainer", "sbatch", "nerdctl", "enroot", "dlc"}
)
_PROGRAMS = frozenset(
    {"bash", "sh", "env", "diag", "swift", "megatron", "accelerate", "deepspeed", "numactl", "singularity"}
)


def before_program(words: Sequence[str]) -> Sequence[str]:
    """The words of srun or mpirun themselves, as far as the program behind them can be recognised.

    >>> before_program(["-np", "2", "python", "t.py", "-n", "5"])
    ['-np', '2']
    """
    for index, word in enumerate(words):
        name = word.rpartition("/")[2]
        if name.startswith(("python", "torchrun")) or name in _PROGRAMS or name.endswith((".py", ".sh")):
            return words[:index]
    return words


def is_shell(word: str) -> bool:
    """
    >>> is_shell("/bin/bash"), is_shell("./train.sh"), is_shell("python")
    (True, True, False)
    """
    return word.rpartition("/")[2] in SHELLS or word.endswith(".sh")
