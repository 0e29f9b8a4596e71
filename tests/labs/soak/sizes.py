"""How much each part of a state holds, and which containers in it have how many entries. What is shared
counts once."""

from __future__ import annotations

import functools
import gc
import sys
import types
from array import array
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Held", "cache_entries", "held"]

_NOT_STATE = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.CodeType,
    property,
)
_CONTAINERS = (dict, list, set, frozenset, deque, tuple, array, bytearray)


class Held:
    """`size`: bytes; `objects`: how many; `entries`: by path within, with keys left out, the entries of all
    containers there that have no bound of their own."""

    def __init__(self) -> None:
        self.size = 0
        self.objects = 0
        self.entries: Counter[str] = Counter()


def held(root: Any, seen: set[int] | None = None) -> Held:
    """`seen`: ids of what was counted already."""
    found, seen = Held(), set() if seen is None else seen
    stack: list[tuple[Any, str]] = [(root, "")]
    while stack:
        thing, path = stack.pop()
        if id(thing) in seen or isinstance(thing, _NOT_STATE):
            continue
        seen.add(id(thing))
        found.size += sys.getsizeof(thing)
        found.objects += 1
        bound = isinstance(thing, tuple | frozenset) or getattr(thing, "maxlen", None) is not None
        if isinstance(thing, _CONTAINERS) and not bound:
            found.entries[path] += len(thing)
        stack.extend(_within(thing, path))
    return found


def _within(thing: Any, path: str) -> list[tuple[Any, str]]:
    if isinstance(thing, str | bytes | int | float | array | bytearray):
        return []
    if isinstance(thing, Mapping):
        return [*((key, f"{path}{{}}") for key in thing), *((value, f"{path}[]") for value in thing.values())]
    if isinstance(thing, Sequence | set | frozenset | deque):
        return [(each, f"{path}[]") for each in thing]
    names = [*getattr(thing, "__dict__", ()), *_slots(type(thing))]
    if names:
        return [(getattr(thing, name), f"{path}.{name}") for name in names if hasattr(thing, name)]
    return [(each, f"{path}~") for each in gc.get_referents(thing)]


@functools.lru_cache(maxsize=4096)
def _slots(kind: type) -> tuple[str, ...]:
    found: list[str] = []
    for each in kind.__mro__:
        slots = each.__dict__.get("__slots__", ())
        found += [slots] if isinstance(slots, str) else slots
    return tuple(name for name in found if name not in ("__dict__", "__weakref__"))


def cache_entries() -> dict[str, tuple[int, int | None]]:
    """Of each functools cache in a module of diag: entries, and how many it may have."""
    found = {}
    for name, module in list(sys.modules.items()):
        if name == "diag" or name.startswith("diag."):
            for label, thing in vars(module).items():
                if isinstance(thing, functools._lru_cache_wrapper):
                    told = thing.cache_info()
                    found[f"{thing.__module__}.{label}"] = (told.currsize, told.maxsize)
    return found
