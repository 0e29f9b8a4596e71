"""What an output of a run is, and what it gets to know of the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from diag.outputs.view.view import ClusterView, HubView

if TYPE_CHECKING:
    from diag.launch.rundir import RunDir
    from diag.model import Change
    from diag.model.observations import EvidenceKept
    from diag.settings import Settings


class RunCluster(ClusterView, Protocol):
    open_port: Callable[[], int | None]  # to the hubs of other nodes; None: there is none


class RunHub(HubView, Protocol):
    """The hub of the run. `Serving` writes where it listens, and the token that this takes."""

    on_change: Callable[[Change], None]
    on_kept: Callable[[EvidenceKept], None]
    address: str
    settings: Settings
    run_dir: RunDir | None

    @property
    def cluster(self) -> RunCluster: ...
    @property
    def nccl_ras_address(self) -> str | None: ...


@dataclass(slots=True)
class OutputContext:
    """The run, as its outputs see it. `say` prints a line for the person who started diag; `colour`, `width`
    and `lang` are of the terminal that it appears in."""

    hub: RunHub
    say: Callable[[str], None]
    words: Sequence[str] = ()  # CMD; of a job that is still to come none
    pid: int = 0
    colour: bool = False
    width: Callable[[], int] = lambda: 80
    lang: str = "en"
    url: str | None = None  # of the page, once there is one
    has_ended: Callable[[], bool] = lambda: False  # whether CMD has, by now
    publish: Callable[[], None] = lambda: None  # all outputs that announce the run do so anew


class Output:
    """One way in which findings, or the run itself, get out of diag. A method that is not overridden does
    nothing."""

    documented: ClassVar[str] = ""  # what docs/reference calls it: a setting, an option or a file
    setting: ClassVar[str] = ""  # the setting that it depends on; empty: it is always there

    def __init__(self, run: OutputContext) -> None:
        self.run = run

    @classmethod
    def is_wanted(cls, run: OutputContext) -> bool:
        """Whether the settings, and what there is, call for it."""
        return True

    @property
    def place(self) -> str:
        """Where a person finds it, for the line with which diag starts; empty: nothing to say."""
        return ""

    def start(self) -> None:
        """The hub is there; its job may be still to come."""

    def publish(self) -> None:
        """CMD, its pid or the page's address is another one."""

    def change(self, change: Change) -> None:
        """A finding was opened, updated or resolved. On the hub's thread: it must not wait."""

    def kept(self, evidence: EvidenceKept) -> None:
        """A bundle of findings that were told is on disk. On the hub's thread: it must not wait."""

    def close(self, returncode: int | None, *, ended: bool) -> None:
        """The last change was passed on. Not `ended`: diag's own part is over, but CMD may go on."""
