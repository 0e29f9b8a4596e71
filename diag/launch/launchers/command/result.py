"""What a command line says, once it is read: the one result that every part of diag goes by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diag.launch.launchers.command.container import Container
from diag.launch.launchers.command.rendezvous import Rendezvous
from diag.launch.launchers.command.shell_script import is_computed
from diag.launch.launchers.command.starters import Mpirun, Srun
from diag.launch.launchers.hostlist import Hostfile

_UNREAD = "CMD could not be read (see launch)"
# Programs whose ranks are started by torch's elastic agent.
_ELASTIC = ("torchrun", "accelerate")


@dataclass(frozen=True, slots=True)
class Command:
    """`chain` are the programs that start one another, outermost first: ("env", "srun", "bash", "torchrun").
    `line` is the line that starts the ranks, launcher and all, as it is in CMD or in a script, and
    `environment` what it is started with. `elsewhere` is the program of the chain that starts it on another
    machine or in a container that runs already; `container` is what `docker run` of the chain makes.

    `program` is megatron (ms-swift's), megatron-lm, swift, or script (a trainer of one's own), "" where CMD
    could not be read, which `unread` and `hint` explain; `verb` is sft, rlhf, pt or "" (of a CMD that trains
    nothing what swift is told: infer, export), `words` are the program's arguments, with those of a file of
    them (`swift sft x.yaml`, `--config x.yaml`); `config` is such a file that could not be read, and why.

    `launcher` starts the ranks: torchrun, accelerate, deepspeed, swift, megatron, srun, mpirun or "".
    `options` are its own, of accelerate with those of its file. `processes` are the ranks of one node, None
    where they are not known; `by_word` is torchrun's "gpu", "auto" or "cpu" in place of a number, `total`
    accelerate's number for all machines, `hosts` DeepSpeed's hostfile and `slots` what its filters leave of
    it. `distributed` holds what accelerate is given for DeepSpeed and FSDP. Each `*_from` says where it is from.

    `meeting` is where the nodes meet, and how many they are. `kept_back` are variables that a script sets without
    export: no program sees them. `unseen` is a line of a script which may set
    more variables; `opaque` says why the numbers may be others than they seem.
    """

    environment: Mapping[str, str]
    meeting: Rendezvous
    argv: tuple[str, ...] = ()
    chain: tuple[str, ...] = ()
    line: tuple[str, ...] = ()
    program: str = ""
    verb: str = ""
    words: tuple[str, ...] = ()
    launcher: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    processes: int | None = None
    processes_from: str = ""
    by_word: str = ""
    total: int | None = None
    hosts: Hostfile | None = None
    slots: Mapping[str, int] = field(default_factory=dict)
    distributed: Mapping[str, Any] = field(default_factory=dict)
    srun: Srun | None = None
    mpirun: Mpirun | None = None
    container: Container | None = None
    elsewhere: str = ""
    notes: tuple[str, ...] = ()
    kept_back: Mapping[str, str] = field(default_factory=dict)
    config: str = ""
    unseen: str = ""
    opaque: str = ""
    unread: str = ""
    hint: str = ""
    folder: Path = field(default_factory=Path)

    @property
    def nodes(self) -> int | None:
        """None where it is not given: then it is one."""
        return self.meeting.nodes if self.meeting.nodes_from else None

    @property
    def nodes_from(self) -> str:
        return self.meeting.nodes_from

    @property
    def is_here(self) -> bool:
        """Whether it is read to the end, and what it says is of this machine."""
        return bool(self.program) and not self.elsewhere

    @property
    def _is_direct(self) -> bool:
        """Whether CMD is a launcher's line, which is started here, though not all of it could be read."""
        return bool(self.meeting.launcher) and not self.elsewhere

    @property
    def is_told(self) -> bool:
        """Whether docker's line itself says that there are several nodes, to a script that cannot be read."""
        container = self.container
        told = container is not None and self.meeting.nodes_from in container.variables
        return told and self.meeting.nodes > 1 and bool(self.unread) and not self.elsewhere

    @property
    def unsure(self) -> str:
        """Why the number of nodes is not known; "" where it is."""
        meeting = self.meeting
        wrong = next(
            (bad for bad in meeting.bad if meeting.nodes_from and bad.startswith(f"{meeting.nodes_from} ")),
            "",
        )
        if wrong:
            why = "is computed when the job starts" if is_computed(wrong) else "is not a number"
            return f"`{wrong}` {why}"
        if not self.argv:
            return "" if meeting.nodes > 1 else "no command was given"
        if not self.is_here:
            return "" if self._is_direct or self.is_told else _UNREAD
        if self.opaque:
            return self.opaque
        if meeting.nodes_from:
            return ""
        if self.unseen:
            return f"`{self.unseen}` in the script may set it"
        return f"the image {self.container.short_image} may set it" if self.container is not None else ""

    @property
    def environment_unseen(self) -> str:
        """Why CMD may have other variables than `environment` holds; "" where it has these."""
        if not self.is_here:
            return "" if not self.argv or self._is_direct else _UNREAD
        if self.unseen:
            return f"`{self.unseen}` in the script may set more"
        return f"the image {self.container.short_image} may set more" if self.container is not None else ""

    @property
    def by_torchrun(self) -> bool:
        """swift/cli/main.py, use_torchrun: of ms-swift 3.x and 4.x alike."""
        return "NPROC_PER_NODE" in self.environment or "NNODES" in self.environment

    @property
    def is_elastic(self) -> bool:
        """Whether torch's agent starts the ranks, and so overwrites RANK, WORLD_SIZE and their kin."""
        if self.launcher in (*_ELASTIC, "deepspeed"):
            return True
        return self.launcher in ("swift", "megatron") and self.by_torchrun
