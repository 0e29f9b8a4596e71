"""Values of the process as text: what their `repr` would say, less everything that would run code of theirs.

Numbers, texts, paths, durations and small containers of these are read; of other objects their type, their length or
shape where it lies at a fixed offset, and some of their plain attributes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable
from typing import NamedTuple

from diag.sources.stacks.remote_stack.memory import Torn
from diag.sources.stacks.remote_stack.objects import DICT_BIT, Kind, Objects

LONGEST = 60  # characters of a text that are shown
_MOST_READ = 512  # characters of one, in which a secret is recognised
_MOST_BYTES = 64
_LONGEST_PATH = 1024
_IN_PATH = re.compile(r"[/.]")
_MOST_ITEMS, _MOST_LOOKED_AT = 6, 64  # of a container
_MOST_ATTRIBUTES = 3
_MOST_DIMENSIONS = 32
# Numbers of Py_TPFLAGS_*_SUBCLASS.
_LONG, _LIST, _TUPLE, _BYTES, _EXCEPTION, _TYPE = 24, 25, 26, 27, 30, 31
_ARGS, _ERRNO = 24, 72  # of PyBaseExceptionObject; of PyOSErrorObject, before what was said and the file
_LONGEST_ERROR = 120
_MOST_BASES = 8
HIDDEN = "***"
_VARIABLE = re.compile(r"b?'[A-Z_][A-Z0-9_]*'")
NO_SECRETS = ("None", "True", "False", "''")
_COUNT_OF_TOKENS = re.compile(r"-?\d{1,7}(?:\.\d+)?")
# Nothing that tells why a program waits: what its statements name anyway.
_CODE = {
    "module", "function", "builtin_function_or_method", "method", "type", "wrapper_descriptor", "method_descriptor",
    "method-wrapper", "classmethod", "staticmethod", "property", "getset_descriptor", "_SpecialForm", "_GenericAlias",
    "_abc._abc_data", "member_descriptor",
}  # fmt: skip
# Scalars of NumPy behind the object's head, as its ABI has them since 1.0.
_NUMPY = {
    "int8": "<b", "int16": "<h", "int32": "<i", "int64": "<q", "uint8": "<B", "uint16": "<H", "uint32": "<I", "uint64": "<Q",
    "longlong": "<q", "ulonglong": "<Q", "float16": "<e", "float32": "<f", "float64": "<d", "bool_": "<?", "bool": "<?",
}  # fmt: skip


class Redact(NamedTuple):
    """`text`: one without the secrets in it; `name`: whether a variable of that name has one as its value."""

    text: Callable[[str], str]
    name: Callable[[str], bool]


class Value(NamedTuple):
    text: str
    plain: bool = False  # a number, a text, a path or the like
    instance: bool = False  # may have attributes of its own
    exception: bool = False
    mapping: bool = False  # a dict


class Values:
    """Of one process. Raises Torn where there is nothing that makes sense."""

    def __init__(self, objects: Objects, redact: Redact) -> None:
        self.objects, self._redact = objects, redact
        self._memory, self._word = objects.memory, objects.memory.word

    def named(self, name: str, address: int) -> Value | None:
        """Of a variable of this name: no secret. None of what is code."""
        value = self._read(address)
        return Value(HIDDEN, value.plain) if value is not None and self._hides(name, value.text) else value

    def path(self, address: int) -> str:
        """The whole text of a str or path that may name a file; empty for what cannot. Not for anybody's eyes."""
        address = self.content(address)
        kind = self.objects.kind_of(address)
        if kind.address == self.objects.unicode:
            text = self.objects.text(address)
            text = text if _IN_PATH.search(text) else ""
        else:
            text = self._text_of_path(address, kind) or ""
        return text if 0 < len(text) < _LONGEST_PATH and "\n" not in text else ""

    def _hides(self, name: str, text: str) -> bool:
        return not _is_no_secret(name, text) and self._redact.name(name)

    def _read(self, address: int) -> Value | None:
        kind = self.objects.kind_of(address)
        if kind.full in _CODE or kind.derives_from(_TYPE):
            return None
        if kind.full == "cell" and not kind.is_heap:
            inner = self._word(address + 16)
            return self._read(inner) if inner else None
        text = self._scalar(address, kind)
        if text is not None:
            return Value(text, plain=True)
        if kind.derives_from(_EXCEPTION):
            return Value(self._exception(address, kind), exception=True)
        text = self._container(address, kind)
        if text is not None:
            return Value(text, mapping=kind.derives_from(DICT_BIT))
        return self._instance(address, kind)

    def items(self, address: int) -> tuple[int, ...]:
        """The first of a list or tuple; none of anything else."""
        address = self.content(address)
        kind = self.objects.kind_of(address)
        return self._items(address, kind) if kind.derives_from(_LIST) or kind.derives_from(_TUPLE) else ()

    def content(self, address: int) -> int:
        """Of a variable that inner functions share what it is now; 0 where it is not set."""
        kind = self.objects.kind_of(address)
        return self._word(address + 16) if kind.full == "cell" and not kind.is_heap else address

    # -- kinds of values ----------------------------------------------------------------------------------

    def _scalar(self, address: int, kind: Kind) -> str | None:
        static = not kind.is_heap
        if kind.address == self.objects.unicode:
            return _quoted(
                self._redact.text(self.objects.text(address)[:_MOST_READ]), self._word(address + 16)
            )
        if static and kind.full == "NoneType":
            return "None"
        if static and kind.full == "bool":
            return str(bool(self.objects.integer(address)))
        if kind.derives_from(_LONG):
            number = self.objects.integer(address)
            text = "an int beyond 240 bits" if number is None else str(number)
            return text if static else f"{kind.name}({text})"
        if static and kind.full == "float":
            return f"{self._unpacked('<d', address + 16):.6g}"
        if static and kind.full in ("bytes", "bytearray"):
            return self._bytes(address, kind)
        if static and kind.full == "datetime.timedelta":
            days, seconds, micro = struct.unpack("<iii", self._memory.read(address + 24, 12))
            return f"timedelta(seconds={days * 86400 + seconds + micro / 1e6:.6g})"
        if kind.full == "re.Pattern":  # behind its groups, their numbers and their names
            pattern = self._word(address + 48)
            return f"re.compile({self._item(pattern)})"
        if static and kind.full.startswith("numpy.") and kind.name in _NUMPY:
            found = self._unpacked(_NUMPY[kind.name], address + 16)
            return f"{found:.6g}" if isinstance(found, float) else str(found)
        return self._path(address, kind)

    def _unpacked(self, form: str, place: int) -> float | int:
        found: float | int = struct.unpack(form, self._memory.read(place, struct.calcsize(form)))[0]
        return found

    def _bytes(self, address: int, kind: Kind) -> str:
        size = self._word(address + 16)
        start = address + 32
        if kind.full == "bytearray":  # ob_alloc, ob_bytes, ob_start
            start = self._word(address + 40)
        data = self._memory.some(start, min(size, _MOST_BYTES)) if size else b""
        if not data.isascii() or b"\0" in data:
            return f"<{kind.full} of {size}>"  # a picture, a packed record
        text = self._redact.text(data.decode("ascii"))
        return "b" + _quoted(text, size)

    def _path(self, address: int, kind: Kind) -> str | None:
        text = self._text_of_path(address, kind)
        if text is None:
            return None
        return f"{kind.name}({_quoted(self._redact.text(text[:_MOST_READ]), len(text))})"

    def _text_of_path(self, address: int, kind: Kind) -> str | None:
        """pathlib's keep the text that they were made of, or have made of it."""
        if not kind.is_heap or "Path" not in kind.name:
            return None
        slots = dict(self.objects.slots(address))
        if "_str" in slots:
            return self.objects.text(slots["_str"])
        if "_raw_paths" in slots:  # 3.12 on: as given
            return "/".join(self._strings(slots["_raw_paths"]))
        if "_parts" in slots:
            return "/".join(self._strings(slots["_parts"])).replace("//", "/", 1)
        return None

    def _strings(self, address: int) -> Iterable[str]:
        return [self.objects.text(item) for item in self._items(address, self.objects.kind_of(address))]

    def _exception(self, address: int, kind: Kind) -> str:
        """ "<KeyError: 'rows'>", "<OSError: [Errno 28] No space left on device: 'a.pt'>": a class and what it was made with."""
        text = self._of_system(address) if self._is_os_error(kind) else ""
        if not text:
            given = self._word(address + _ARGS)
            items = self._items(given, self.objects.kind_of(given)) if given else ()
            text = next((self._item(item) for item in items), "")
            if items and self.objects.kind_of(items[0]).address == self.objects.unicode:
                text = self._line(items[0])
        return f"<{kind.name}: {text}>" if text else f"<{kind.name}: >"

    def _is_os_error(self, kind: Kind) -> bool:
        for _ in range(_MOST_BASES):
            if kind.full == "OSError" or not kind.base:
                break
            kind = self.objects.kind(kind.base)
        return kind.full == "OSError" and not kind.is_heap

    def _of_system(self, address: int) -> str:
        """What the call of the system that failed said, and of which file."""
        number, said, file = self.objects.words(address + _ERRNO, 3)
        if not number or not said or self.objects.kind_of(said).address != self.objects.unicode:
            return ""
        text = f"[Errno {self._item(number)}] {self._line(said)}"
        return f"{text}: {self._item(file)}" if file and self._item(file) != "None" else text

    def _line(self, address: int) -> str:
        whole = " ".join(self.objects.text(address)[:_MOST_READ].split())
        return self._redact.text(whole)[:_LONGEST_ERROR]

    # -- containers ---------------------------------------------------------------------------------------

    def _container(self, address: int, kind: Kind) -> str | None:
        if kind.derives_from(_LIST) or kind.derives_from(_TUPLE):
            begin, end = "[]" if kind.derives_from(_LIST) else "()"
            count = self._word(address + 16)
            items = [self._item(item) for item in self._items(address, kind)[:_MOST_ITEMS]]
            if len(set(items)) == 1 and count > 1 and items[0].startswith("<"):
                return f"<{kind.name} of {count} {items[0][1:-1]}>"
            items = [
                HIDDEN if at and self._names_secret(items[at - 1]) else text for at, text in enumerate(items)
            ]
            return _joined(begin, items, count, end)
        if not kind.is_heap and kind.full in ("set", "frozenset"):
            used, mask, table = struct.unpack("<QQQ", self._memory.read(address + 24, 24))
            looked = min(mask + 1, _MOST_LOOKED_AT)
            keys = [key for key, _ in struct.iter_unpack("<QQ", self._memory.read(table, 16 * looked)) if key]
            items = sorted(filter(None, map(self._item, keys[:_MOST_LOOKED_AT])))[:_MOST_ITEMS]
            return _joined("{", items, used, "}") if used else "set()"
        if kind.derives_from(DICT_BIT):
            items = []
            pairs = list(self.objects.entries(address))
            names = [self._item(key) for key, _ in pairs[:_MOST_ITEMS]]
            if len(pairs) > _MOST_ITEMS and all(_VARIABLE.fullmatch(name) for name in names):
                return f"<{kind.name} of {len(pairs)} items>"  # an environment has anything in it
            for name, (_, value) in zip(names, pairs[:_MOST_ITEMS], strict=True):
                items.append(f"{name}: {HIDDEN if self._names_secret(name) else self._item(value)}")
            return _joined("{", items, len(pairs), "}")
        return None

    def _items(self, address: int, kind: Kind) -> tuple[int, ...]:
        """The first of them."""
        count = min(self._word(address + 16), _MOST_LOOKED_AT)
        place = self._word(address + 24) if kind.derives_from(_LIST) else address + 24
        return self.objects.words(place, count)

    def _names_secret(self, item: str) -> bool:
        """A key of a dict, an option before its value."""
        return self._redact.name(item.removeprefix("b").strip("'\""))

    def _item(self, address: int) -> str:
        """Nothing of what is in it in turn."""
        try:
            kind = self.objects.kind_of(address)
            return self._scalar(address, kind) or f"<{kind.name}>"
        except Torn:
            return "?"

    # -- others -------------------------------------------------------------------------------------------

    def _instance(self, address: int, kind: Kind) -> Value:
        if not kind.is_heap and kind.full == "numpy.ndarray":
            dimensions, place = struct.unpack("<i4xQ", self._memory.read(address + 24, 16))
            if 0 <= dimensions <= _MOST_DIMENSIONS:
                data = self._memory.read(place, 8 * dimensions) if dimensions else b""
                return Value(f"<ndarray of shape {struct.unpack(f'<{dimensions}q', data)}>")
        if kind.full == "collections.deque":
            return Value(f"<deque of {self._word(address + 16)}>")
        known = self._attributes(address)
        member = dict(known).get("_name_")
        if member and "_value_" in dict(known):
            return Value(f"{kind.name}.{member[1:-1]}", plain=True)
        public = [pair for pair in known if not pair[0].startswith("_")]
        shown = [f"{name}={text}" for name, text in public or known]
        text = " ".join(["<" + kind.name, ", ".join(shown[:_MOST_ATTRIBUTES])]).rstrip() + ">"
        return Value(text, instance=True)

    def _attributes(self, address: int) -> list[tuple[str, str]]:
        """Those that are numbers, texts or None."""
        found = []
        try:
            for key, value in self.objects.attributes(address):
                kind = self.objects.kind_of(value)
                text = self._scalar(value, kind)
                if text is not None:
                    name = self.objects.text(key)
                    found.append((name, HIDDEN if self._hides(name, text) else text))
                if len(found) > _MOST_ITEMS:
                    break
        except Torn:
            pass
        return found


