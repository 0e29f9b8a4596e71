"""Of the changes that save memory, those that cost least: what a user tries first."""

from __future__ import annotations

from collections.abc import Sequence

from diag.preflight.estimate.advice import (
    ANOTHER_WAY,
    COMPUTING,
    LOSS,
    SIXTEEN,
    SLOWER,
    SMALLER,
    TALKS,
    Advice,
)

_SHOWN = 3
# What it takes, from nothing to another training; a cost that is not here stands in the middle.
_ORDER = ("", LOSS, *SIXTEEN, TALKS, SMALLER, COMPUTING, SLOWER, ANOTHER_WAY)


def cheapest(
    changes: Sequence[Advice], where: str, short: tuple[int, int], free: tuple[int | None, int | None]
) -> list[Advice]:
    """Three at most: those that save what is `short` alone come first, the cheapest of them before the others, then
    those that save most; another way to train last. None that takes more of the other memory than is `free`.
    `where`: GPU or host; `short` and `free` are of both.
    """
    ours, other = (0, 1) if where == "GPU" else (1, 0)

    def grows(item: Advice, which: int) -> int:
        return (item.gpu_bytes, item.host_bytes)[which]

    def affordable(item: Advice) -> bool:
        left = free[other]
        return left is None or grows(item, other) <= max(0, left)

    able = [item for item in changes if affordable(item)]
    enough = [item for item in able if -grows(item, ours) >= short[ours]]
    rest = [item for item in able if item not in enough]
    enough.sort(key=lambda item: (_rank(item), grows(item, ours)))
    rest.sort(key=lambda item: grows(item, ours))
    others = [item for item in (*enough, *rest) if item.cost != ANOTHER_WAY]
    last = [
        item for item in able if item.cost == ANOTHER_WAY
    ]  # it may be enough, but is no change of this training
    kept = _SHOWN - 1 if last and not (others and others[0] in enough) else _SHOWN
    return [*others[:kept], *last][:_SHOWN]


def _rank(item: Advice) -> int:
    return _ORDER.index(item.cost) if item.cost in _ORDER else len(_ORDER) // 2
