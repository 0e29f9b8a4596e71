"""What NVIDIA's Xid numbers mean to a training job (xids.yaml)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from diag.knowledge import table

# After these the GPU works on: after 94, say, the next program may use it.
_WORKS_ON = ("restart_job", "reset_and_watch", "power")


@dataclass(frozen=True, slots=True)
class Xid:
    """`kind`: hardware, application (the program did it, unless it comes again and again on one GPU alone),
    consequence (another error comes first), notice (nothing broke). `part`: nvlink, memory, or "" for others.
    `action` is for `advice`."""

    number: int
    meaning: str
    kind: str
    action: str
    part: str = ""

    @property
    def ends_gpu(self) -> bool:
        """Whether the GPU does not work on for any program."""
        return self.kind == "hardware" and self.action not in _WORKS_ON


@cache
def xids() -> dict[int, Xid]:
    return {number: Xid(number, **row) for number, row in table("xids")["xids"].items()}


def xid_of(number: int) -> Xid:
    """Also of a number that the table does not have: newer drivers have new ones.

    >>> xid_of(79).kind, xid_of(43).kind, xid_of(999).action
    ('hardware', 'consequence', 'restart_job')
    """
    return xids().get(number) or Xid(number, "an error diag does not know", "application", "restart_job")


def advice(action: str, gpu: object = "") -> str:
    """What to do; `gpu` is its index where that is known."""
    text: str = table("xids")["actions"][action]
    return text if gpu == "" else text.replace("INDEX", str(gpu))