def _is_no_secret(name: str, text: str) -> bool:
    """
    >>> _is_no_secret("new_tokens", "48"), _is_no_secret("hub_token", "'abc'"), _is_no_secret("pin", "1234")
    (True, False, False)
    """
    return text in NO_SECRETS or (name.endswith("tokens") and _COUNT_OF_TOKENS.fullmatch(text) is not None)


def _quoted(text: str, length: int) -> str:
    """As repr has it, cut: `length` is that of the whole.

    >>> _quoted("it's", 4), _quoted("x" * 99, 99)[-12:]
    ('"it\\'s"', "xxx'... (99)")
    """
    shown = text[:LONGEST]
    return f"{shown!r}" + (f"... ({length})" if len(text) > LONGEST or length > _MOST_READ else "")


def _joined(begin: str, items: list[str], count: int, end: str) -> str:
    """
    >>> _joined("(", ["1"], 1, ")"), _joined("[", ["1", "2"], 9, "]"), _joined("{", [], 0, "}")
    ('(1,)', '[1, 2, ... 9 items]', '{}')
    """
    shown: list[str] = []
    for item in items:
        if sum(map(len, shown)) + len(item) > LONGEST:
            break
        shown.append(item)
    more = f"... {count} items" if count > len(shown) else ""
    if begin == "(" and count == 1 and shown:
        return f"({shown[0]},)"
    return begin + ", ".join(filter(None, (*shown, more))) + end
