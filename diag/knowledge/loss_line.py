"""The loss in a line of a trainer that diag does not know: a name that ends in "loss", its number, and the step or epoch
that the line is of. Pure; knows no program's format.

    step 00009 (0.00%) | loss: nan | lrm: 1.00 | dt: 5.20ms        Epoch [3][120/500]  Loss nan (nan)        train/loss=0.53 it=7
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

_MOST_CHARS = 600
_LOSS = re.compile(
    r"(?<![A-Za-z])((?:[A-Za-z]{1,20}[ _/.-]){0,3}[A-Za-z]{0,12}(?i:loss)(?:\d{1,2}(?=\s{0,4}[:=|]))?)"
    r"(?![A-Za-z_])[\"'\])]{0,2}\s{0,4}(?:[:=|]|->|is)?\s{0,4}"
    r"[\"'(\[]?(?:tensor\(|np\.float(?:32|64)\()?([-+]?(?:(?i:nan|inf(?:inity)?)\b|\d{1,12}(?:\.\d{0,20})?(?:[eE][-+]?\d{1,3})?))(?![\w/%]|\.\d)"
)
# A number that is no step's: of an evaluation, and what a search for the best begins with (inf); empty where there are no data.
_OTHERS = re.compile(
    r"(?i)(?:val|eval|test|dev|best|min|max|low|prev|last|old|target|limit|thresh|early|aux|reg|kl|entropy|policy|critic|actor"
    r"|disc|adv|stop|scal)"
)
_PLACE = re.compile(
    r"(?<![A-Za-z/])(?i:(global[ _]step|train[ _]step|steps?|iter(?:ation)?s?|its?|updates?|batch|epoch|ep)\b)"
    r"[\"'\])]{0,2}[ :=#\[(|]{0,4}(\d{1,12})(?![\w.])"
)
_OF = re.compile(r"(?<![\w./])(\d{1,12})/\d{1,12}(?![\w/%]|\.\d)")  # 120/500
_NUMBERS = re.compile(r"[-+]?(?:\d+(?:[.,:]\d+)*(?:e[-+]?\d+)?|\bnan\b|\binf\b)", re.IGNORECASE)


class Loss(NamedTuple):
    """`step` where the line tells it, else `epoch`, else neither; `form` is the line without its numbers."""

    value: float
    step: int | None
    epoch: int | None
    form: str


def may_tell(text: str) -> bool:
    return "loss" in text or "Loss" in text or "LOSS" in text


def loss_of(text: str) -> Loss | None:
    """None where no training's loss is told with something that the line counts. Of several losses in a line the one that
    is called so alone, or else all of them have to be bad.

    >>> loss_of("step 00009 (0.00%) | loss: nan | lrm: 1.00")[:3]
    (nan, 9, None)
    >>> loss_of("epoch 3: val_loss: nan"), loss_of("loss is nan")
    (None, None)
    """
    text = text[:_MOST_CHARS]
    found = [
        (match[1].lower(), float(match[2])) for match in _LOSS.finditer(text) if not _OTHERS.search(match[1])
    ]
    if not found:
        return None
    step, epoch = _place(text)
    if step is None and epoch is None:
        return None
    value = next((value for name, value in found if name in ("loss", "train_loss", "train loss")), None)
    if value is None:
        value = next((value for _, value in found if math.isfinite(value)), found[0][1])
    if not math.isfinite(value) and not (step or epoch):
        return None  # a meter that has nothing yet
    return Loss(value, step, epoch, _NUMBERS.sub("#", text)[:200])


def _place(text: str) -> tuple[int | None, int | None]:
    step = epoch = None
    for match in _PLACE.finditer(text):
        if match[1].lower().startswith("ep"):
            epoch = int(match[2]) if epoch is None else epoch
        elif step is None:
            step = int(match[2])
    counted = _OF.search(text) if step is None else None
    if counted is not None and int(counted[1]) != epoch:
        step = int(counted[1])
    return step, epoch
