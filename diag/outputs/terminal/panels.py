"""Findings in the terminal of whoever started diag."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diag.outputs.output import Output

if TYPE_CHECKING:
    from diag.model import Change


class Terminal(Output):
    """A panel for each change."""

    documented = "diag run"

    def change(self, change: Change) -> None:
        from diag.outputs.terminal.text import panel

        run = self.run
        run.say(panel(change, colour=run.colour, width=run.width(), lang=run.lang))
