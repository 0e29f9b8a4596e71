"""Statements of the program's files of which a rank may wait for one that another rank has to make: that sets a key of a
store, makes a group, begins a message (also where nothing is kept of it), or ends a wait for a queue, lock, event or future;
and calls that the interpreter makes when it frees an object. And the key that a statement waits for."""

from __future__ import annotations

import ast
import functools
import itertools
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from diag.model.observations import Block, Leave, Statement
from diag.sources.stacks.meanings import Meanings
from diag.sources.stacks.statements import FUNCTIONS, Line, end_of, heads_of, logical_lines, shown

_MOST_OF_KIND, _MOST_KEY = 12, 120
_CALLERS = 2  # functions outwards, each called at one line only
# torch.distributed.Store, 1.8-2.13
_WAITS_FOR_KEY = re.compile(r"\.(?:wait|get|check|multi_get)\(")
_SETTERS = ("set", "add", "compare_set", "append", "multi_set")
_SETS = re.compile(rf"\.(?:{'|'.join(_SETTERS)})\([^()]")
_UNSETS = re.compile(r"\.(?:set|compare_set)\([^()]+,|\.delete_key\(|\.add\([^()]*, ?-")
_MAKES_GROUP = re.compile(
    r"\b(?:new_group|new_subgroups(?:_by_enumeration)?|split_group|init_device_mesh|DeviceMesh)\("
)
_LETS_GO = re.compile(r"(?:[\w.]+\.)?(?:isend|irecv|batch_isend_irecv)\(")
# torch.distributed, 1.8-2.13; by their own names only those that mean nothing else
_COLLECTIVE = re.compile(
    r"(?<![\w.])(?:(?:\w+\.)*(?:dist|distributed|c10d|distributed_c10d)\.)?(?P<own>monitored_barrier|barrier|"
    r"all_(?:reduce|gather|to_all)\w*|broadcast_object_list|reduce_scatter\w*)\(|"
    r"(?<![\w.])(?:\w+\.)*(?:dist|distributed)\.(?P<of_dist>broadcast|reduce|gather\w*|scatter\w*)\("
)
# Of queue, threading, multiprocessing, asyncio, concurrent.futures: what ends the wait of somebody else. A `get` with a key is
# a dict's.
_ENDS = re.compile(
    r"(?<![\w.])(?:\w+\.)*(?P<of>\w+)\.(?:(?P<call>put|put_nowait|task_done|release|notify|notify_all|set_result|set_exception)\(|"
    r"(?P<takes>get|get_nowait)\((?=\)|timeout|block|True|False)|(?P<sets>set)\(\))"
)
_MESSAGE = re.compile(
    r"(?<![\w.])(?:\w+\.)*(?:dist|distributed|c10d)\.(?P<call>i?send|i?recv|send_object_list|recv_object_list)\("
)
_DESTRUCTOR = "def __del__("
_OWN_METHOD = re.compile(r"(?<![\w.])self\.(\w+)\(")
_NAME = re.compile(r"[A-Za-z_][\w.]*")
_PLACE = re.compile(r"\{[^{}]*\}")
_OF_PERCENT = re.compile(r"%[-#0 +]*\d*(?:\.\d+)?[a-z]")

# The blocks around a line of these lines, and the ways past it.
Around = Callable[[Sequence[Line], int], tuple[tuple[Block, ...], tuple[Leave, ...]]]
Resolve = Callable[[str], str]


