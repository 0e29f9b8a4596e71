"""What a mutant may change: cosmic-ray's operators, and a few that it lacks or has too mild."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from cosmic_ray.operators.operator import Operator
from cosmic_ray.operators.provider import OperatorProvider
from parso.python.tree import Keyword, Name, Number
from parso.tree import NodeOrLeaf

Position = tuple[tuple[int, int], tuple[int, int]]

# Those that need arguments, and one that changes a bound of 600 s by one second: nobody would want a test for it.
_LEFT_OUT = ("VariableReplacer", "VariableInserter", "NumberReplacer")
_OPPOSITES = {"any": "all", "all": "any", "max": "min", "min": "max"}


class _Own(Operator):
    @classmethod
    def examples(cls) -> tuple[()]:
        return ()


class DoubleOrHalve(_Own):
    """Numbers: twice, and half; 0 becomes 1, and 1 becomes 0 or 2."""

    def mutation_positions(self, node: NodeOrLeaf) -> Iterator[Position]:
        if isinstance(node, Number):
            yield from [(node.start_pos, node.end_pos)] * 2

    def mutate(self, node: NodeOrLeaf, index: int) -> NodeOrLeaf:
        value = float(node.value) if "." in node.value or "e" in node.value else int(node.value, 0)
        half = value / 2 if isinstance(value, float) else value // 2
        changed = value * 2 or 1 if index == 0 else half
        return Number(repr(changed), node.start_pos, node.prefix)


class Opposite(_Own):
    """any and all, max and min: one for the other."""

    def mutation_positions(self, node: NodeOrLeaf) -> Iterator[Position]:
        if isinstance(node, Name) and node.value in _OPPOSITES:
            following = node.get_next_sibling()
            if following is not None and following.type == "trailer":
                yield node.start_pos, node.end_pos

    def mutate(self, node: NodeOrLeaf, index: int) -> NodeOrLeaf:
        return Name(_OPPOSITES[node.value], node.start_pos, node.prefix)


class ReturnNone(_Own):
    """What a function returns."""

    def mutation_positions(self, node: NodeOrLeaf) -> Iterator[Position]:
        if node.type == "return_stmt":
            yield node.start_pos, node.end_pos

    def mutate(self, node: NodeOrLeaf, index: int) -> NodeOrLeaf:
        node.children[1:] = [Keyword("None", node.start_pos, " ")]
        return node


class NoIfInComprehension(_Own):
    """The condition of a comprehension, the other way round: cosmic-ray knows those of statements."""

    def mutation_positions(self, node: NodeOrLeaf) -> Iterator[Position]:
        if node.type == "comp_if":
            yield node.start_pos, node.end_pos

    def mutate(self, node: NodeOrLeaf, index: int) -> NodeOrLeaf:
        condition = node.children[1]
        condition.get_first_leaf().prefix = ""
        node.children[1] = Name(f"not ({condition.get_code()})", condition.start_pos, " ")
        return node


@cache
def operators() -> dict[str, Operator]:
    theirs = OperatorProvider()
    found = {name: theirs[name]() for name in theirs if name not in _LEFT_OUT}
    return found | {own.__name__: own() for own in (DoubleOrHalve, Opposite, ReturnNone, NoIfInComprehension)}
