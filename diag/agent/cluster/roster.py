"""Entries of the roster, as hubs tell them to each other: who runs where, and who its ranks are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PARTS = 4  # of a rank's place: rank, local rank, pid, start in ticks
_MOST = 1 << 20  # of ranks and of nodes: as in model


def checked(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The entry with what an entry has. Raises KeyError, TypeError or ValueError where others could not go on
    with it: one that is kept is sorted, asked and told to every node."""
    node_rank = entry["node_rank"]
    ranks = entry["ranks"]
    if type(ranks) is not list or len(ranks) > _MOST:
        raise TypeError("ranks: no list")
    if any(type(place) is not list or len(place) != _PARTS for place in ranks):
        raise ValueError("ranks: no place of a rank")
    return {
        **{name: _word(entry, name) for name in ("run_id", "host", "url", "rendezvous")},
        "gone": bool(entry.get("gone")),
        "node_rank": None if node_rank is None else _number(node_rank, "node_rank"),
        **{name: _number(entry[name], name) for name in ("nodes", "world_size")},
        "ranks": [[_number(part, "ranks", 1 << 63) for part in place] for place in ranks],
    }


def _word(entry: Mapping[str, Any], name: str) -> str:
    value = entry[name]
    if not isinstance(value, str) or len(value) > 4096:
        raise TypeError(f"{name}: no word")
    return value


def _number(value: Any, name: str, most: int = _MOST) -> int:
    if type(value) is not int or not 0 <= value < most:
        raise ValueError(f"{name}: no number of a job")
    return value