@functools.lru_cache(maxsize=32)  # each rank's stack asks for the same files
def statements_of(path: str, text: str, around: Around) -> tuple[Statement, ...]:
    """Of one file; of each kind the first ones."""
    lines = logical_lines(text)
    names = Meanings(path, lines, lambda _: ())
    found: dict[str, list[Statement]] = {}
    for at, head in itertools.islice(_in_destructors(lines), _MOST_OF_KIND):
        made = _COLLECTIVE.search(lines[at].text)
        key = (made["own"] or made["of_dist"]) if made is not None else ""
        place = replace(_statement(path, lines, at, around), kind="in_destructor", key=key)
        called = ("__del__",) if place.function != "__del__" else ()
        found.setdefault("in_destructor", []).append(
            replace(place, called_in=called, called_at=(lines[head].first,) if called else ())
        )
    for at, one in enumerate(lines):
        kind, key = _kind_of(one, names, at)
        of_kind = found.setdefault(kind, [])
        if kind and len(of_kind) < _MOST_OF_KIND:
            of_kind.append(replace(_statement(path, lines, at, around), kind=kind, key=key))
    return tuple(one for of_kind in found.values() for one in of_kind)


def _kind_of(one: Line, names: Meanings, at: int) -> tuple[str, str]:
    if one.word in (*FUNCTIONS, "from", "import"):
        return "", ""
    if _MAKES_GROUP.search(one.text):
        return "makes_group", ""
    if _LETS_GO.match(one.text):
        return "lets_go", ""
    if _SETS.search(one.text):
        key = next(_keys(one.text, _SETTERS, _resolver(names, at), least=2), "")
        if key:
            return "sets", key
    if _UNSETS.search(one.text):
        return "unsets", ""
    if (found := _MESSAGE.search(one.text)) is not None:
        return "messages", "send" if "send" in found["call"] else "receive"
    found = _ENDS.search(one.text)
    if found is None:
        return "", ""
    return "ends_wait", f"{found['of']}.{found['call'] or found['takes'] or found['sets']}"


def _in_destructors(lines: Sequence[Line]) -> Iterator[tuple[int, int]]:
    """Calls of a process group in `__del__`, and in methods of the class that it calls; and the line of `__del__` that leads
    there, its head for the former."""
    for head, one in enumerate(lines):
        if not one.text.startswith(_DESTRUCTOR):
            continue
        block = range(head + 1, end_of(lines, head))
        yield from ((at, head) for at in block if _COLLECTIVE.search(lines[at].text))
        owner = next(heads_of(lines, head), None)
        if owner is None:
            continue
        methods = {
            name[1]: at for at in range(owner + 1, end_of(lines, owner))
            if lines[at].depth == one.depth and (name := re.match(r"def (\w+)\(", lines[at].text))
        }  # fmt: skip
        for at in block:
            for called in _OWN_METHOD.findall(lines[at].text):
                inner = methods.get(called, head)
                within = range(inner + 1, end_of(lines, inner)) if inner != head else ()
                yield from ((there, at) for there in within if _COLLECTIVE.search(lines[there].text))


def _statement(path: str, lines: Sequence[Line], at: int, around: Around) -> Statement:
    blocks, leaves = around(lines, at)
    before = [leave for leave in leaves if leave.line < lines[at].first]
    function = name = _function_of(lines, at)
    called_in: list[str] = []
    called_at: list[int] = []
    for _ in range(_CALLERS):  # where only one line calls it, what leads there leads here
        called = re.compile(rf"(?<![\w.])(?:self\.|cls\.)?{re.escape(name)}\(")
        callers = [
            number
            for number, one in enumerate(lines)
            if name and f"{name}(" in one.text and one.word not in FUNCTIONS and called.search(one.text)
        ]
        if len(callers) != 1:
            break
        outer, ways = around(lines, callers[0])
        blocks += outer
        before += [leave for leave in ways if leave.line < lines[callers[0]].first]
        name = _function_of(lines, callers[0])
        called_in.append(name)
        called_at.append(lines[callers[0]].first)
    text = shown(lines[at].text)
    return Statement(
        "",
        path,
        lines[at].first,
        function,
        text,
        "",
        tuple(called_in),
        tuple(called_at),
        blocks,
        tuple(before),
    )


def _function_of(lines: Sequence[Line], at: int) -> str:
    head = next((head for head in heads_of(lines, at) if lines[head].word == "def"), None)
    found = re.search(r"\bdef (\w+)", lines[head].text) if head is not None else None
    return found[1] if found is not None else ""


# --- keys


