"""Where the values come from that a condition or a loop of the program asks for: from statement to statement, through the
functions and classes of the program, to one that need not come to the same on all ranks.

By the text alone: nothing of it is run, and a name that several statements give is followed through each.
"""

from __future__ import annotations

import ast
import functools
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from diag.model.observations import Link, Origin
from diag.sources.stacks.origin_guards import caught_by, guard_of, loops_around, returned
from diag.sources.stacks.origin_kinds import (
    KINDS,
    OF_RANK,
    agrees,
    is_container,
    is_filtered,
    kinds_of,
    makes_unordered,
    of_many,
)
from diag.sources.stacks.origin_scopes import Binding, Function, Text, callee_name
from diag.sources.stacks.statements import shown

MOST_ORIGINS, MOST_LINKS = 24, 4
_MOST_OF_HEADS = 12
_MOST_OF_HEAD, _MOST_OF_ARGUMENT = 5, 2
_MOST_ARGUMENTS = 8
_ENDS = ("clock", "data")  # what is behind these does not tell more
_MOST_STEPS = 120  # ours: expressions that are looked at for one head
_MOST_BINDINGS = 3
_LONGEST = 256 << 10  # characters of a file: some tenths of a second

Links = tuple[Link, ...]
Found = tuple[str, Links]


def origins(texts: Mapping[str, str], path: str, heads: Sequence[int], line: int) -> tuple[Origin, ...]:
    """Of the heads of blocks at these lines of this file, and of the statement at `line`. `texts`: of the program's files that
    it imports too."""
    program = _Program([text for one, source in texts.items() if (text := parsed(one, source)) is not None])
    own = program.files.get(path)
    if own is None:
        return ()
    try:
        return tuple(_origins(program, own, dict.fromkeys((*heads, line)), line))
    except RecursionError:
        return ()


def _origins(program: _Program, own: Text, heads: Iterable[int], line: int) -> list[Origin]:
    found: list[Origin] = []
    for head in heads:
        if asked := own.asked_at(head):
            found += _Slice(program, own, head).of(asked)
    found = found[:_MOST_OF_HEADS]
    for argument, given in itertools.islice(own.given_at(line), _MOST_ARGUMENTS):
        found += _Slice(program, own, line).of([given], argument)[:_MOST_OF_ARGUMENT]
    return found[:MOST_ORIGINS]


