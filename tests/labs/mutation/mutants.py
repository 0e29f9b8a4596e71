"""All mutants of a file, and a sample of them that a seed fixes."""

from __future__ import annotations

import ast
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

from tests.labs.mutation.operators import operators
from tests.labs.mutation.swap import place_of


@dataclass(frozen=True, slots=True)
class Mutant:
    path: str
    line: int
    column: int
    operator: str
    occurrence: int

    @property
    def name(self) -> str:
        return f"{self.path}:{self.line}:{self.column} {self.operator}#{self.occurrence}"

    def source(self, root: Path) -> str:
        code = mutate_code((root / self.path).read_text(), operators()[self.operator], self.occurrence)
        assert code is not None, self.name
        return code


def places(root: Path, path: str) -> list[list[Mutant]]:
    """The mutants of a file by place and kind of change: `<` has many others, and is one place."""
    tree = get_ast((root / path).read_text())
    found: dict[tuple[str, object], list[Mutant]] = defaultdict(list)
    for name, operator in operators().items():
        occurrence = 0
        for node in ast_nodes(tree):
            for start, end in operator.mutation_positions(node):
                key = (name.partition("_")[0], (start, end))
                found[key].append(Mutant(path, *start, name, occurrence))
                occurrence += 1
    return [found[key] for key in sorted(found, key=str)]


def sample(root: Path, weights: Mapping[str, float], size: int, seed: int) -> list[Mutant]:
    """Of each file by its places and weight, at least one; at each place one mutant. A change to one file leaves
    the draw in all others as it was, as far as its share stays."""
    all_places = {path: places(root, path) for path in weights}
    whole = sum(len(found) * weights[path] for path, found in all_places.items())
    drawn: list[Mutant] = []
    for path, found in all_places.items():
        chance = random.Random(f"{seed}:{path}")
        wanted = max(1, round(size * len(found) * weights[path] / whole))
        chance.shuffle(found)
        drawn += islice(_that_change(root, path, found, chance), wanted)
    return drawn


def _that_change(root: Path, path: str, found: list[list[Mutant]], chance: random.Random) -> Iterator[Mutant]:
    """Annotations are not evaluated, and some changes are none: these say nothing about tests."""
    source = (root / path).read_text()
    same = _meaning(source)
    for variants in found:
        if place_of(source, variants[0].line) is None:
            continue
        for mutant in chance.sample(variants, len(variants)):
            meaning = _meaning(mutant.source(root))
            if meaning not in (same, None):
                yield mutant
                break


class _WithoutAnnotations(ast.NodeTransformer):
    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)


def _meaning(source: str) -> str | None:
    """None where it is no Python."""
    try:
        return ast.dump(_WithoutAnnotations().visit(ast.parse(source)))
    except SyntaxError:
        return None
