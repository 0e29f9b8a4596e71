"""Reads untrusted pickles that hold plain data: dicts, lists, tuples, strings, numbers. They can neither
import nor call anything."""

from __future__ import annotations

import io
import pickle
import struct
from typing import Any

# Of protocols 2 to 4: numbers, strings, dicts, lists, tuples and references to them. No GLOBAL, REDUCE,
# BUILD, PERSID.
_OPCODES = b"\x80\x95\x94(.NJKM\x88\x89\x8aGX\x8c}])tqrhjus\x85\x86\x87ae"

# Python's unpickler in Python: the one in C takes all the memory that a file claims to need.
_Python: Any = pickle._Unpickler


class _Plain(_Python):  # type: ignore[misc]
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name}")

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        _set(self.stack[-1], key, value)

    def load_setitems(self) -> None:
        items = self.pop_mark()
        for key, value in zip(items[::2], items[1::2], strict=True):
            _set(self.stack[-1], key, value)


def _set(target: Any, key: Any, value: Any) -> None:
    if type(target) is not dict or type(key) not in (str, int):  # hashing a deep tuple would end the process
        raise pickle.UnpicklingError("a key that is not a string or number")
    target[key] = value


_Plain.dispatch = {code: load for code, load in _Python.dispatch.items() if code in _OPCODES} | {
    ord("s"): _Plain.load_setitem,
    ord("u"): _Plain.load_setitems,
}


def loads(data: bytes) -> Any:
    """Raises ValueError for everything else."""
    try:
        return _Plain(io.BytesIO(data)).load()
    except KeyError as error:  # not in our table
        raise ValueError(f"opcode {error} is not plain data") from None
    except (
        pickle.UnpicklingError,
        struct.error,
        EOFError,
        IndexError,
        TypeError,
        AttributeError,
        OverflowError,
    ) as error:
        raise ValueError(f"no pickle of plain data: {error!r}") from None
