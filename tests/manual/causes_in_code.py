"""Which words the detectors can put into `cause`, read out of their code and their tables.

The causes of a finding that the code makes by `finding("id", ...)` are those of its row in a findings.yaml. Elsewhere
followed are: `cause=...`, what is assigned to a variable of that name, arguments for a parameter or field of
that name, what functions return that are called after causes, and tables of (cause, ...) from which one is
unpacked. Words made at run time (xid_79) have an N.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from diag.detectors.findings import table
from diag.detectors.hang.endless_waits import NOBODY
from diag.detectors.hang.reasons import _LOOKED_AT

__all__ = ["causes_by_file", "findings_of"]

DETECTORS = Path(__file__).parents[2] / "diag" / "detectors"
MAKERS = ("Finding", "finding", "line_finding")
_WORD = re.compile(r"[a-z][a-z0-9]*(?:_[a-zA-Z0-9]+)*")

# Names within the code for what is then said otherwise, or by another detector.
NOT_SAID = {
    "checkpoint/disk.py": {"write_failed"},  # reported as no_space, or by checkpoint-write-error
}


@cache
def findings_of(name: str) -> frozenset[str]:
    """The findings that a file below diag/detectors may give causes to: those that it makes itself; of a helper
    those of the files that import it."""
    own = _made_in(_trees()[name])
    package = name.rpartition("/")[0]
    if package == "hang":  # one detector of many files
        return frozenset({"hang", "held-up"})
    if own:
        return frozenset(own)
    module = "diag.detectors." + name.removesuffix(".py").replace("/", ".")
    users = [other for other, tree in _trees().items() if other != name and module in _imported(tree)]
    return frozenset(
        finding for user in users if not user.endswith("__init__.py") for finding in findings_of(user)
    )


def _made_in(tree: ast.Module) -> set[str]:
    """Names of its detectors, and ids of the Finding(...) that it makes."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any(
            isinstance(part, ast.FunctionDef) and part.name == "check" for part in node.body
        ):
            found |= {
                part.value.value
                for part in node.body
                if isinstance(part, ast.Assign)
                and getattr(part.targets[0], "id", "") == "name"
                and isinstance(part.value, ast.Constant)
            }  # fmt: skip
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in MAKERS:
            value = next(
                (one.value for one in node.keywords if one.arg == "id"), node.args[0] if node.args else None
            )
            ids = (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,)
            found |= {one.value for one in ids if isinstance(one, ast.Constant)}
    return found


def _imported(tree: ast.Module) -> set[str]:
    return {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for name in (node.module, *(f"{node.module}.{one.name}" for one in node.names))
    }


@cache
def _trees() -> dict[str, ast.Module]:
    return {
        path.relative_to(DETECTORS).as_posix(): ast.parse(path.read_text())
        for path in sorted(DETECTORS.rglob("*.py"))
    }


@cache
def causes_by_file() -> dict[str, set[str]]:
    """File below diag/detectors -> causes; files without any are left out."""
    trees, found = _trees(), {}
    takers = {name: _takers(tree) for name, tree in trees.items()}
    for name, tree in trees.items():
        package = name.rpartition("/")[0]
        beside: dict[str, tuple[int, bool]] = {}
        for file in trees:
            if file.rpartition("/")[0] == package or "/" not in file:
                beside |= takers[file]
        found[name] = set(_causes(tree, _OF_RECORDS | beside | takers[name]))
        if name == "hang/kernel_causes.py":
            found[name] |= {
                word for node in ast.walk(tree) if isinstance(node, ast.Dict) for word in _words(node)
            }
        if name == "hang/reasons.py":
            found[name] |= {*_LOOKED_AT}
        if name == "hang/endless_waits.py":
            found[name] |= set(NOBODY.values())
        for finding in _made_in(tree):
            found[name] |= set(table().get(finding, {}).get("causes", {}))
    return {name: said for name, causes in found.items() if (said := causes - NOT_SAID.get(name, set()))}


# its field is called `name`, `word` or `kind`: it is the cause
_OF_RECORDS = {"Cause": (0, False), "Reason": (0, False)}


