"""Which losses of a log are no numbers, and stayed so: of one trainer, or of any line that has one."""

from __future__ import annotations

from collections import OrderedDict

from diag.knowledge.loss_line import loss_of, may_tell
from diag.model.observations import AttemptBegan, LossPrinted, PlainLines
from diag.state.points import Point

HEALED = 3  # finite values after which one that was not is taken for a step that was left out
_MOST_FORMS = 32  # of lines: a trainer has one or two


class Losses:
    """Told each point with a loss, in order."""

    def __init__(self) -> None:
        self.before: Point | None = None  # the last that was finite
        self.first: Point | None = None  # the first that was not, since then
        self.count = 0
        self._finite_since = 0

    @property
    def is_empty(self) -> bool:
        return self.before is None and self.first is None

    def add(self, point: Point) -> None:
        if point.finite_loss:
            self._finite_since += 1
            if self.first is None or self._finite_since >= HEALED:
                self.before, self.first, self.count = point, None, 0
            return
        self._finite_since = 0
        self.first = self.first or point
        self.count += 1


class PrintedLosses:
    """The losses of lines whose trainer is not known, of each form of line for itself."""

    def __init__(self) -> None:
        self._forms: OrderedDict[str, tuple[Losses, str]] = OrderedDict()
        self._plain: tuple[str, ...] = ()  # lines that were only counted: the last of them

    def observe(self, at: float, fact: LossPrinted | PlainLines | AttemptBegan) -> None:
        if isinstance(fact, AttemptBegan):
            self.__init__()  # type: ignore[misc]
        elif isinstance(fact, PlainLines):
            self._plain = fact.last
            if any(losses.first is not None for losses, _ in self._forms.values()):
                for text in fact.last:
                    self._text(at, fact.rank, text)
        else:
            self._add(at, fact)

    def bad(self, *, few_lines: bool) -> Losses:
        """Those that are no numbers up to now; empty where there are none. A single one counts below a good one, or where
        there are only `few_lines`: a meter that has nothing yet prints nan too."""
        for losses, _ in self._forms.values():
            if losses.first is not None and (few_lines or losses.count > 1 or losses.before is not None):
                return losses
        return Losses()

    def _text(self, at: float, rank: int | None, text: str) -> None:
        loss = loss_of(text) if may_tell(text) else None
        if loss is not None:
            self._add(at, LossPrinted(rank, *loss, text))

    def _add(self, at: float, fact: LossPrinted) -> None:
        losses, last = self._forms.pop(fact.form, (Losses(), ""))
        self._forms[fact.form] = (losses, fact.text)
        if len(self._forms) > _MOST_FORMS:
            self._forms.popitem(last=False)
        if fact.text == last:
            return  # of another rank, or a bar that is drawn again
        point = _point(at, fact)
        if losses.first is None and not point.finite_loss:
            for text in self._plain:
                loss = loss_of(text) if may_tell(text) else None
                if loss is not None and loss.form == fact.form:
                    losses.add(_point(at, LossPrinted(fact.rank, *loss, text)))
        self._plain = ()  # what comes from now on is later
        losses.add(point)


def _point(at: float, fact: LossPrinted) -> Point:
    return Point(
        at, fact.step, fact.loss, None, None, None, 0.0, None, fact.text, policy=False, epoch=fact.epoch
    )
