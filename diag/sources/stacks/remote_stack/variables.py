"""The variables of frames of the process's memory: arguments and locals, what inner functions share, the
attributes and globals that the function's own code names.

What a frame holds before and after the reading is reported, and of what lies deeper what was read twice: a value that the
variable had, not what has taken its place in memory meanwhile.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

from diag.sources.stacks.remote_stack.arguments import CO_NAMES
from diag.sources.stacks.remote_stack.memory import Torn
from diag.sources.stacks.remote_stack.objects import LEAST_ADDRESS
from diag.sources.stacks.remote_stack.values import Value, Values

MOST_OF_FRAME = 60
_MOST_OF_OBJECT = 12
_MOST_EXCEPTIONS = 2
_MOST_ITEMS = 8  # of a list
_MOST_LOOKED_AT = 64  # items of lists, in a reading
_MOST_KEYS = 64  # of a dict that is looked through
_MOST_GLOBALS = 12
_DEPTH = 2  # self.state.step
_CO_CONSTS = 24  # of PyCodeObject, 3.11-3.13
_ARGUMENTS, _KEYWORDS = 16, 8  # co_argcount and co_kwonlyargcount, before co_firstlineno
_GLOBALS_LOCALS = {11: (8, 24), 12: (24, 40), 13: (24, 40)}  # of _PyInterpreterFrame
_MOST_SETTINGS = 24
_FIRST = 16  # attributes by which an object is taken for one of settings

_CUT = re.compile(r"\.\.\. \d+ items\}$")  # of values.py
_ROOT = re.compile(r"[.\[]")  # self of self.path

Named = tuple[str, str]


class _Code(NamedTuple):
    """What a function names: its variables by their slots, what it looks up elsewhere by the address of the name, and
    the texts among its constants."""

    variables: list[str]
    looked_up: dict[int, str]
    constants: frozenset[str]


_NOTHING = _Code([], {}, frozenset())


class FrameReader:
    """Reads the variables of one frame after another, of one process."""

    def __init__(self, values: Values) -> None:
        self._values, self._objects = values, values.objects
        self._memory, self._layout = values.objects.memory, values.objects.layout
        self._codes: dict[int, _Code] = {}
        self.paths: list[str] = []  # that the variables of the frames read may name
        self.exceptions: dict[str, int] = {}  # of the frame last read: those that its variables are, or keep
        self._left = _MOST_LOOKED_AT

    def of(self, frame: int, code: int, *, arguments: bool) -> list[Named]:
        """(name, value as text). `arguments`: only these, and of them only plain ones. Raises Torn where the frame is
        gone meanwhile."""
        known = self._code(code)
        names = known.variables[: self._arguments(code)] if arguments else known.variables
        place = frame + self._layout.frame_locals
        self.exceptions = {}
        before = self._objects.words(place, len(names))
        found = self._read(frame, known, names, before, arguments=arguments)
        again = {*self._read(frame, known, names, before, arguments=arguments)}
        after = self._objects.words(place, len(names))
        if self._memory.word(frame + self._layout.frame_code) != code:
            raise Torn("another frame")
        kept = {name for name, old, new in zip(names, before, after, strict=True) if old == new}
        changed = {*names} - kept
        return [
            (name, text)
            for name, text in found
            if name in kept or ((name, text) in again and _ROOT.split(name, maxsplit=1)[0] not in changed)
        ][:MOST_OF_FRAME]

    def _read(
        self, frame: int, code: _Code, names: Sequence[str], slots: Sequence[int], *, arguments: bool
    ) -> list[Named]:
        found: list[Named] = []
        for slot, name in zip(slots, names, strict=True):
            if len(found) >= MOST_OF_FRAME:
                break
            if slot >= LEAST_ADDRESS and _is_reported(name):
                found += self._rows(name, slot, _NOTHING if arguments else code, plain=arguments)
        return found if arguments else [*found, *self._of_module(frame, code)]

    # -- names --------------------------------------------------------------------------------------------

    def _code(self, code: int) -> _Code:
        known = self._codes.get(code)
        if known is None:
            variables, looked_up, constants = (
                self._strings(code + at) for at in (self._layout.code_names, CO_NAMES, _CO_CONSTS)
            )
            known = self._codes[code] = _Code([*variables.values()], looked_up, frozenset(constants.values()))
        return known

    def _strings(self, place: int) -> dict[int, str]:
        """Of a tuple, by their addresses."""
        items = self._objects.names_at(place)
        return {item: self._objects.text(item) for item in items if self._is_text(item)}

    def _is_text(self, address: int) -> bool:
        return self._memory.word(address + 8) == self._objects.unicode

    def _arguments(self, code: int) -> int:
        first = code + self._layout.code_firstlineno
        counts = (
            int.from_bytes(self._memory.read(first - back, 4), "little", signed=True)
            for back in (_ARGUMENTS, _KEYWORDS)
        )
        return min(sum(max(0, count) for count in counts), MOST_OF_FRAME)

    # -- values -------------------------------------------------------------------------------------------

    def _rows(self, name: str, address: int, code: _Code, *, plain: bool, depth: int = _DEPTH) -> list[Named]:
        """The variable, or what its function names of it."""
        try:
            value = self._values.named(name, address)
            if value is None or (plain and not value.plain):
                return []
            inner = self._inner(name, address, value, code, depth) if depth and code is not _NOTHING else []
            if value.exception:
                self.exceptions[name] = self._values.content(address)
        except Torn:
            return []
        if (
            value.plain
            and code is not _NOTHING
            and value.text[-1:] in "'\")"
            and (path := self._path(address))
        ):
            self.paths.append(path)
        return inner or [(name, value.text)]

    def _path(self, address: int) -> str:
        try:
            return self._values.path(address)
        except Torn:
            return ""

    def _inner(self, name: str, address: int, value: Value, code: _Code, depth: int) -> list[Named]:
        address = self._values.content(address)
        if value.mapping:
            return self._entries(name, address, code) or self._settings_of(name, address, value)
        if not value.instance:
            return self._held(name, address, value) if depth == _DEPTH else []
        found: list[Named] = []
        others = []
        for key, inner in self._objects.attributes(address):
            attribute = code.looked_up.get(key)
            if attribute is None:
                others.append((key, inner))
            elif len(found) < _MOST_OF_OBJECT:
                found += self._rows(f"{name}.{attribute}", inner, code, plain=False, depth=depth - 1)
        if depth == _DEPTH:
            found += self._settings(name, others) + self._exceptions(name, others)
        return found

    def _settings(self, name: str, attributes: list[tuple[int, int]]) -> list[Named]:
        """Of an object that has little else than plain values: ranks may have come to different ones."""
        found: list[Named] = []
        for key, address in attributes[:_FIRST]:
            text = self._objects.text(key)
            if not text.startswith("_"):
                found += self._rows(f"{name}.{text}", address, _NOTHING, plain=True)
        return found[:_MOST_OF_OBJECT] if 2 * len(found) >= min(len(attributes), _FIRST) else []

    def _exceptions(self, name: str, attributes: list[tuple[int, int]]) -> list[Named]:
        """Those that an object keeps: a thread of it, or a future, has left one behind for whoever asks."""
        found: list[Named] = []
        for key, address in attributes[:_FIRST]:
            value = self._values.named(text := self._objects.text(key), address)
            if value is not None and value.exception:
                found.append(self._kept(f"{name}.{text}", address, value))
            elif value is not None and value.instance:
                found += self._of_instance(f"{name}.{text}", address)
        return found[:_MOST_EXCEPTIONS]

    def _of_instance(self, name: str, address: int) -> list[Named]:
        """Of a future, or of another object that keeps what it is to raise later."""
        return [
            self._kept(f"{name}.{text}", place, kept)
            for inner, place in itertools.islice(self._objects.attributes(address), _FIRST)
            if (kept := self._values.named(text := self._objects.text(inner), place)) is not None
            and kept.exception
        ]

    def _held(self, name: str, address: int, of: Value) -> list[Named]:
        """Of a list of such objects, those of the first items: results that are waited for in turn."""
        found: list[Named] = []
        for at, item in enumerate(self._values.items(address)[:_MOST_ITEMS]):
            if self._left <= 0 or len(found) >= _MOST_EXCEPTIONS:
                break
            self._left -= 1
            value = self._values.named("", item)
            if value is None or not (value.exception or value.instance):
                break
            each = f"{name}[{at}]"
            kept = [self._kept(each, item, value)] if value.exception else self._of_instance(each, item)
            found += kept
        return [(name, of.text), *found] if found else []

    def _kept(self, name: str, address: int, value: Value) -> Named:
        self.exceptions[name] = address
        return name, value.text

    def _entries(self, name: str, address: int, code: _Code) -> list[Named]:
        """Those whose keys the function has as texts: cfg["out"]."""
        found: list[Named] = []
        for key, inner in itertools.islice(self._objects.entries(address), _MOST_KEYS):
            if self._is_text(key):
                text = self._objects.text(key)
                if text in code.constants and text.isprintable() and len(found) < _MOST_OF_OBJECT:
                    found += self._rows(f"{name}[{text!r}]", inner, _NOTHING, plain=False)
        return found

    def _settings_of(self, name: str, address: int, value: Value) -> list[Named]:
        """Of a dict that its text does not show whole, and that has little else than plain values under names."""
        if not _CUT.search(value.text):
            return []
        pairs = [*itertools.islice(self._objects.entries(address), _MOST_SETTINGS + 1)]
        if len(pairs) > _MOST_SETTINGS or not all(self._is_text(key) for key, _ in pairs):
            return []
        found: list[Named] = []
        for key, inner in pairs:
            if (text := self._objects.text(key)).isidentifier():
                found += self._rows(f"{name}[{text!r}]", inner, _NOTHING, plain=True)
        return [(name, value.text), *found] if 2 * len(found) >= len(pairs) else []

    def _of_module(self, frame: int, code: _Code) -> list[Named]:
        """Of a module's own code all that it names, of a function plain values of its module."""
        globals_at, locals_at = _GLOBALS_LOCALS[self._layout.minor]
        module, own = (self._memory.word(frame + at) for at in (globals_at, locals_at))
        found: list[Named] = []
        try:
            for key, value in self._objects.entries(own or module):
                name = code.looked_up.get(key)
                if name is not None and _is_reported(name):
                    found += self._rows(name, value, code if own else _NOTHING, plain=not own)
                if len(found) >= (MOST_OF_FRAME if own else _MOST_GLOBALS):
                    break
        except Torn:
            pass
        return found


def _is_reported(name: str) -> bool:
    return name.isidentifier() and not name.startswith("__") and name != "_"
