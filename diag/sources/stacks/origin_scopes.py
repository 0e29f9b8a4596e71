"""The functions of a parsed file of the program, and the statements that give each of their names a value."""

from __future__ import annotations

import ast
import posixpath
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from diag.sources.stacks.origin_kinds import agrees, dotted, draws

LOOPS = (ast.For, ast.AsyncFor, ast.While)
_CHANGES = (
    "append",
    "add",
    "extend",
    "insert",
    "pop",
    "popleft",
    "discard",
    "remove",
    "appendleft",
    "update",
)


@dataclass(slots=True, eq=False)
class Binding:
    """`kind`: value, item (of what a `for` goes over), changes (in place), or given (to an object that has it). `shared`: by a
    call after which all ranks have the same; `index`: which one of what the value has."""

    kind: str
    statement: ast.stmt
    value: ast.expr | None
    function: Function | None
    shared: bool = False
    index: int | None = None

    @property
    def line(self) -> int:
        return self.statement.lineno

    @property
    def key(self) -> object:
        return self.statement


@dataclass(eq=False)
class Function:
    """Or a module's own code. `shared`: the names that a collective writes, and from which line on; `agrees`: it makes such a
    call itself."""

    text: Text
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Module
    owner: str = ""
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    declared: dict[str, int] = field(default_factory=dict)
    agrees: bool = False

    @property
    def line(self) -> int:
        return getattr(self.node, "lineno", 0)

    @property
    def last(self) -> int:
        return getattr(self.node, "end_lineno", 0)

    def shared_at(self, node: ast.expr) -> set[str]:
        """By a call before it."""
        return {name for name, line in self.declared.items() if line < node.lineno}

    @property
    def modules(self) -> Collection[str]:
        return self.text.imported

    @cached_property
    def of_module(self) -> set[str]:
        """The names that it says are its module's."""
        found = (one for one in own_nodes(self.node) if isinstance(one, ast.Global))
        return {name for one in found for name in one.names}

    @cached_property
    def parameters(self) -> list[str]:
        """Without the instance that a method is called of."""
        if isinstance(self.node, ast.Module):
            return []
        given = self.node.args
        names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
        return names[1:] if self.owner and names[:1] and names[0] in ("self", "cls") else names


