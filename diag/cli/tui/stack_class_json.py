"""A class of merged stacks as a hub said it, so that the same tree is drawn of it as where it was made."""

from __future__ import annotations

from dataclasses import dataclass

from diag.model.observations import Frame
from diag.outputs.view.classes import StackClass
from diag.text.sanitize import clean


@dataclass(frozen=True, slots=True)
class ReportedClass(StackClass):
    """A class as the hub said it: its title was made where the frames were read."""

    told: str = ""

    def title(self) -> str:
        return self.told


def frame_of_text(text: str) -> Frame:
    """Of words as `format_frame` makes them, so that it makes the same again: the path was shortened already.

    >>> from diag.state.stack_activity import format_frame
    >>> format_frame(frame_of_text("Layer.forward (a/b/c/d/e/layer.py:359)"))
    'Layer.forward (a/b/c/d/e/layer.py:359)'
    """
    function, _, place = clean(text).rpartition(" (")
    file, _, number = place.removesuffix(")").rpartition(":")
    if not function or not (number.isascii() and number.isdigit()):
        return Frame(clean(text), "?", 0)
    return Frame(function, file, int(number))
