"""CMD read from the outside in: each program of it is taken off until the training program itself is left.
Starts nothing; of files it reads those that the launcher will read: scripts, accelerate's file, a hostfile.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from diag.launch.launchers.command.compose import is_compose, run_line
from diag.launch.launchers.command.config_file import config_words
from diag.launch.launchers.command.container import ENGINES, Container, run_in
from diag.launch.launchers.command.names import (
    ELSEWHERE,
    MODULES,
    MPI,
    before_program,
    is_shell,
    split_environment,
)
from diag.launch.launchers.command.options import (
    CommandError,
    first,
    last_options,
    number,
    read_options,
    runs_another,
)
from diag.launch.launchers.command.rendezvous import Rendezvous, flags_among, rendezvous
from diag.launch.launchers.command.result import Command
from diag.launch.launchers.command.shell_script import read_script, unseen
from diag.launch.launchers.command.starters import (
    NO_STEPS,
    Accelerate,
    Mpirun,
    Srun,
    read_accelerate,
    read_deepspeed,
    read_mpirun,
    read_srun,
)
from diag.launch.launchers.hostlist import Hostfile

ReadText = Callable[[str], "str | None"]

_SWIFTS = ("megatron", "swift")
_SWIFT_VERBS = ("sft", "rlhf", "pt")
# These go by their own options, however many of them srun starts.
_BY_THEMSELVES = ("torchrun", "accelerate", *_SWIFTS)
_DEEP = 8  # wrappers within wrappers
_PASS_ITSELF = "pass the training command itself"


class Reading:
    """One reading of one command, its findings under the names that `Command` has. What was found before an error
    is kept: half a command says something too."""

    def __init__(
        self, environment: Mapping[str, str], folder: Path, read_text: ReadText, *, certain: bool
    ) -> None:
        self.environment = dict(environment)
        self.folder, self._read_text, self._certain = folder, read_text, certain
        self.chain: list[str] = []
        self.line: list[str] = []
        self.program, self.verb = "", ""
        self.words: list[str] = []
        self.launcher = ""
        self.meets_by = ""  # the launcher whose options say where the nodes meet
        self.options: dict[str, str] = {}
        self.accelerate = Accelerate()
        self.processes: int | None = None
        self.processes_from, self.by_word = "", ""
        self.nodes: int | None = None  # from something else than the launcher's own options
        self.nodes_from = ""
        self.hosts: Hostfile | None = None
        self.slots: dict[str, int] = {}
        self.srun: Srun | None = None
        self.mpirun: Mpirun | None = None
        self.container: Container | None = None
        self.elsewhere, self.unseen, self.opaque, self.config = "", "", "", ""
        self.kept_back: dict[str, str] = {}
        self.notes: list[str] = []

    def read(self, argv: Sequence[str]) -> Command:
        unread = hint = ""
        try:
            self._peel(list(argv))
        except CommandError as error:
            unread, hint, self.program = str(error), error.hint, ""
        held: dict[str, Any] = {
            field.name: tuple(value) if isinstance(value, list) else value
            for field in fields(Command)
            if (value := getattr(self, field.name, None)) is not None
        }
        return Command(
            **held,
            meeting=self._meeting(),
            argv=tuple(argv),
            total=self.accelerate.total,
            distributed=self.accelerate.distributed,
            unread=unread,
            hint=hint,
        )

    def _meeting(self) -> Rendezvous:
        """Where the nodes meet, with the number of them: from the launcher's options, or from what starts it (srun, a
        file of hosts)."""
        file = self.accelerate
        options: Mapping[str, str] = self.options if self.meets_by else flags_among(self.line)
        options = file.flags if self.meets_by == "accelerate" else options
        found = rendezvous(self.meets_by, options, self.environment, file.file, file.path)
        if self.nodes is None and found.nodes_from.startswith("SLURM_") and self._stays_on_one_node():
            return replace(found, nodes=1, nodes_from="")
        if self.nodes is None or self.meets_by in _BY_THEMSELVES:
            return found
        return replace(found, nodes=self.nodes, nodes_from=self.nodes_from)

    def _stays_on_one_node(self) -> bool:
        """A batch script's own line without srun, however many nodes Slurm gave it."""
        step = self.environment.get("SLURM_STEP_ID") or self.environment.get("SLURM_STEPID", "")
        return self.program == "script" and not self.opaque and not self.srun and step in NO_STEPS

    def _peel(self, words: list[str]) -> None:
        shell = False
        for _ in range(_DEEP):
            if words and words[0].rpartition("/")[2] == "env":
                self.chain.append("env")
            words, self.environment = split_environment(words, self.environment)
            if not words:
                raise CommandError("no command given", hint="diag estimate -- megatron rlhf --model ...")
            if not self.line or shell:
                self.line = list(words)
            shell = is_shell(words[0]) or words[0].rpartition("/")[2] in ENGINES
            self.chain.append(words[0].rpartition("/")[2])
            further = self._inside(words)
            if further is None:
                self._from_rank()
                return
            words = further
        raise CommandError("too many programs that start one another", hint=_PASS_ITSELF)

    def _inside(self, words: list[str]) -> list[str] | None:
        """What the first word runs; None when that is the training program itself."""
        name = words[0].rpartition("/")[2]
        if is_shell(name):
            return self._shell(["bash", *words] if name.endswith(".sh") else words)
        if name in ELSEWHERE:
            return self._elsewhere(name, words)
        if name == "srun":
            return self._srun(words[1:])
        if name == "diag":
            return words[words.index("--") + 1 :] if "--" in words else []
        if runs_another(name):
            return read_options(words[1:], name)[1]
        if name == "torchrun":
            return self._torchrun(words[1:])
        if name == "accelerate" and words[1:2] == ["launch"]:
            return self._accelerate(words[2:])
        if name == "deepspeed":
            return self._deepspeed(words[1:])
        if name.startswith("python"):
            return self._python(words[1:])
        if name in MPI or not (self.launcher or name.endswith(".py") or name in _SWIFTS):
            self.opaque = f"`{name}` may start ranks by itself"
        if name in MPI and (inner := self._mpirun(name, words[1:])):
            return inner
        self._program(name, words[0], words[1:])
        return None

    def _mpirun(self, name: str, words: list[str]) -> list[str]:
        own = before_program(words)
        self.launcher = self.launcher or "mpirun"
        self.mpirun = read_mpirun(name, own, self.environment, self._maybe)
        if self.mpirun.ranks is not None:
            self.processes, self.processes_from = self.mpirun.ranks, "slots of mpirun's hosts"
            self.nodes = len(self.mpirun.used(self.mpirun.hosts))
            self.nodes_from, self.opaque = self.mpirun.hosts_from, ""
        return words[len(own) :]

    def _program(self, name: str, path: str, rest: list[str]) -> None:
        self.words = rest
        if name in _SWIFTS:
            self._swift(name, self._with_config(rest))
            return
        inside = re.search(r"swift/(?:cli|llm)/(?:_megatron/|train/)?(sft|rlhf|pt)\.py$", path)
        if inside:
            self.words = self._with_config(rest)
            self.program, self.verb = ("megatron" if "_megatron" in path else "swift"), inside[1]
        elif name.startswith("pretrain_") and name.endswith(".py"):
            self.program, self.verb = "megatron-lm", "pt"
        else:
            self.program = "script"

    def _swift(self, name: str, rest: list[str]) -> None:
        """swift/cli/main.py, use_torchrun: with NPROC_PER_NODE or NNODES it starts torchrun, whoever starts
        it."""
        self.meets_by = self.meets_by or name
        if not rest or rest[0] not in _SWIFT_VERBS:
            self.verb, self.words = rest[0] if rest else "", rest[1:]
            raise CommandError(
                f"`{name} {rest[0] if rest else 'nothing'}` trains nothing",
                hint=f"`{name} sft`, `{name} pt` and `{name} rlhf` can be estimated",
            )
        env = self.environment
        self.program, self.verb, self.words = name, rest[0], rest[1:]
        by_torchrun = "NPROC_PER_NODE" in env or "NNODES" in env
        if self.launcher and not (by_torchrun and self.launcher in ("srun", "mpirun")):
            return
        self.launcher = name
        ranks = env.get("NPROC_PER_NODE", "")
        self.processes = number(ranks, "NPROC_PER_NODE") or 1
        self.processes_from = "NPROC_PER_NODE" if ranks else ""
        number(env.get("NNODES", ""), "NNODES")
        if not ranks:
            self.notes.append("NPROC_PER_NODE is not set: one process a node")

    def _with_config(self, words: list[str]) -> list[str]:
        """With the arguments that a YAML or JSON file holds (swift/cli/main.py: `--config x.yaml` in 3.12, `swift sft
        x.yaml` since 4.4); those of the command line come after, and so win."""
        at = next((index for index, word in enumerate(words[:-1]) if word == "--config"), None)
        first = 1 if words[:1] and not words[0].startswith("-") else 0  # after the verb
        if at is not None:
            path, rest = words[at + 1], words[:at] + words[at + 2 :]
        elif words[first : first + 1] and words[first].endswith((".yaml", ".yml")):
            path, rest = words[first], words[:first] + words[first + 1 :]
        else:
            return words
        try:
            found = config_words(self._required(path))
        except CommandError as error:
            self.config = f"{path}: {error}"
            self.notes.append(f"what {path} holds is not counted: {error}")
            return rest
        self.notes.append(f"with the arguments in {path}")
        return rest[:first] + found + rest[first:]

    def _from_rank(self) -> None:
        """The command of a rank itself has its launcher's numbers in the environment."""
        env = self.environment
        if self.processes is None and env.get("RANK") and env.get("LOCAL_WORLD_SIZE"):
            self.processes = number(env["LOCAL_WORLD_SIZE"], "LOCAL_WORLD_SIZE")
            world = number(env.get("WORLD_SIZE", ""), "WORLD_SIZE")
            if world and self.processes:
                self.nodes = max(1, world // self.processes)
                self.nodes_from = "WORLD_SIZE and LOCAL_WORLD_SIZE"

    def _torchrun(self, words: list[str]) -> list[str]:
        self.options, rest = last_options(words, "torchrun")
        self.launcher = self.meets_by = "torchrun"
        text, self.processes_from = first(
            self.options, self.environment, "--nproc_per_node", "PET_NPROC_PER_NODE"
        )
        text = text or "1"
        if text in ("gpu", "auto", "cpu"):
            self.by_word, self.processes = text, None
            self.notes.append(
                f"--nproc_per_node {text}: taken as one process for each GPU seen, or --gpus-per-node"
            )
        else:
            self.processes = number(text, "--nproc_per_node")
        number(first(self.options, self.environment, "--nnodes", "PET_NNODES")[0], "--nnodes")
        return _python_line(self.options, rest)

    def _accelerate(self, words: list[str]) -> list[str]:
        self.launcher = self.meets_by = "accelerate"
        flags, rest = last_options(words, "accelerate")
        self.accelerate = Accelerate(flags=flags)  # should a file or a number of it not be readable
        found = self.accelerate = read_accelerate(flags, self.environment, self._required, self._maybe)
        self.options = found.options
        self.notes += found.notes
        self.processes, self.processes_from = found.processes, found.processes_from
        return _python_line(flags, rest)

    def _deepspeed(self, words: list[str]) -> list[str]:
        self.launcher = self.meets_by = "deepspeed"
        self.options, rest = last_options(words, "deepspeed")
        found = read_deepspeed(self.options, self._maybe)
        self.hosts, self.slots = found.hosts, found.slots
        self.processes, self.processes_from = found.processes, found.processes_from
        if found.nodes is not None:
            self.nodes, self.nodes_from = found.nodes, found.nodes_from
        return _python_line(self.options, rest)

    def _srun(self, words: list[str]) -> list[str]:
        self.srun, in_all, self.environment, rest = read_srun(words, self.environment)
        self.nodes, self.nodes_from = self.srun.nodes, self.srun.nodes_from
        if self.nodes is None and in_all is not None and in_all > 1:
            self.opaque = f"Slurm chooses the nodes for srun's {in_all} tasks"
        if self.srun.tasks and self.srun.tasks > 1:
            self.processes, self.processes_from = self.srun.tasks, "srun's tasks a node"
        self.launcher = self.launcher or "srun"
        return rest

    def _python(self, words: list[str]) -> list[str] | None:
        index = 0
        while index < len(words) and words[index].startswith("-"):
            if words[index] == "-m":
                module, rest = (words[index + 1 : index + 2] or [""])[0], words[index + 2 :]
                if module in MODULES:
                    name = MODULES[module]
                    return [name, "launch", *rest] if name == "accelerate" else [name, *rest]
                self._program("", module.replace(".", "/") + ".py", rest)
                return None
            if words[index] == "-c":
                raise CommandError(
                    "`python -c` has no arguments to read memory needs from", hint=_PASS_ITSELF
                )
            index += 2 if words[index] in ("-X", "-W") else 1
        if index >= len(words):
            raise CommandError("python starts nothing here", hint=_PASS_ITSELF)
        script = words[index]
        name = script.rpartition("/")[2]
        if name in ("torchrun", "accelerate", "deepspeed", *_SWIFTS):
            return words[index:]
        self._program(name, script, words[index + 1 :])
        return None

    def _elsewhere(self, name: str, words: list[str]) -> list[str]:
        """`docker run` makes a container of this machine, whose flags describe it. What others start
        runs somewhere else."""
        composed = name in ENGINES and is_compose(words) and not self.elsewhere
        if composed:
            words = run_line(words, self.environment, self._maybe)
        verb = next((word for word in words[1:3] if word in ("run", "exec")), "")
        if name in ENGINES and verb == "run" and not self.elsewhere:
            found = run_in(words, self.environment, self._maybe, by_compose=composed)
            self.container, self.environment, inner = found
            if not inner:
                raise CommandError(
                    f"what the image {self.container.short_image} starts by itself is not in CMD",
                    hint=_PASS_ITSELF,
                )
            self.srun, self.nodes, self.nodes_from = None, None, ""
            return inner
        self.elsewhere = self.elsewhere or name
        if name == "kubectl" and verb == "exec" and "--" in words:
            self.environment.clear()
            return words[words.index("--") + 1 :]
        raise CommandError(
            f"`{name}` starts it elsewhere, with another environment and other devices", hint=_PASS_ITSELF
        )

    def _shell(self, words: list[str]) -> list[str]:
        index = 1
        while index < len(words) and words[index].startswith("-"):
            if words[index].endswith("c") and not words[index].startswith("--"):
                text = words[index + 1] if index + 1 < len(words) else ""
                # The first word after the text is $0
                return self._script(text, words[index + 3 :], "the text after -c")
            index += 1
        if index >= len(words):
            raise CommandError("the shell is given no script", hint=_PASS_ITSELF)
        return self._script(self._required(words[index]), words[index + 1 :], words[index])

    def _script(self, text: str, arguments: list[str], where: str) -> list[str]:
        found = read_script(text, arguments, self.environment, certain=self._certain)
        self.unseen = self.unseen or unseen(text)
        if found.words is None:
            raise CommandError(
                f"no training command was found in {where}",
                hint="pass the command itself: diag estimate -- megatron ...",
            )
        self.environment.update(found.variables)
        for name in found.unset:
            self.environment.pop(name, None)
        self.kept_back = {**self.kept_back, **found.kept_back}
        self.notes.append(
            f"read from {where}: {shlex.join(found.words[:6])} ... (variables expanded where the script sets them)"
        )
        if is_shell(found.words[0]) and found.folder:
            if self.container is not None:
                workdir = str(Path(self.container.workdir or "/", found.folder))
                self.container = replace(self.container, workdir=workdir)
            else:
                self.folder /= found.folder
        return found.words

    def _maybe(self, path: str) -> str | None:
        """The text of a file of CMD's, None where it is not there."""
        try:
            return self._required(path)
        except CommandError:
            return None

    def _required(self, path: str) -> str:
        here: str | None = path
        if self.container is not None:
            here = self.container.path_here(path)
            if here is None:
                raise CommandError(
                    f"cannot read {path}: it is in {self.container.holder_of(path)}", hint=_PASS_ITSELF
                )
        place = str(self.folder / str(here))
        why = ""
        try:
            text = self._read_text(place)
        except OSError as error:
            text, why = None, f": {error.strerror}"
        except ValueError as error:  # a null byte, which no file's name has
            text, why = None, f": {error}"
        if text is None:
            raise CommandError(f"cannot read {place}{why}", hint=_PASS_ITSELF)
        return text


def _python_line(options: Mapping[str, str], rest: list[str]) -> list[str]:
    return ["python", "-m", *rest] if "-m" in options or "--module" in options else ["python", *rest]
