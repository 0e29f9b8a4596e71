"""A mutant put into a process that has imported everything: nothing on disk changes, and a forked child is rid of it
with its end."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Iterator
from functools import reduce
from types import CodeType, FunctionType
from typing import Any


def place_of(source: str, line: int) -> tuple[str, ...] | None:
    """Names that lead to the function whose body has this line; none of them for a value of the module; None where it
    cannot be changed in what is already imported: decorators, arguments, fields of classes."""

    def inside(nodes: list[ast.stmt], names: tuple[str, ...]) -> tuple[str, ...] | None:
        for node in nodes:
            if not node.lineno <= line <= (node.end_lineno or node.lineno):
                continue
            if isinstance(node, ast.FunctionDef):
                return (*names, node.name) if line >= node.body[0].lineno else None
            if isinstance(node, ast.ClassDef):
                return inside(node.body, (*names, node.name))
            return () if not names and isinstance(node, ast.Assign | ast.AnnAssign) else None
        return None

    return inside(ast.parse(source).body, ())


def put_in(module_name: str, mutated: str, place: tuple[str, ...]) -> None:
    module = importlib.import_module(module_name)
    code = compile(mutated, str(module.__file__), "exec", dont_inherit=True)
    if place:
        code_of = reduce(_inner, place, code)
        _function(reduce(inspect.getattr_static, place, module)).__code__ = code_of
        return
    fresh: dict[str, Any] = {"__name__": module_name, "__file__": module.__file__}
    exec(code, fresh)
    for name, old in list(vars(module).items()):
        new = fresh.get(name)
        if not name.startswith("__") and not callable(old) and name in fresh and new != old:
            for other in list(sys.modules.values()):
                if vars(other).get(name) is old:
                    setattr(other, name, new)


def _inner(code: CodeType, name: str) -> CodeType:
    return next(_codes(code, name))


def _codes(code: CodeType, name: str) -> Iterator[CodeType]:
    return (one for one in code.co_consts if isinstance(one, CodeType) and one.co_name == name)


def _function(found: Any) -> FunctionType:
    for inner in ("fget", "__func__", "__wrapped__"):
        found = getattr(found, inner, None) or found
    assert isinstance(found, FunctionType)
    return found
