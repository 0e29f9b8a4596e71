"""Python's own names of threads: `threading._active` of the process, {ident: Thread}, each with its `_name`.

The system's name of a thread is the process's up to Python 3.13. Looked for once; afterwards only threads
that are new cost anything. Whatever cannot be read leaves a thread without a name.
"""

from __future__ import annotations

import contextlib

from diag.sources.stacks.remote_stack.memory import Torn
from diag.sources.stacks.remote_stack.objects import Objects

_AGAIN = 64  # samples, after which all names are read anew: threads can be renamed


class ThreadNames:
    """Of one process. `of` never raises Torn."""

    def __init__(self, objects: Objects) -> None:
        self._objects, self._memory = objects, objects.memory
        self._active = 0  # address of the dictionary, once found
        self._known: dict[tuple[int, int], str] = {}
        self._samples = 0

    def of(self, interpreter: int) -> dict[int, str]:
        """Ident of a thread (pthread_self) -> its name."""
        if self._samples % _AGAIN == 0:
            self._active, self._known = 0, {}
            self._objects.begin()
        self._samples += 1
        names: dict[int, str] = {}
        with contextlib.suppress(Torn):
            if not self._active:
                self._active = global_of(self._objects, interpreter, "threading", "_active")
            for key, thread in self._objects.entries(self._active):
                ident = self._objects.integer(key)
                if not ident:
                    raise Torn("not the ident of a thread")
                known = self._known.get((ident, thread))
                if known is None:
                    with contextlib.suppress(Torn):
                        known = self._known[ident, thread] = self._name(thread)
                if known is not None:
                    names[ident] = known
        if not names:
            self._active = 0
        return names

    def _name(self, thread: int) -> str:
        for key, value in self._objects.attributes(thread):
            if self._objects.text(key) == "_name":
                return self._objects.text(value)
        raise Torn("no _name")


def global_of(objects: Objects, interpreter: int, module: str, name: str) -> int:
    """Address of a module's variable; 0 where it has none of that name. Raises Torn where there is no such module."""
    modules = objects.memory.word(interpreter + objects.layout.interp_modules)
    place = _item(objects, modules, module)
    if not place or objects.memory.word(place + 8) != objects.symbols["PyModule_Type"]:
        raise Torn(f"no module {module}")
    return _item(objects, objects.memory.word(place + 16), name)


def _item(objects: Objects, dictionary: int, name: str) -> int:
    for key, value in objects.entries(dictionary):
        if objects.memory.word(key + 16) == len(name) and objects.text(key) == name:
            return value
    return 0
