"""Run a function right after a module has been imported, without importing it.

How the device layer and the faults reach into torch and Megatron while the job's own code stays untouched.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

Hook = Callable[[ModuleType], None]


class _AfterImport(importlib.abc.MetaPathFinder):
    def __init__(self) -> None:
        self.hooks: dict[str, list[Hook]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self.hooks:
            return None
        # Asking the other finders directly, not importlib.util.find_spec: several such hooks may be stacked.
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    self._wrap(fullname, spec.loader)
                return spec
        return None

    def _wrap(self, name: str, loader: importlib.abc.Loader) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            # Taken only now: availability probes call find_spec and never execute what they found.
            for hook in self.hooks.pop(name, ()):
                hook(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]


_finder: _AfterImport | None = None


def after_import(name: str, hook: Hook) -> None:
    """Call `hook(module)` once `name` is imported; at once if it already is."""
    global _finder  # noqa: PLW0603 - one for the process, made when first needed
    module = sys.modules.get(name)
    if module is not None:
        hook(module)
        return
    if _finder is None:
        _finder = _AfterImport()
        sys.meta_path.insert(0, _finder)
    _finder.hooks.setdefault(name, []).append(hook)