def awaited_key(texts: Iterable[str], names: Meanings, at: int) -> str:
    """The key that one of these statements waits for, with {what} in place of values: `epoch{epoch}`. Empty where none
    does, or nothing of its key is known."""
    for text in texts:
        if _WAITS_FOR_KEY.search(text):
            for key in _keys(text, ("wait", "get", "check", "multi_get"), _resolver(names, at)):
                return key
    return ""


def _resolver(names: Meanings, at: int) -> Resolve:
    def resolve(name: str) -> str:
        known = next((one for one in names.of((name,), at) if one.name == name), None)
        return known.text if known is not None and known.kind == "value" else names.given(name, at)

    return resolve


def _keys(text: str, methods: Sequence[str], resolve: Resolve, least: int = 1) -> Iterator[str]:
    """`least`: so many arguments has such a call; a list's `append` has fewer than a store's."""
    for node in ast.walk(_parsed(text)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if node.func.attr in methods and len(node.args) + len(node.keywords) >= least:
            given = node.args[:1] or [one.value for one in node.keywords if one.arg in ("key", "keys")]
            key = _template(given[0], resolve) if given else ""
            if _PLACE.sub("", key):
                yield key[:_MOST_KEY]


def _parsed(text: str) -> ast.AST:
    """Nothing where it is no statement by itself, or cut off."""
    if text.endswith(":"):
        text = f"{re.sub(r'^elif', 'if', text)} pass"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def _template(node: ast.AST, resolve: Resolve, depth: int = 3) -> str:
    """Of an expression: its own text, and {what} for what it is put together from."""
    if isinstance(node, ast.Constant):
        value = node.value
        return (
            value
            if isinstance(value, str)
            else value.decode("latin-1")
            if isinstance(value, bytes)
            else str(value)
        )
    if isinstance(node, ast.JoinedStr):
        parts = [one.value if isinstance(one, ast.FormattedValue) else one for one in node.values]
        return "".join(_template(one, lambda _: "", 0) for one in parts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and depth:
        return _template(node.left, resolve, depth - 1) + _template(node.right, resolve, depth - 1)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and isinstance(node.left, ast.Constant):
        given = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
        values = iter([f"{{{ast.unparse(one)}}}" for one in given])
        return _OF_PERCENT.sub(lambda _: next(values, "{}"), str(node.left.value))
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Constant)
    ):
        if node.func.attr == "format":
            values = iter([f"{{{ast.unparse(one)}}}" for one in node.args])
            return _PLACE.sub(lambda _: next(values, "{}"), str(node.func.value.value))
        return _template(node.func.value, resolve, 0)  # .encode()
    if isinstance(node, ast.IfExp):
        return _either(_template(node.body, resolve, depth), _template(node.orelse, resolve, depth))
    if isinstance(node, ast.List | ast.Tuple) and node.elts:
        return _template(node.elts[0], resolve, depth)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str" and node.args:
        return _template(node.args[0], lambda _: "", 0)
    name = ast.unparse(node)
    if depth and _NAME.fullmatch(name) and (known := resolve(name)):
        inner = next((one.value for one in ast.walk(_parsed(known)) if isinstance(one, ast.Expr)), None)
        if isinstance(inner, ast.Constant | ast.JoinedStr | ast.BinOp | ast.Call | ast.List | ast.IfExp):
            found = _template(inner, resolve, depth - 1)
            if _PLACE.sub("", found):
                return found
    return f"{{{name}}}"


def _either(one: str, other: str) -> str:
    """What two keys have in common at their beginning, and {...} for the rest.

    >>> _either("mix/{stage}", "mix/{stage}/{tag}"), _either("a/{n}", "a/{m}"), _either("a", "a"), _either("a", "b")
    ('mix/{stage}{...}', 'a/{...}', 'a', '{...}')
    """
    if one == other:
        return one
    alike = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    common = "".join(letter for letter, _ in alike)
    if common.count("{") > common.count("}"):
        common = common[: common.rindex("{")]
    return f"{common}{{...}}"
