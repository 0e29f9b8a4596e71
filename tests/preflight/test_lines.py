"""What doctor can say is in diag/preflight/lines/*.yaml: every line that code asks for is there with the values that
it needs, and no line is there that nothing asks for."""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from diag.preflight.line import line, table

PREFLIGHT = Path(__file__).parents[2] / "diag/preflight"
FILES = sorted(path.stem for path in (PREFLIGHT / "lines").glob("*.yaml"))
STATUSES = {"ok", "note", "problem", "critical", "not checked"}


def entries() -> dict[str, dict[str, str]]:
    return {
        f"{file}.{name}": {"what": table(file).get("what", ""), **entry}
        for file in FILES
        for name, entry in table(file).get("lines", {}).items()
    }


def asked() -> Iterator[tuple[str, re.Pattern[str], set[str] | None]]:
    """Where, the keys, and the names of the values (None: not to be seen) of each call of line()."""
    for path in PREFLIGHT.rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            kept: dict[str, list[ast.expr]] = {}
            for node in ast.walk(function):
                target = node.targets[0] if isinstance(node, ast.Assign) else None
                if isinstance(node, ast.Assign) and isinstance(target, ast.Name):
                    kept.setdefault(target.id, []).append(node.value)
                for each in target.elts if isinstance(target, ast.Tuple) else ():
                    kept.setdefault(getattr(each, "id", ""), []).append(ast.Name("of a tuple"))
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "line":
                    names = {word.arg for word in call.keywords if word.arg is not None}
                    seen = None if any(word.arg is None for word in call.keywords) else names
                    yield f"{path.name}:{call.lineno}", re.compile(texts(call.args[0], kept)), seen


def texts(node: ast.expr, kept: dict[str, list[ast.expr]]) -> str:
    """A pattern of what an expression can be."""
    if isinstance(node, ast.Constant):
        return re.escape(str(node.value))
    if isinstance(node, ast.JoinedStr):
        return "".join(texts(part, kept) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return texts(node.value, kept)
    if isinstance(node, ast.IfExp):
        return f"(?:{texts(node.body, kept)}|{texts(node.orelse, kept)})"
    if isinstance(node, ast.Name) and node.id in kept:
        rest = {name: values for name, values in kept.items() if name != node.id}
        return f"(?:{'|'.join(texts(value, rest) for value in kept[node.id])})"
    return ".*"


def wanted(entry: dict[str, str]) -> set[str]:
    fields = (field for text in entry.values() for _, field, _, _ in string.Formatter().parse(text))
    return {re.split(r"[.\[]", field)[0] for field in fields if field}


def test_every_line_that_is_asked_for_is_there_with_its_values() -> None:
    for where, key, names in asked():
        found = [name for name in entries() if key.fullmatch(name)]
        assert found, f"{where}: no line {key.pattern}"
        for name in found if names is not None else ():
            assert wanted(entries()[name]) <= names, f"{where}: {name}"


def test_every_line_that_is_there_is_asked_for() -> None:
    keys = [key for _, key, _ in asked()]

    assert [name for name in entries() if not any(key.fullmatch(name) for key in keys)] == []


@pytest.mark.parametrize("key", sorted(entries()))
def test_line_has_one_status_and_a_problem_has_an_id_and_a_remedy(key: str) -> None:
    entry = entries()[key]
    known = {"what", "do", "id", "adds"}

    (status,) = set(entry) & STATUSES
    assert set(entry) - STATUSES <= known
    assert status not in ("problem", "critical") or ("do" in entry and line_id(key))
    assert status != "ok" or "id" not in entry


def line_id(key: str) -> str:
    values = dict.fromkeys(wanted(entries()[key]), Anything())
    return line(key, **values).id


class Anything(float):
    """A value of any name, with any attribute, in any format."""

    def __getattr__(self, name: str) -> Anything:
        return self

    def __getitem__(self, name: object) -> Anything:
        return self

    def __format__(self, how: str) -> str:
        return "?"


def test_values_with_braces_are_shown_as_they_are() -> None:
    assert line("launch.computed", flag="${A:-{x}}").said == "${A:-{x}}: only the shell that starts it knows"


def test_clashes_have_a_source_and_specifiers_that_can_be_read() -> None:
    for clash in table("versions")["clashes"]:
        assert set(clash) <= {"when", "of", "message", "source", "install", "otherwise"}
        assert (
            clash["source"]
            and clash["message"]
            and (clash.get("install") or clash.get("otherwise"))
            and set(clash["of"]) <= set(clash["when"])
        )
        for specifier in clash["when"].values():
            assert specifier == "absent" or SpecifierSet(specifier)