def _takers(tree: ast.Module) -> dict[str, tuple[int, bool]]:
    """Functions and classes by name: the position of their parameter or field `cause`, and whether `self`
    comes before it."""
    found: dict[str, tuple[int, bool]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            fields = [item.target for item in node.body if isinstance(item, ast.AnnAssign)]
            names = [field.id for field in fields if isinstance(field, ast.Name)]
            if "cause" in names:
                found[node.name] = (names.index("cause"), False)
        elif isinstance(node, ast.FunctionDef):
            names = [argument.arg for argument in node.args.args]
            if "cause" in names:
                found[node.name] = (names.index("cause") - (names[0] == "self"), names[0] == "self")
    return found


def _causes(tree: ast.Module, takers: dict[str, tuple[int, bool]]) -> Iterator[str]:
    tables = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "cause":
            yield from _words(node.value)
        elif isinstance(node, ast.Call):
            taker = takers.get(getattr(node.func, "id", getattr(node.func, "attr", "")))
            if taker is not None and len(node.args) > taker[0]:
                yield from _words(node.args[taker[0]])
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _assigned(target, node.value, tables)
        elif isinstance(node, ast.For):
            yield from _assigned(node.target, node.iter, tables, rows_only=True)
            if isinstance(node.iter, ast.Call) and getattr(node.iter.func, "id", "") in functions:
                for value in _yielded(functions[node.iter.func.id]):  # type: ignore[attr-defined]
                    yield from _assigned(node.target, value, tables)
        elif isinstance(node, ast.FunctionDef) and _returns_causes(node):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Return) and inner.value is not None:
                    yield from _words(inner.value)
                    if isinstance(inner.value, ast.Subscript) and isinstance(inner.value.value, ast.Name):
                        yield from _words(tables.get(inner.value.value.id, inner.value))


def _yielded(function: ast.FunctionDef) -> Iterator[ast.expr]:
    for node in ast.walk(function):
        if isinstance(node, ast.Yield) and node.value is not None:
            yield node.value


def _returns_causes(node: ast.FunctionDef) -> bool:
    """By its name, or by a table of which the cause is one: `return ("remap_failed", Severity.WARNING, ...)`."""
    return "cause" in node.name or node.name in (
        "_how",
        "_judge",
        "_starved_of",
        "waits_for",
        "_what_is_wrong",
        "_flapping",
    )


def _assigned(
    target: ast.expr, value: ast.expr, tables: dict[str, ast.expr], *, rows_only: bool = False
) -> Iterator[str]:
    if isinstance(target, ast.Name) and target.id == "cause":
        yield from _words(value)
    elif isinstance(target, ast.Tuple):
        names = [getattr(item, "id", "") for item in target.elts]
        if "cause" not in names:
            return
        at = names.index("cause")
        if isinstance(value, ast.Tuple) and len(value.elts) == len(names) and not rows_only:
            yield from _words(value.elts[at])
        rows = [item for item in ast.walk(value) if isinstance(item, ast.Tuple) and item is not value]
        for name in ast.walk(value):
            if isinstance(name, ast.Name) and name.id in tables:
                rows += [item for item in ast.walk(tables[name.id]) if isinstance(item, ast.Tuple)]
        for row in rows:
            if len(row.elts) == len(names):
                yield from _words(row.elts[at])


def _words(value: ast.expr) -> Iterator[str]:
    if isinstance(value, ast.Constant) and isinstance(value.value, str) and _WORD.fullmatch(value.value):
        yield value.value
    elif isinstance(value, ast.JoinedStr):  # xid_{number}
        word = "".join(str(part.value) if isinstance(part, ast.Constant) else "N" for part in value.values)
        if _WORD.fullmatch(word):
            yield word
    elif isinstance(value, ast.IfExp):
        yield from _words(value.body)
        yield from _words(value.orelse)
    elif isinstance(value, ast.BoolOp):
        for part in value.values:
            yield from _words(part)
    elif isinstance(value, ast.Tuple) and value.elts:
        # (cause, what it means, ...), (what happened, cause) or (cause, child)
        for part in value.elts:
            yield from _words(part)
    elif isinstance(value, ast.Subscript):
        yield from _words(value.value)
    elif isinstance(value, ast.Dict):
        for part in value.values:
            yield from _words(part)
    elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        if value.func.attr == "get":
            yield from _words(value.func.value)
        for part in value.args[1:] if value.func.attr in ("get", "fromkeys") else ():
            yield from _words(part)
