"""Conditions of the program's text with the values that were read of their variables: what they come to, and why a loop goes
on. Nothing of the program is run: a few operators of plain values are known, and of all else nothing is said."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

_LONGEST = 200  # characters of a value
# of the module time; on Linux perf_counter reads CLOCK_MONOTONIC as well
_CLOCKS = {"time": "time", "monotonic": "monotonic", "perf_counter": "monotonic"}
_LARGEST = 10**15  # of a number: products of such stay small
# "<list of 64 list>", "[1, 2, 3, ... 314 items]": as the reader of variables writes a container
COUNT = re.compile(r"(?:^<\w+ of |\.\.\. )(?P<count>\d{1,15})(?: \w+>| items[\])}])$")
_PLAIN = (int, float, str, bool, type(None))


@dataclass(frozen=True, slots=True)
class Outcome:
    """`text`: the part of the condition that decided, with values in place of names: "0 + 1300 <= 1024"."""

    holds: bool
    text: str


class _Unknown(Exception):
    """A value that was not read, or an operation that may be anything."""


class _Items:
    """A container of which only the number of its items is known, which is not 0: it is true, and compares with nothing."""

    def __eq__(self, other: object) -> bool:
        raise TypeError

    __hash__ = None  # type: ignore[assignment]


def outcome(head: str, values: Mapping[str, str]) -> Outcome | None:
    """Of the head of an `if`, `elif` or `while`. None where a value that decides is not known.

    >>> outcome("if used + n <= self.budget:", {"used": "0", "n": "1300", "self.budget": "1024"})
    Outcome(holds=False, text='0 + 1300 <= 1024')
    >>> outcome("while docs and room >= 64:", {"docs": "<list of 64 list>", "room": "63"})
    Outcome(holds=False, text='63 >= 64')
    >>> outcome("if len(doc) > room: continue", {"doc": "[1, 2, ... 314 items]", "room": "67"})
    Outcome(holds=True, text='314 > 67')
    >>> outcome("if fits(doc):", {"doc": "3"})
    """
    condition = parsed_condition(head)
    if condition is None:
        return None
    try:
        value, text = _value(condition, values)
    except _Unknown:
        return None
    return Outcome(bool(value), text)


def compares_exactly(head: str) -> bool:
    """Of a `while`: it goes on as long as two things are not equal.

    >>> [compares_exactly(one) for one in ("while store.add(key, 0) != n:", "while a < b:", "while not a == b:")]
    [True, False, True]
    """
    condition = parsed_condition(head)
    turned = isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not)
    inner = condition.operand if isinstance(condition, ast.UnaryOp) and turned else condition
    wanted = ast.Eq if turned else ast.NotEq
    return isinstance(inner, ast.Compare) and len(inner.ops) == 1 and isinstance(inner.ops[0], wanted)


def sides(head: str, values: Mapping[str, str]) -> tuple[float, float] | None:
    """What a `while` compares, where it is two numbers that are known.

    >>> sides("while left != 0:", {"left": "-9"}), sides("while not i == len(rows):", {"i": "7", "rows": "[1, 2]"})
    ((-9, 0), (7, 2))
    >>> sides("while left != 0 and room:", {"left": "-9"}), sides("while left != end:", {"left": "3"})
    (None, None)
    """
    inner = parsed_condition(head)
    while isinstance(inner, ast.UnaryOp) and isinstance(inner.op, ast.Not):
        inner = inner.operand
    if not isinstance(inner, ast.Compare) or len(inner.comparators) != 1:
        return None
    try:
        left, right = (_value(node, values)[0] for node in (inner.left, inner.comparators[0]))
    except _Unknown:
        return None
    return (left, right) if all(type(one) in (int, float) for one in (left, right)) else None


@dataclass(frozen=True, slots=True)
class Deadline:
    """`clock`: time or monotonic. `at`: what it says when the loop is left. `latest`: something else beside the clock is
    asked for, and may end it sooner."""

    clock: str
    at: float
    latest: bool = False


def deadline(head: str, values: Mapping[str, str]) -> Deadline | None:
    """Of the head of a `while`, or of the condition of a way out of a loop, that compares a clock: None for any other, and
    where a value was not read.

    >>> deadline("while time.monotonic() < end:", {"end": "81.5"})
    Deadline(clock='monotonic', at=81.5, latest=False)
    >>> deadline("if done or time.time() - began > self.limit: break", {"began": "1000.0", "self.limit": "60"})
    Deadline(clock='time', at=1060.0, latest=True)
    >>> deadline("while time.time() > end:", {"end": "81.5"})
    """
    condition = parsed_condition(head)
    ends = head.startswith("while")
    parts = [condition] if condition is not None else []
    if isinstance(condition, ast.BoolOp) and isinstance(condition.op, ast.And if ends else ast.Or):
        parts = condition.values
    for part in parts:
        if isinstance(part, ast.Compare) and len(part.ops) == 1:
            sides = part.left, part.comparators[0]
            later = isinstance(part.ops[0], ast.Gt | ast.GtE)
            if not later and not isinstance(part.ops[0], ast.Lt | ast.LtE):
                continue
            # the clock is on the smaller side as long as a `while` goes on, on the larger when a way out is taken
            clock, limit = sides if later is not ends else sides[::-1]
            if (found := _clock_until(clock, limit, values)) is not None:
                return replace(found, latest=len(parts) > 1)
    return None


def _clock_until(node: ast.expr, limit: ast.expr, values: Mapping[str, str]) -> Deadline | None:
    began = node.right if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) else None
    read = node.left if isinstance(node, ast.BinOp) and began is not None else node
    called = ast.unparse(read.func) if isinstance(read, ast.Call) and not read.args else ""
    clock = _CLOCKS.get(called.removeprefix("time."))
    if clock is None or (called == "time"):  # a bare name that is mostly the module
        return None
    try:
        seconds = [_value(one, values)[0] for one in (limit, began) if one is not None]
    except _Unknown:
        return None
    if not all(isinstance(one, int | float) for one in seconds):
        return None
    return Deadline(clock, float(sum(seconds)))


def parsed_condition(head: str) -> ast.expr | None:
    """Of the head of an `if`, `elif` or `while`, or of such a statement."""
    text = re.sub(r"^elif\b", "if", head)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = ast.parse(f"{text} pass" if text.endswith(":") else text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    first = found[0] if len(found) == 1 else None
    return first.test if isinstance(first, ast.If | ast.While) else None


def _value(node: ast.expr, values: Mapping[str, str]) -> tuple[Any, str]:
    """And its text. Raises _Unknown."""
    if isinstance(node, ast.BoolOp):
        return _of_several(node, values)
    if isinstance(node, ast.UnaryOp):
        value, text = _value(node.operand, values)
        if isinstance(node.op, ast.Not):
            return not value, f"not {text}"
        if isinstance(node.op, ast.USub) and isinstance(value, int | float):
            return -value, f"-{text}"
    elif isinstance(node, ast.Compare):
        return _compared(node, values)
    elif isinstance(node, ast.BinOp):
        return _counted(node, values)
    elif isinstance(node, ast.Constant) and isinstance(node.value, _PLAIN):
        return node.value, ast.unparse(node)
    elif isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
        return _read(values.get(ast.unparse(node)))
    elif isinstance(node, ast.Call) and ast.unparse(node.func) == "len" and len(node.args) == 1:
        count = _length(values.get(ast.unparse(node.args[0]), ""))
        return count, str(count)
    raise _Unknown


def _of_several(node: ast.BoolOp, values: Mapping[str, str]) -> tuple[Any, str]:
    """One that decides alone counts also where others are not known; each is reached only if those before it were."""
    stops = isinstance(node.op, ast.Or)
    texts: list[str] = []
    unknown = False
    for one in node.values:
        try:
            value, text = _value(one, values)
        except _Unknown:
            unknown = True
            continue
        if bool(value) is stops:
            return value, text
        texts.append(text)
    if unknown:
        raise _Unknown
    return value, f" {'or' if stops else 'and'} ".join(texts)


def _compared(node: ast.Compare, values: Mapping[str, str]) -> tuple[bool, str]:
    left, text = _value(node.left, values)
    holds = True
    for operator, right_node in zip(node.ops, node.comparators, strict=True):
        right, shown = _value(right_node, values)
        compare = _COMPARE.get(type(operator))
        if compare is None:
            raise _Unknown
        sign, function = compare
        try:
            holds = holds and bool(function(left, right))
        except TypeError:
            raise _Unknown from None
        text += f" {sign} {shown}"
        left = right
    return holds, text


def _counted(node: ast.BinOp, values: Mapping[str, str]) -> tuple[Any, str]:
    (left, one), (right, two) = _value(node.left, values), _value(node.right, values)
    known = _COUNT_WITH.get(type(node.op))
    numbers = all(isinstance(each, int | float) and abs(each) <= _LARGEST for each in (left, right))
    if known is None or not numbers:
        raise _Unknown
    sign, function = known
    try:
        value = function(left, right)
    except (ArithmeticError, ValueError):
        raise _Unknown from None
    inner = (
        f"({text})" if isinstance(part, ast.BinOp) else text
        for part, text in ((node.left, one), (node.right, two))
    )
    return value, f" {sign} ".join(inner)


def _read(text: str | None) -> tuple[Any, str]:
    """A value as the reader of variables writes it."""
    if text is None or len(text) > _LONGEST:
        raise _Unknown
    if (found := COUNT.search(text)) is not None:
        count = int(found["count"])
        return (_Items() if count else []), f"{count} items"
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise _Unknown from None
    if not isinstance(value, (*_PLAIN, list, tuple, dict, set)):
        raise _Unknown
    return value, text


def _length(text: str) -> int:
    if (found := COUNT.search(text)) is not None:
        return int(found["count"])
    value, _ = _read(text)
    if not isinstance(value, str | list | tuple | dict | set):
        raise _Unknown
    return len(value)


_COMPARE: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Eq: ("==", lambda left, right: left == right),
    ast.NotEq: ("!=", lambda left, right: left != right),
    ast.Lt: ("<", lambda left, right: left < right),
    ast.LtE: ("<=", lambda left, right: left <= right),
    ast.Gt: (">", lambda left, right: left > right),
    ast.GtE: (">=", lambda left, right: left >= right),
    ast.Is: ("is", lambda left, right: left is right if right is None or left is None else left == right),
    ast.IsNot: (
        "is not",
        lambda left, right: left is not right if right is None or left is None else left != right,
    ),
}
_COUNT_WITH: dict[type[ast.operator], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("+", lambda left, right: left + right),
    ast.Sub: ("-", lambda left, right: left - right),
    ast.Mult: ("*", lambda left, right: left * right),
    ast.Div: ("/", lambda left, right: left / right),
    ast.FloorDiv: ("//", lambda left, right: left // right),
    ast.Mod: ("%", lambda left, right: left % right),
}
