"""What lies in an object of the process: its type, a text or number, items, the attributes of an instance.

The way of `object.__getattribute__`, less everything that would run code: an instance's own dict or values, and its slots.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from diag.sources.stacks.remote_stack.layouts import Layout
from diag.sources.stacks.remote_stack.memory import Memory, Torn

_MOST_ENTRIES = 1 << 16  # of sys.modules; torch with all of its packages has 3000
_UNICODE_KEYS = (1, 2)  # dk_kind: entries without a hash; 0 has them
_SPLIT = 2  # dk_kind of keys that instances share
# Of PyTypeObject and PyHeapTypeObject, 3.11-3.13.
_TYPE_SIZE = 296
_SLOTS, _NAME, _BASIC_SIZE, _FLAGS, _MEMBERS, _BASE, _DICT_OFFSET = 16, 24, 32, 168, 240, 256, 288
_CACHED_KEYS = {11: 872, 12: 880, 13: 880}
_INLINE_VALUES, _MANAGED_DICT, _HEAP = 1 << 2, 1 << 4, 1 << 9
_OBJECT_SLOT = 16  # T_OBJECT_EX of PyMemberDef
_MOST_SLOTS, _MOST_BASES, _LONGEST_NAME = 64, 16, 64
_SIZE, _ITEMS, _DIGITS = 16, 24, 24  # of PyVarObject, PyTupleObject and PyLongObject
_MOST_NAMES = 1000  # of a function
_MOST_CHARACTERS = 4096  # of a name or a path
_MOST_DIGITS = 8  # of an int, of 30 bits each
LEAST_ADDRESS = 4096


@dataclass(frozen=True, slots=True)
class Kind:
    """A type, by its address."""

    address: int
    name: str  # without its module
    full: str  # as tp_name has it: with the module for some static types
    flags: int
    basic_size: int
    dict_offset: int
    base: int
    members: int
    slots: int

    @property
    def is_heap(self) -> bool:
        """Made by a class statement, or by a library as if it were."""
        return bool(self.flags & _HEAP)

    def derives_from(self, bit: int) -> bool:
        """Py_TPFLAGS_*_SUBCLASS, by the number of its bit."""
        return bool(self.flags >> bit & 1)


DICT_BIT = 29


class Objects:
    """Of one process. Types are kept for one reading: `begin` forgets them."""

    def __init__(self, memory: Memory, layout: Layout, symbols: Mapping[str, int]) -> None:
        self.memory, self.layout, self.symbols = memory, layout, symbols
        self.unicode = symbols["PyUnicode_Type"]
        self._kinds: dict[int, Kind] = {}

    def begin(self) -> None:
        self._kinds.clear()

    def kind_of(self, address: int) -> Kind:
        """Raises Torn for what is no object."""
        return self.kind(self.memory.word(address + 8))

    def kind(self, place: int) -> Kind:
        known = self._kinds.get(place)
        if known is None:
            data = self.memory.read(place, _TYPE_SIZE)
            words = [
                struct.unpack_from("<q", data, at)[0]
                for at in (_SLOTS, _BASIC_SIZE, _FLAGS, _MEMBERS, _BASE, _DICT_OFFSET)
            ]
            slots, size, flags, members, base, offset = words
            raw = self.memory.some(struct.unpack_from("<Q", data, _NAME)[0], _LONGEST_NAME)
            full = raw.partition(b"\0")[0].decode("utf-8", "replace")
            if not full.isprintable() or not 0 < size < 1 << 20:
                raise Torn("not a type")
            name = full.rpartition(".")[2]
            known = self._kinds[place] = Kind(place, name, full, flags, size, offset, base, members, slots)
        return known

    # -- texts, numbers, items ----------------------------------------------------------------------------

    def text(self, address: int) -> str:
        """Of a str (PyUnicodeObject, compact), cut where it is over-long. Raises Torn for what is none."""
        layout, data = self.layout, self.memory.some(address, 160)
        if len(data) < layout.compact_size or struct.unpack_from("<Q", data, 8)[0] != self.unicode:
            raise Torn("not a str")
        length, _, state = struct.unpack_from("<QQI", data, 16)
        kind, compact, is_ascii = state >> 2 & 7, state >> 5 & 1, state >> 6 & 1
        if not compact or kind not in (1, 2, 4) or length >= 1 << 40:
            raise Torn("not a compact str")
        size = min(length, _MOST_CHARACTERS) * kind
        start = layout.ascii_size if is_ascii else layout.compact_size
        whole = start + size <= len(data)
        held = data[start : start + size] if whole else self.memory.read(address + start, size)
        return held.decode({1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}[kind], "replace")

    def integer(self, address: int) -> int | None:
        """None of a large one. Raises Torn."""
        data = self.memory.some(address + _SIZE, _DIGITS - _SIZE + 4 * _MOST_DIGITS)
        tag = int.from_bytes(data[:8], "little")
        if self.layout.minor >= 12:  # lv_tag: the count above three bits, 1 in them for zero, 2 for negative
            count, sign = tag >> 3, (1, 0, -1, 1)[tag & 3]
        else:  # ob_size, negative for negative numbers
            sign = -1 if tag >> 63 else 1
            count = (1 << 64) - tag if sign < 0 else tag
        if count > _MOST_DIGITS:
            return None
        if len(data) < 8 + 4 * count:
            raise Torn(f"{address:#x}: cut off")
        digits = struct.unpack_from(f"<{count}I", data, 8)
        number: int = sign * sum(digit << 30 * place for place, digit in enumerate(digits))
        return number

    def words(self, place: int, count: int) -> tuple[int, ...]:
        return struct.unpack(f"<{count}Q", self.memory.read(place, 8 * count)) if count else ()

    def names_at(self, place: int) -> tuple[int, ...]:
        """Addresses of the items of the tuple that a code object has there. Raises Torn."""
        names = self.memory.word(place)
        count = self.memory.word(names + _SIZE)
        if count > _MOST_NAMES:
            raise Torn("not the names of a function")
        return self.words(names + _ITEMS, count)

    # -- dicts --------------------------------------------------------------------------------------------

    def entries(self, dictionary: int) -> Iterator[tuple[int, int]]:
        """(address of the key, address of the value) of a dict, also of one that shares its keys. Raises Torn."""
        head = self.memory.read(dictionary, 48)
        kind, keys, values = struct.unpack_from("<Q", head, 8)[0], *struct.unpack_from("<QQ", head, 32)
        if not self.kind(kind).derives_from(DICT_BIT):
            raise Torn("not a dict")
        if values:
            yield from self._split(keys, values + (8 if self.layout.minor >= 13 else 0))
        else:
            yield from self._keys(keys)

    def _keys(self, keys: int) -> Iterator[tuple[int, int]]:
        head = self.memory.read(keys, 32)
        log2_index_bytes, kind, count = head[9], head[10], struct.unpack_from("<Q", head, 24)[0]
        if log2_index_bytes > 24 or kind > _SPLIT or count > _MOST_ENTRIES:
            raise Torn("not the keys of a dict")
        entry = 16 if kind in _UNICODE_KEYS else 24
        data = self.memory.read(keys + 32 + (1 << log2_index_bytes), count * entry) if count else b""
        for at in range(0, len(data), entry):
            key, value = struct.unpack_from("<QQ", data, at + entry - 16)
            if key and (value or kind == _SPLIT):
                yield key, value

    def _split(self, keys: int, values: int) -> Iterator[tuple[int, int]]:
        """Keys that instances share have no values of their own."""
        if self.memory.read(keys, 32)[10] != _SPLIT:
            raise Torn("not shared keys")
        shared = [key for key, _ in self._keys(keys)]
        for key, value in zip(shared, self.words(values, len(shared)), strict=True):
            if value:
                yield key, value

    # -- instances ----------------------------------------------------------------------------------------

    def attributes(self, address: int) -> Iterator[tuple[int, int]]:
        """As `entries`, of an instance that keeps its attributes in a dict or in values of its own. Raises Torn."""
        kind = self.kind_of(address)
        values = dictionary = 0
        if kind.flags & _MANAGED_DICT:
            minor, dictionary = self.layout.minor, self.memory.word(address - 24)
            if minor == 11:
                values = self.memory.word(address - 32)
            elif minor == 12 and dictionary & 1:
                values, dictionary = dictionary + 1, 0
            elif minor >= 13 and kind.flags & _INLINE_VALUES:
                inline = address + kind.basic_size
                values = inline + 8 if self.memory.read(inline, 4)[3] else 0
        elif kind.dict_offset > 0:
            dictionary = self.memory.word(address + kind.dict_offset)
        if values:
            yield from self._split(self.memory.word(kind.address + _CACHED_KEYS[self.layout.minor]), values)
        elif dictionary:
            yield from self.entries(dictionary)

    def slots(self, address: int) -> Iterator[tuple[str, int]]:
        """Name and address of the value of each slot that is set. Raises Torn."""
        kind = self.kind_of(address)
        for _ in range(_MOST_BASES):
            if not kind.is_heap:
                return
            if kind.members and 0 < kind.slots <= _MOST_SLOTS:
                table = self.memory.read(kind.members, 40 * kind.slots)
                for at in range(0, len(table), 40):
                    name, code, offset = struct.unpack_from("<QQq", table, at)
                    if code & 0xFFFFFFFF == _OBJECT_SLOT and 16 <= offset < kind.basic_size:
                        value = self.memory.word(address + offset)
                        if value:
                            text = self.memory.some(name, _LONGEST_NAME).partition(b"\0")[0]
                            yield text.decode("utf-8", "replace"), value
            if not kind.base:
                return
            kind = self.kind(kind.base)