class Text:
    """Raises SyntaxError, ValueError, RecursionError or MemoryError of what cannot be parsed."""

    def __init__(self, path: str, source: str) -> None:
        self.path, self.stem = path, posixpath.basename(path).removesuffix(".py")
        self._lines = source.encode().split(b"\n")
        tree = ast.parse(source)
        self.module = Function(self, tree)
        self.functions: dict[str, list[Function]] = {}
        self.methods: dict[str, list[Function]] = {}
        self.attributes: dict[str, list[Binding]] = {}
        self.classes: set[str] = set()
        self.imported: dict[str, str] = {}  # by the name that it has here
        self._all: list[Function] = [self.module]
        self._parents: dict[ast.AST, ast.AST] = {}
        self._heads: dict[int, ast.stmt] = {}
        self._walk(tree, self.module, "")
        self.calls = [
            (one, part) for one in self._all for part in own_nodes(one.node) if isinstance(part, ast.Call)
        ]
        self.draws = [(one, call) for one, call in self.calls if draws(call)]
        self.handlers = {name for _, call in self.calls if (name := _handler(call))}
        for one in self._all:
            one.agrees = one is not self.module and any(map(agrees, own_nodes(one.node)))
        self._add_given()

    # -- what it is made of

    def _walk(self, node: ast.AST, scope: Function, owner: str) -> None:
        for child in ast.iter_child_nodes(node):
            self._parents[child] = node
            inner, inside = scope, owner
            if isinstance(child, ast.ClassDef):
                self.classes.add(child.name)
                inside = child.name
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                of_class = isinstance(node, ast.ClassDef)
                inner = Function(self, child, owner if of_class else scope.owner)
                self._all.append(inner)
                (self.methods if of_class else self.functions).setdefault(child.name, []).append(inner)
            elif isinstance(child, ast.Import | ast.ImportFrom):
                self.imported |= {
                    (one.asname or one.name).partition(".")[0]: one.name
                    if one.asname
                    else one.name.partition(".")[0]
                    for one in child.names
                }
            if isinstance(child, ast.stmt):
                self._heads.setdefault(child.lineno, child)
                self._bind(child, scope)
            if isinstance(child, ast.Call) and agrees(child):
                for one in child.args[:1]:
                    if isinstance(one, ast.Name):
                        scope.declared.setdefault(one.id, child.lineno)
            self._walk(child, inner, inside)

    def _bind(self, one: ast.stmt, scope: Function) -> None:
        if isinstance(one, ast.Assign):
            for target in one.targets:
                self._set(target, "value", one, one.value, scope)
        elif isinstance(one, ast.AnnAssign):
            self._set(one.target, "value", one, one.value, scope)
        elif isinstance(one, ast.AugAssign):
            self._set(one.target, "changes", one, one.value, scope)
        elif isinstance(one, ast.For | ast.AsyncFor):
            self._set(one.target, "item", one, one.iter, scope)
        elif isinstance(one, ast.With | ast.AsyncWith):
            for item in one.items:
                if item.optional_vars is not None:
                    self._set(item.optional_vars, "value", one, item.context_expr, scope)
        elif isinstance(one, ast.Expr) and isinstance(one.value, ast.Call):
            called = one.value.func
            if isinstance(called, ast.Attribute) and called.attr in _CHANGES and one.value.args:
                self._set(called.value, "changes", one, one.value.args[-1], scope)
            elif isinstance(called, ast.Attribute) and called.attr == "set" and not one.value.args:
                self._set(called.value, "changes", one, None, scope)  # of an event

    def _set(  # noqa: PLR0917 - a binding's own fields
        self,
        target: ast.expr,
        kind: str,
        one: ast.stmt,
        value: ast.expr | None,
        scope: Function,
        index: int | None = None,
    ) -> None:
        shared = value is not None and any(map(agrees, ast.walk(value)))
        if isinstance(target, ast.Tuple | ast.List):
            for at, (part, given) in enumerate(
                zip(target.elts, _values(kind, value, len(target.elts)), strict=True)
            ):
                self._set(part, kind, one, given, scope, at if given is value else None)
            return
        made = Binding(kind, one, value, scope, shared, index)
        if isinstance(target, ast.Name):
            local = target.id in scope.bindings or target.id in scope.parameters
            in_place = isinstance(one, ast.Expr) and not local
            own = self.module if target.id in scope.of_module or in_place else scope
            own.bindings.setdefault(target.id, []).append(made)
        elif isinstance(target, ast.Attribute) and dotted(target.value) == "self":
            self.attributes.setdefault(target.attr, []).append(made)

    def _add_given(self) -> None:
        """`self.plateau.step(loss)` changes the optimizer that `self.plateau = Plateau(self.opt)` was given."""
        holders: dict[tuple[str, str], list[str]] = {}
        for name, bindings in self.attributes.items():
            for one in bindings:
                for given in one.value.args if isinstance(one.value, ast.Call) and one.function else ():
                    text = dotted(given)
                    if text.startswith("self.") and one.function is not None:
                        holders.setdefault((one.function.owner, name), []).append(text[5:])
        if not holders:
            return
        for function in self._all:
            for part in own_nodes(function.node):
                if not isinstance(part, ast.Expr) or not isinstance(call := part.value, ast.Call):
                    continue
                if not call.args or not isinstance(call.func, ast.Attribute):
                    continue
                holder = dotted(call.func.value).removeprefix("self.")
                for name in holders.get((function.owner, holder), ()):
                    made = Binding("given", part, call.args[0], function)
                    self.attributes.setdefault(name, []).append(made)

    # -- asked for

    def function_at(self, line: int) -> Function:
        inside = [
            one for one in self._all if one.line <= line <= (getattr(one.node, "end_lineno", 0) or line)
        ]
        return max(inside, key=lambda one: one.line, default=self.module)

    def loops_at(self, line: int) -> list[ast.For | ast.AsyncFor | ast.While]:
        """Of its function, around it, the innermost first; its own where it is the head of one."""
        found = [
            one
            for one in own_nodes(self.function_at(line).node)
            if isinstance(one, LOOPS) and one.lineno <= line <= (one.end_lineno or 0)
        ]
        return sorted(found, key=lambda one: -one.lineno)

    def asked_at(self, line: int) -> list[ast.expr]:
        """What the head of the block at this line reads."""
        one = self._heads.get(line) or self._of_else(line)
        if isinstance(one, ast.If | ast.While):
            return [one.test]
        if isinstance(one, ast.For | ast.AsyncFor):
            return [one.iter]
        if isinstance(one, ast.With | ast.AsyncWith):
            chosen = [item.context_expr for item in one.items]
            return [part.test for each in chosen for part in ast.walk(each) if isinstance(part, ast.IfExp)]
        return []

    def _of_else(self, line: int) -> ast.stmt | None:
        for one in self._heads.values():
            last = one.body[-1].end_lineno if isinstance(one, ast.If) and one.orelse else None
            if last is not None and isinstance(one, ast.If) and last < line < one.orelse[0].lineno:
                return one
        return None

    def given_at(self, line: int) -> Iterator[tuple[str, ast.expr]]:
        """The arguments of the call that the statement at this line consists of: "run:2", "run:seed"."""
        one = self._heads.get(line)
        within = one.test if isinstance(one, ast.If | ast.While) else one
        blocks = ast.For | ast.AsyncFor | ast.With | ast.AsyncWith | ast.Try
        whole = within is None or isinstance(within, blocks)
        call = None if whole or within is None else next(_calls(within), None)
        if call is not None:
            name = callee_name(call)
            if not any(isinstance(each, ast.Starred) for each in call.args):
                yield from ((f"{name}:{at}", each) for at, each in enumerate(call.args))
            yield from ((f"{name}:{each.arg}", each.value) for each in call.keywords if each.arg)

    def nearest(self, found: list[Binding], line: int) -> list[Binding]:
        """The last one before it, and what changes it in place wherever that is. Where that one is only come to under a
        condition, the one before it too."""
        plain = [one for one in found if one.kind != "changes"]
        before = [one for one in plain if one.line <= line] or plain
        first = len(before) - 1
        while first > 0 and self._may_be_passed(before[first].statement, line):
            first -= 1
        return [*before[max(0, first) :], *(one for one in found if one.kind == "changes")]

    def _may_be_passed(self, statement: ast.stmt, line: int) -> bool:
        """It is in a branch of an `if` in which that line is not."""
        outer = self.parent(statement)
        while outer is not None and not isinstance(outer, (*LOOPS, ast.FunctionDef, ast.AsyncFunctionDef)):
            if isinstance(outer, ast.If) and not outer.lineno <= line <= (outer.end_lineno or line):
                return True
            outer = self.parent(outer)
        return False

    def segment(self, node: ast.AST) -> str:
        """In one row, as it is written."""
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1  # type: ignore[attr-defined]
        rows = self._lines[first : last + 1]
        rows[-1] = rows[-1][: node.end_col_offset]  # type: ignore[attr-defined]
        rows[0] = rows[0][node.col_offset :]  # type: ignore[attr-defined]
        return " ".join(b" ".join(rows).decode("utf-8", "replace").split())

    def head_of(self, handler: ast.ExceptHandler) -> str:
        """ "except OSError as error:" """
        caught = f" {self.segment(handler.type)}" if handler.type is not None else ""
        return f"except{caught}{f' as {handler.name}' if handler.name else ''}:"

    def parent(self, node: ast.AST) -> ast.AST | None:
        return self._parents.get(node)


def _values(kind: str, value: ast.expr | None, count: int) -> list[ast.expr | None]:
    """Of names that are assigned together. How many rounds `enumerate` has counted is the same for all that are in one."""
    if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == count and kind == "value":
        return [*value.elts]
    if kind == "item" and isinstance(value, ast.Call) and callee_name(value) == "enumerate" and value.args:
        return [None, *[value.args[0]] * (count - 1)]
    return [value] * count


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    """The outermost first."""
    return (part for part in ast.walk(node) if isinstance(part, ast.Call))


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All below it, without functions of their own."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from own_nodes(child)


def callee_name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _handler(call: ast.Call) -> str:
    """The function that `signal.signal(signum, function)` makes a handler."""
    if dotted(call.func) not in ("signal.signal", "signal.sigaction") or len(call.args) != 2:
        return ""
    return dotted(call.args[1]).rpartition(".")[2]
