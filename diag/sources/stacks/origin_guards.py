"""What a function returns, and what decides whether a statement of it is come to: conditions, loops, and handlers of exceptions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from diag.sources.stacks.origin_scopes import LOOPS, Binding, Function, own_nodes


@dataclass(slots=True, eq=False)
class Value:
    """What a function returns, or hands out in each round; `under`: the conditions and loops that it is in."""

    value: ast.expr
    line: int
    under: tuple[ast.expr, ...]

    @property
    def key(self) -> object:
        return self.value

    def at(self, index: int | None) -> Value:
        """Of several values the one with this number."""
        if index is None or not isinstance(self.value, ast.Tuple) or index >= len(self.value.elts):
            return self
        return Value(self.value.elts[index], self.line, self.under)


@dataclass(frozen=True, slots=True)
class Guard:
    """`passes`: where it holds the statement is gone past; else the statement is only come to where it holds."""

    head: ast.expr
    line: int
    passes: bool


def returned(function: Function) -> list[Value]:
    found = []
    for one in own_nodes(function.node):
        value = one.value if isinstance(one, ast.Return | ast.Yield) else None
        if value is not None:
            found.append(Value(value, one.lineno, tuple(_heads(one, function))))  # type: ignore[attr-defined]
    return found


def _heads(node: ast.AST, function: Function) -> Iterator[ast.expr]:
    outer = function.text.parent(node)
    while outer is not None and outer is not function.node:
        if isinstance(outer, ast.If | ast.While):
            yield outer.test
        elif isinstance(outer, ast.For | ast.AsyncFor):
            yield outer.iter
        outer = function.text.parent(outer)


def loops_around(one: Binding) -> Iterator[ast.expr]:
    """What the loops in which it counts go over."""
    return _heads(one.statement, one.function) if one.function is not None else iter(())


def guard_of(statement: ast.AST, function: Function | None) -> Guard | None:
    """What decides, within the innermost loop around it or its function, whether it is come to."""
    node = statement
    while function is not None and (outer := function.text.parent(node)) is not None:
        if isinstance(outer, ast.If):
            return Guard(outer.test, outer.lineno, passes=False)
        for block in (getattr(outer, name, ()) for name in ("body", "orelse")):
            if node in block:
                for before in block[: block.index(node)]:
                    if isinstance(before, ast.If) and any(
                        isinstance(each, ast.Continue | ast.Return) for each in before.body
                    ):
                        return Guard(before.test, before.lineno, passes=True)
        if isinstance(outer, (*LOOPS, ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)):
            return None
        node = outer
    return None


def caught_by(node: ast.AST, function: Function | None) -> ast.ExceptHandler | None:
    """The handler that goes on with something else where a call in it raises; None where none does, or what it caught is raised
    again."""
    if not any(isinstance(part, ast.Call) for part in ast.walk(node)):
        return None
    while (
        function is not None
        and node is not function.node
        and (outer := function.text.parent(node)) is not None
    ):
        if isinstance(outer, ast.Try) and node in outer.body:
            for handler in outer.handlers:
                if not any(isinstance(part, ast.Raise) for part in ast.walk(handler)):
                    return handler
        node = outer
    return None