@functools.lru_cache(maxsize=16)  # each line of a file asks for it
def parsed(path: str, source: str) -> Text | None:
    """None where it is of another version of Python."""
    if len(source) > _LONGEST:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Text(path, source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


class _Program:
    def __init__(self, files: Sequence[Text]) -> None:
        self.files = {one.path: one for one in files}

    def function(self, name: str) -> Function | None:
        return _only(one for file in self.files.values() for one in file.functions.get(name, ()))

    def of_module(self, module: str, name: str) -> Function | None:
        """`module`: as it is imported; a file of the program is called so."""
        stem = module.rpartition(".")[2]
        found = (
            one for file in self.files.values() if file.stem == stem for one in file.functions.get(name, ())
        )
        return _only(found) if stem else None

    def of_class(self, name: str, owner: str = "") -> Function | None:
        """A method; of any class where that is not known."""
        found = (one for file in self.files.values() for one in file.methods.get(name, ()))
        return _only(one for one in found if not owner or one.owner == owner)

    def is_handler(self, function: Function | None) -> bool:
        """Of a signal."""
        name = getattr(function.node, "name", "") if function is not None else ""
        return any(name in file.handlers for file in self.files.values())

    def is_class(self, name: str) -> bool:
        return any(name in file.classes for file in self.files.values())

    def attributes(self, name: str, owner: str = "") -> list[Binding]:
        found = [one for file in self.files.values() for one in file.attributes.get(name, ())]
        owners = {one.function.owner for one in found if one.function is not None}
        if not owner and len(owners) != 1:
            return []
        return [
            one for one in found if not owner or (one.function is not None and one.function.owner == owner)
        ]


def _only(found: Iterable[Function]) -> Function | None:
    first = list(itertools.islice(found, 2))
    return first[0] if len(first) == 1 else None


class _Slice:
    """Of one head."""

    def __init__(self, program: _Program, own: Text, head: int) -> None:
        self._program, self._own, self._head = program, own, head
        self._steps = 0
        self._seen: set[int] = set()

    def of(self, asked: Sequence[ast.expr], argument: str = "") -> list[Origin]:
        root = self._own.function_at(self._head)
        found: dict[Found, None] = {}
        for one in asked:
            if isinstance(name := of_many(one), ast.Name | ast.Attribute):
                found |= dict.fromkeys(self._unordered(name, root))
            found |= dict.fromkeys(self._follow(one, root, (), own=True))
        if ("rank", ()) in found:  # it says so itself
            found = {way: None for way in found if way[0] != "rank" or not way[1]}
        ranked = sorted(found, key=lambda one: (KINDS.index(one[0]), len(one[1])))
        kept: list[Found] = []
        for kind, links in ranked:
            named = kind == "rank" and links[-1:] and OF_RANK.search(links[-1].name)  # it says so itself
            if not named and all(kind != other or links[-1:] != last[-1:] for other, last in kept):
                kept.append((kind, links))
        return [
            Origin(self._head, kind, self._with_others(kind, links), argument)
            for kind, links in kept[:_MOST_OF_HEAD]
        ]

    def _with_others(self, kind: str, links: Links) -> Links:
        """Who else draws from the same generator, where only some ranks do."""
        drawn = next((one for one in (links[-1:] if kind == "random" else ())), None)
        if drawn is None:
            return links
        for file in self._program.files.values():
            for function, call in file.draws:
                if function.line <= drawn.line and drawn.line <= function.last and file.path == drawn.file:
                    continue
                for place, owner in ((call, function), *self._callers(function)):
                    guard = guard_of(place, owner)
                    if guard is not None and self._is_of_rank(guard.head, owner):
                        return (
                            *links[-MOST_LINKS + 1 :],
                            Link(
                                "also",
                                ast.unparse(call.func),
                                self._shown(call, file),
                                file.path,
                                call.lineno,
                                guard=self._shown(guard.head, owner.text),
                                guard_line=guard.line,
                                passes=guard.passes,
                            ),
                        )
        return links

    def _callers(self, function: Function) -> list[tuple[ast.Call, Function]]:
        """Its only one."""
        name = getattr(function.node, "name", "")
        found = [
            (call, caller)
            for file in self._program.files.values()
            for caller, call in file.calls
            if callee_name(call) == name
        ]
        return found if len(found) == 1 else []

    def _is_of_rank(self, head: ast.expr, scope: Function) -> bool:
        self._steps, self._seen = 0, set()
        return any(kind == "rank" for kind, _ in self._follow(head, scope, (), own=False))

    def _unordered(self, name: ast.expr, root: Function) -> Iterator[Found]:
        for one in self._bindings(name, root):
            if one.value is not None and makes_unordered(one.value):
                yield "unordered", (self._link("value", ast.unparse(name), one, own=one.function is root),)

    def _follow(self, node: ast.expr, scope: Function, links: Links, *, own: bool) -> Iterator[Found]:
        self._steps += 1
        if self._steps > _MOST_STEPS:
            return
        kinds = list(kinds_of(node, scope.shared_at(node)))
        yield from ((kind, links) for kind in kinds)
        if len(links) < MOST_LINKS and not {*kinds} & {*_ENDS}:
            for atom in _atoms(node, lambda call: self._function_of(call, scope)):
                if isinstance(atom, ast.Call):
                    yield from self._called(atom, scope, links)
                else:
                    yield from self._named(atom, scope, links, own=own)

    def _called(
        self, call: ast.Call, scope: Function, links: Links, index: int | None = None
    ) -> Iterator[Found]:
        """`index`: which one of what it returns is asked for."""
        function = self._function_of(call, scope)
        if function is None or function.agrees:
            return
        for value in self._first(one.at(index) for one in returned(function)):
            link = Link(
                "returns",
                ast.unparse(call.func),
                self._shown(value.value, function.text),
                function.text.path,
                value.line,
                own=False,
                filters=self._filter(value.value, function) if is_filtered(value.value) else "",
            )
            inner = () if isinstance(value.value, ast.Name | ast.Constant) else (link,)
            yield from self._fallback(value.value, function, (*links, link))
            yield from self._follow(value.value, function, (*links, *inner), own=False)
            for outer in value.under:
                yield from self._follow(outer, function, (*links, *inner), own=False)

    def _named(self, node: ast.expr, scope: Function, links: Links, *, own: bool) -> Iterator[Found]:
        name = ast.unparse(node)
        if isinstance(node, ast.Name) and (name in scope.shared_at(node) or name in scope.modules):
            return  # ranks have agreed on it
        if isinstance(node, ast.Name) and name in scope.parameters and name not in scope.bindings:
            if own:
                position = str(scope.parameters.index(name))
                yield (
                    "parameter",
                    (*links, Link("parameter", name, position, scope.text.path, scope.line, own=True)),
                )
            return
        bindings = self._bindings(node, scope)
        several = sum(one.kind == "value" for one in bindings) > 1
        for one in self._first(bindings):
            if one.shared:
                continue
            here = own and one.function is scope
            link = self._link(one.kind, name, one, own=here, several=several)
            inside = one.function or scope
            guard = guard_of(one.statement, one.function) if one.kind == "changes" else None
            own_guard = guard is not None and _names(guard.head, name)
            if self._program.is_handler(one.function):
                yield "signal", (*links, link)
            if guard is not None and not own_guard:
                yield "counted", (*links, link)
            if one.kind == "value" and one.value is not None:
                yield from self._fallback(one.value, one.function, (*links, link))
            if (
                isinstance(one.value, ast.Call)
                and one.index is not None
                and self._function_of(one.value, inside)
            ):
                yield from self._called(one.value, inside, (*links, link), one.index)
            elif one.value is not None:
                yield from self._follow(one.value, inside, (*links, link), own=here)
            for outer in loops_around(one) if guard is not None and not own_guard else ():
                yield from self._follow(outer, inside, (*links, link), own=here)

    def _fallback(self, value: ast.expr, function: Function | None, links: Links) -> Iterator[Found]:
        handler = caught_by(value, function)
        if handler is not None and function is not None:
            head = shown(function.text.head_of(handler))
            yield "fallback", (*links[:-1], replace(links[-1], guard=head, guard_line=handler.lineno))

    def _link(self, kind: str, name: str, one: Binding, *, own: bool, several: bool = False) -> Link:
        """`several`: other statements give it a value as well, so that this one need not be that of every rank."""
        guarded = kind == "changes" or (kind == "value" and several)
        guard = guard_of(one.statement, one.function) if guarded else None
        text = one.function.text if one.function is not None else self._own
        value = one.statement if kind in ("changes", "given") else one.value
        return Link(
            kind,
            name,
            self._shown(value, text),
            text.path,
            one.line,
            own=own,
            guard=self._shown(guard.head, text) if guard is not None else "",
            guard_line=guard.line if guard is not None else 0,
            passes=guard is not None and guard.passes,
            filters=self._filter(one.value, one.function) if one.value is not None else "",
        )

    def _filter(self, value: ast.expr, scope: Function | None) -> str:
        """What it is, or the only thing that the function called returns, where that leaves something out."""
        if is_filtered(value) and scope is not None:
            return self._shown(value, scope.text)
        function = (
            self._function_of(value, scope) if isinstance(value, ast.Call) and scope is not None else None
        )
        values = returned(function) if function is not None else []
        if function is None or len(values) != 1 or not is_filtered(values[0].value):
            return ""
        return self._shown(values[0].value, function.text)

    def _first(self, found: Iterable) -> Iterator:  # type: ignore[type-arg]
        """Each once in a slice."""
        for one in itertools.islice(found, _MOST_BINDINGS):
            if id(one.key) not in self._seen:
                self._seen.add(id(one.key))
                yield one

    def _bindings(self, node: ast.expr, scope: Function) -> list[Binding]:
        if isinstance(node, ast.Name):
            own = _in_place(scope.bindings.get(node.id, []))
            if not own:
                return _in_place(scope.text.module.bindings.get(node.id, []))
            elsewhere = [
                one for one in own if one.function is not scope
            ]  # by a function that says it is the module's
            near = scope.text.nearest([one for one in own if one.function is scope], self._head)
            return [*elsewhere, *(near if scope.text is self._own else own)]
        if isinstance(node, ast.Attribute):
            owner = self._class_of(node.value, scope)
            if owner or not self._is_of_module(node.value, scope):
                return _in_place(self._program.attributes(node.attr, owner))
        return []

    def _function_of(self, call: ast.Call, scope: Function) -> Function | None:
        function = None
        if isinstance(call.func, ast.Name):
            function = self._program.function(call.func.id)
        elif isinstance(call.func, ast.Attribute):
            owner = self._class_of(call.func.value, scope)
            if owner or not callee_name(call).startswith("__"):
                function = self._program.of_class(call.func.attr, owner)
            if function is None and isinstance(call.func.value, ast.Name):
                function = self._program.of_module(
                    scope.text.imported.get(call.func.value.id, ""), call.func.attr
                )
        return function

    def _is_of_module(self, node: ast.expr, scope: Function) -> bool:
        root = node
        while isinstance(root, ast.Attribute):
            root = root.value
        return isinstance(root, ast.Name) and root.id in scope.text.imported

    def _class_of(self, node: ast.expr, scope: Function) -> str:
        """Of what this gives an attribute of; empty where that is not known."""
        if isinstance(node, ast.Name) and node.id in ("self", "cls"):
            return scope.owner
        for one in self._bindings(node, scope)[:_MOST_BINDINGS] if not isinstance(node, ast.Call) else ():
            made = one.value.body if isinstance(one.value, ast.IfExp) else one.value
            if isinstance(made, ast.Call) and self._program.is_class(name := callee_name(made)):
                return name
        return ""

    def _shown(self, node: ast.AST | None, text: Text) -> str:
        return shown(text.segment(node)) if node is not None else ""


def _names(head: ast.expr, name: str) -> bool:
    attribute = name.rpartition(".")[2]  # of an object that is called otherwise there
    return any(
        (one.id if isinstance(one, ast.Name) else one.attr) == attribute
        for one in ast.walk(head)
        if isinstance(one, ast.Name | ast.Attribute)
    )


def _in_place(found: list[Binding]) -> list[Binding]:
    """A method such as `add` changes what is a container; of another object it may be anything."""
    if any(is_container(one.value) for one in found if one.kind == "value"):
        return found
    return [one for one in found if one.kind != "changes" or isinstance(one.statement, ast.AugAssign)]


def _atoms(
    node: ast.AST, known: Callable[[ast.Call], Function | None], bound: frozenset[str] = frozenset()
) -> Iterator[ast.expr]:
    """Calls, names and attributes, from the outside; what a comprehension goes over, not the names that it makes. Of what a
    `known` method is called of only the method tells, and what one gives in which ranks agree is the same on all."""
    if isinstance(node, ast.Lambda) or agrees(node):
        return
    if isinstance(node, ast.Name):
        if node.id not in bound and node.id not in ("self", "cls"):
            yield node
        return
    if isinstance(node, ast.Attribute):
        yield node
        yield from _atoms(node.value, known, bound)
        return
    if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
        made = {
            one.id for each in node.generators for one in ast.walk(each.target) if isinstance(one, ast.Name)
        }
        bound |= made
    if isinstance(node, ast.Call):
        function = known(node)
        if function is not None and function.agrees:
            return
        yield node
        if isinstance(node.func, ast.Attribute) and function is None:
            yield from _atoms(node.func.value, known, bound)
        parts: Iterable[ast.AST] = (*node.args, *node.keywords)
    else:
        parts = ast.iter_child_nodes(node)
    for part in parts:
        yield from _atoms(part, known, bound)
