"""What precedes a training program: the programs that start it, under the names that command lines have
for them, and variables (`A=1 torchrun ...`, `env -u B A=1 torchrun ...`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

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
    {
        "docker",
        "podman",
        "kubectl",
        "ssh",
        "singularity",
        "apptainer",
        "sbatch",
        "nerdctl",
        "enroot",
        "dlc",
        "docker-compose",
    }
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


_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


def split_environment(
    command: Sequence[str], environment: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """CMD without what sets variables in front of it, and the environment that it will have.

    >>> split_environment(["env", "-u", "X", "A=1", "torchrun", "t.py"], {"X": "0", "Y": "2"})
    (['torchrun', 't.py'], {'Y': '2', 'A': '1'})
    """
    words, env = list(command), dict(environment)
    by_env = bool(words) and words[0].rpartition("/")[2] == "env"
    del words[:by_env]
    while words:
        word = words[0]
        if _ASSIGNMENT.match(word):
            name, _, value = word.partition("=")
            env[name] = value
        elif by_env and word in ("-u", "--unset") and len(words) > 1:
            env.pop(words.pop(1), None)
        elif by_env and word in ("-i", "-", "--ignore-environment"):
            env.clear()
        else:
            break
        del words[0]
    return words, env
