"""All outputs of a run, wired in one place for every command that watches a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from diag.launch.failures import in_a_line
from diag.model import Change
from diag.model.observations import EvidenceKept
from diag.outputs.files import FindingsFile, RunJson, ServiceDiscoveryFile
from diag.outputs.http.serving import Serving
from diag.outputs.notify.output import Notify
from diag.outputs.output import Output, OutputContext


class Terminal(Output):
    """A panel for each change, in the terminal that diag was started in."""

    documented = "diag run"

    def start(self) -> None:
        if self.run.lang == "zh":
            from diag.outputs.chinese import catalogue

            catalogue()  # not first in a hang, whose cause may be the disk

    def change(self, change: Change) -> None:
        from diag.outputs.terminal.text import panel

        run = self.run
        run.say(panel(change, colour=run.colour, width=run.width(), lang=run.lang))

    def kept(self, evidence: EvidenceKept) -> None:
        from diag.outputs.terminal.text import kept_line, shown

        self.run.say(f"diag: {shown(kept_line(evidence), self.run.lang)}")


# In the order in which they start and hear of changes; they are closed from the last to the first: messages tell what the
# files say in the end.
OUTPUTS: tuple[type[Output], ...] = (Terminal, Notify, FindingsFile, Serving, RunJson, ServiceDiscoveryFile)


class Outputs:
    """Those that this run wants. One that fails is reported once, and holds up neither the others nor the hub."""

    def __init__(self, run: OutputContext, kinds: tuple[type[Output], ...] = OUTPUTS) -> None:
        self._run = run
        self._failed: set[Output] = set()
        self._open = [kind(run) for kind in kinds if kind.is_wanted(run)]
        run.publish = self.publish
        run.hub.on_change = self.change
        run.hub.on_kept = self.kept

    def start(self, words: Sequence[str], pid: int) -> None:
        """`words` are CMD; none, and diag's own pid, where the job is still to come."""
        self._run.words, self._run.pid = words, pid
        self._each(lambda output: output.start())
        self.publish()

    def name_job(self, words: Sequence[str], pid: int) -> None:
        """The job has come."""
        self._run.words, self._run.pid = words, pid
        self.publish()

    def publish(self) -> None:
        self._each(lambda output: output.publish())

    def change(self, change: Change) -> None:
        self._each(lambda output: output.change(change))

    def kept(self, evidence: EvidenceKept) -> None:
        self._each(lambda output: output.kept(evidence))

    def close(self, returncode: int | None, *, ended: bool = True) -> None:
        self._open.reverse()
        self._each(lambda output: output.close(returncode, ended=ended))

    @property
    def places(self) -> str:
        """Where a person finds them, behind "watching ...": ", page http://..., run directory ..."."""
        file = self._run.hub.settings.file
        named = [output.place for output in self._open] + [f"settings of {file}" if file else ""]
        return "".join(f", {place}" for place in named if place)

    def _each(self, work: Callable[[Output], None]) -> None:
        for output in self._open:
            try:
                work(output)
            except Exception as error:  # of one output: the others go on all the same
                if output not in self._failed:
                    self._failed.add(output)
                    self._run.say(in_a_line(f"the output {type(output).__name__} fails", error))
