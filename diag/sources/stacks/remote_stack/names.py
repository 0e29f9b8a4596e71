"""Python's own names of threads: `threading._active` of the process, {ident: Thread}, each with its `_name`.

The system's name of a thread is the process's up to Python 3.13. Looked for once; afterwards only threads
that are new cost anything. Whatever cannot be read leaves a thread without a name.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator, Mapping

from diag.sources.stacks.remote_stack.layouts import Layout
from diag.sources.stacks.remote_stack.memory import Memory, Torn

_MOST_ENTRIES = 1 << 16  # of sys.modules; torch with all of its packages has 3000
_UNICODE_KEYS = (1, 2)  # dk_kind: entries without a hash; 0 has them
_TP_BASICSIZE, _TP_FLAGS, _HT_CACHED_KEYS = 32, 168, {11: 872, 12: 880, 13: 880}
_MANAGED_DICT, _INLINE_VALUES = 1 << 4, 1 << 2
_AGAIN = 64  # samples, after which all names are read anew: threads can be renamed


class ThreadNames:
    """Of one process. `of` never raises Torn."""

    def __init__(self, memory: Memory, layout: Layout, symbols: Mapping[str, int]) -> None:
        self._memory, self._layout, self._symbols = memory, layout, symbols
        self._active = 0  # address of the dictionary, once found
        self._known: dict[tuple[int, int], str] = {}
        self._samples = 0

    def of(self, interpreter: int) -> dict[int, str]:
        """Ident of a thread (pthread_self) -> its name."""
        if self._samples % _AGAIN == 0:
            self._active, self._known = 0, {}
        self._samples += 1
        names: dict[int, str] = {}
        with contextlib.suppress(Torn):
            if not self._active:
                self._active = self._find(interpreter)
            for key, thread in self._entries(self._active):
                ident = self._integer(key)
                known = self._known.get((ident, thread))
                if known is None:
                    with contextlib.suppress(Torn):
                        known = self._known[ident, thread] = self._name(thread)
                if known is not None:
                    names[ident] = known
        if not names:
            self._active = 0
        return names

    def _find(self, interpreter: int) -> int:
        modules = self._memory.word(interpreter + self._layout.interp_modules)
        module = self._item(modules, "threading")
        if self._memory.word(module + 8) != self._symbols["PyModule_Type"]:
            raise Torn("not a module")
        return self._item(self._memory.word(module + 16), "_active")

    def _item(self, dictionary: int, name: str) -> int:
        for key, value in self._entries(dictionary):
            head = self._memory.some(key, 24)
            if (
                len(head) == 24
                and struct.unpack_from("<Q", head, 16)[0] == len(name)
                and self._text(key) == name
            ):
                return value
        raise Torn(f"no {name}")

    def _entries(self, dictionary: int) -> Iterator[tuple[int, int]]:
        """(address of the key, address of the value), of a dict that is no instance's."""
        head = self._memory.read(dictionary, 48)
        kind, keys, values = struct.unpack_from("<Q", head, 8)[0], *struct.unpack_from("<QQ", head, 32)
        if kind != self._symbols["PyDict_Type"] or values:
            raise Torn("not a dict")
        yield from self._keys(keys)

    def _keys(self, keys: int) -> Iterator[tuple[int, int]]:
        head = self._memory.read(keys, 32)
        log2_index_bytes, kind, count = head[9], head[10], struct.unpack_from("<Q", head, 24)[0]
        if log2_index_bytes > 24 or kind > 2 or count > _MOST_ENTRIES:
            raise Torn("not the keys of a dict")
        entry = 16 if kind in _UNICODE_KEYS else 24
        data = self._memory.read(keys + 32 + (1 << log2_index_bytes), count * entry) if count else b""
        for at in range(0, len(data), entry):
            key, value = struct.unpack_from("<QQ", data, at + entry - 16)
            if key and (value or kind == 2):
                yield key, value

    def _name(self, thread: int) -> str:
        type_address = self._memory.word(thread + 8)
        flags = self._memory.word(type_address + _TP_FLAGS)
        if not flags & _MANAGED_DICT:
            raise Torn("not an instance with a dictionary of its own")
        minor, values, dictionary = self._layout.minor, 0, self._memory.word(thread - 24)
        if minor == 11:
            values = self._memory.word(thread - 32)
        elif minor == 12:
            if dictionary & 1:
                values = dictionary + 1
        elif flags & _INLINE_VALUES:
            inline = thread + self._memory.word(type_address + _TP_BASICSIZE)
            values = inline + 8 if self._memory.read(inline, 4)[3] else 0
        if not values:
            return self._text(self._of_instance(dictionary))
        shared = self._memory.word(type_address + _HT_CACHED_KEYS[minor])
        for index, (key, _) in enumerate(self._shared_keys(shared)):
            if self._text(key) == "_name":
                return self._text(self._memory.word(values + 8 * index))
        raise Torn("no _name")

    def _of_instance(self, dictionary: int) -> int:
        """`_name` in an instance's __dict__, once something has asked for it: its values may be split from
        its keys."""
        keys, values = struct.unpack("<QQ", self._memory.read(dictionary + 32, 16))
        if not values:
            return self._item(dictionary, "_name")
        prefix = 8 if self._layout.minor >= 13 else 0
        for index, (key, _) in enumerate(self._shared_keys(keys)):
            if self._text(key) == "_name":
                return self._memory.word(values + prefix + 8 * index)
        raise Torn("no _name")

    def _shared_keys(self, keys: int) -> list[tuple[int, int]]:
        """Keys that instances share have no values of their own."""
        if self._memory.read(keys, 32)[10] != 2:
            raise Torn("not shared keys")
        return list(self._keys(keys))

    def _text(self, address: int) -> str:
        layout = self._layout
        return self._memory.text(
            address, self._symbols["PyUnicode_Type"], layout.ascii_size, layout.compact_size
        )

    def _integer(self, address: int) -> int:
        """An int of at most three digits of 30 bits: pthread_self() has 47."""
        size, *digits = struct.unpack("<QIII", self._memory.read(address + 16, 20))
        # 3.12 on: lv_tag, the count above three bits of flags; 3.11: the count, negative for negative
        # numbers.
        count = size >> 3 if self._layout.minor >= 12 else size
        if not 0 < count <= 3:
            raise Torn("not the ident of a thread")
        return sum(digit << 30 * place for place, digit in enumerate(digits[:count]))
