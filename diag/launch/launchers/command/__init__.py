"""What a command line says of the training that it starts: one reader for all of diag.

`diag run` and `diag watch` (who the nodes are), `diag estimate` (ranks, nodes, flags) and `diag doctor` (all of
it, of CMD and of a manifest's containers) go by the same `Command`, so that they cannot contradict one another.

Where launchers differ in what they read, the launcher decides, and not what usually is set:

- torchrun: its flags, then PET_*; neither NNODES nor MASTER_ADDR (torch 2.13, distributed/run.py).
- ms-swift's `swift` and `megatron`: NPROC_PER_NODE, NNODES, NODE_RANK, MASTER_ADDR, MASTER_PORT, and one process
  where the first two are not set (ms-swift 3.x and 4.x, swift/cli/main.py).
- accelerate: its flags, then its file; the number of processes is that of all machines (1.15, commands/launch.py).
- deepspeed: its hostfile, filtered by --include, --exclude, --num_nodes and --num_gpus (0.19.8, launcher/runner.py).
- srun: its own flags, then SLURM_*, and only for a program that is no launcher itself.
- `docker run`: nothing of the environment but what -e and --env-file hand on.

Shell scripts are read as text, by shlex and a few patterns (shell_script.py), and not by a parser of bash: what
a script computes stays unknown either way, and bashlex 0.18 gives up on arrays, `case`, `[[ ]]` and `$(( ))`, which
training scripts have.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from diag.launch.launchers.command.container import Container
from diag.launch.launchers.command.options import CommandError
from diag.launch.launchers.command.reading import Reading, ReadText
from diag.launch.launchers.command.rendezvous import Rendezvous
from diag.launch.launchers.command.result import Command
from diag.launch.launchers.command.starters import Srun

__all__ = [
    "Command",
    "CommandError",
    "Container",
    "ReadText",
    "Rendezvous",
    "Srun",
    "read_command",
    "read_file",
]

_MOST_BYTES = 1 << 20


def read_file(path: str) -> str | None:
    """The beginning of a file. Raises OSError, also for a pipe: what is read from it the job would miss."""
    if not stat.S_ISREG(Path(path).stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    with open(path, errors="replace") as file:
        return file.read(_MOST_BYTES)


def read_command(
    argv: Sequence[str],
    environment: Mapping[str, str],
    folder: Path = Path(),
    *,
    certain: bool = True,
    read_text: ReadText = read_file,
) -> Command:
    """Raises nothing: what cannot be read is in `unread`, and what was found until then is there.

    With `certain` a variable of a script stays `$NAME` that has no value here, is given another one under a
    condition, or may get one from a file that is not seen; without it the last value is taken, or none.

    >>> read_command(["bash", "-c", "make all"], {}).unread
    'no training command was found in the text after -c'
    >>> c = read_command(["env", "NPROC_PER_NODE=8", "bash", "-c", "NNODES=2 megatron sft --model m"], {})
    >>> c.chain, c.program, c.processes, c.nodes, c.words
    (('env', 'bash', 'megatron'), 'megatron', 8, 2, ('--model', 'm'))
    """
    return Reading(environment, folder, read_text, certain=certain).read(argv)
