"""Which room of `diag/` may import which. Every import counts: lazy ones, and those for types only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# A room, and the rooms it may import. They form a DAG: each stands below all that name it.
ROOMS: dict[str, tuple[str, ...]] = {
    "diag": (),  # __version__
    "text": (),
    "model": (),
    "knowledge": ("model", "text"),
    "launch": ("text",),
    "settings": ("launch", "text"),
    "state": ("knowledge", "model", "text"),
    "sources": ("knowledge", "launch", "model", "state", "text"),
    "detectors": ("diag", "knowledge", "model", "state", "text"),
    "engine": ("detectors", "knowledge", "launch", "model", "sources", "state", "text"),
    "preflight": ("knowledge", "launch", "model", "sources", "text"),
    "outputs": ("detectors", "diag", "engine", "knowledge", "launch", "model", "settings", "state", "text"),
    "agent": (
        *("detectors", "diag", "engine", "knowledge", "launch", "model", "outputs", "preflight", "settings"),
        *("sources", "state", "text"),
    ),
    "cli": (
        *("agent", "detectors", "diag", "engine", "knowledge", "launch", "model", "outputs", "preflight"),
        "settings",
        *("sources", "text"),
    ),
    "__main__": ("cli", "launch"),
}


@cache
def modules() -> dict[str, Path]:
    """Dotted name to file, of all of diag."""
    found = {}
    for path in sorted((ROOT / "diag").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(name: str, path: Path) -> Iterator[str]:
    """Every module of this repository that a module imports, wherever in its text."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                whole = f"{module}.{alias.name}"
                yield whole if whole in modules() else module


@cache
def edges() -> dict[str, set[str]]:
    return {
        name: {other for other in imported(name, path) if other in modules()} - {name}
        for name, path in modules().items()
    }


def room(name: str) -> str:
    return name.split(".")[1] if "." in name else "diag"


def test_diag_has_at_most_16_entries() -> None:
    entries = [path.name for path in (ROOT / "diag").iterdir() if path.name not in ("__pycache__", "_data")]

    assert len(entries) <= 16, sorted(entries)


def test_rooms_are_those_of_the_table() -> None:
    assert {room(name) for name in modules()} == set(ROOMS)


@pytest.mark.parametrize("name", sorted(ROOMS))
def test_a_room_imports_only_rooms_of_its_row(name: str) -> None:
    used: dict[str, list[str]] = {}
    for module, others in edges().items():
        for other in others if room(module) == name else ():
            used.setdefault(room(other), []).append(f"{module} -> {other}")
    used.pop(name, None)

    strange = {other: pairs for other, pairs in used.items() if other not in ROOMS[name]}
    assert not strange, f"{name} may not import {sorted(strange)}: {strange}"
    assert set(ROOMS[name]) == set(used), f"not needed any more: {set(ROOMS[name]) - set(used)}"


def test_rooms_form_a_dag() -> None:
    left = {name: set(others) for name, others in ROOMS.items()}
    while free := [name for name, others in left.items() if not others & set(left)]:
        for name in free:
            del left[name]

    assert not left


def test_no_module_imports_itself_by_way_of_others() -> None:
    left = {name: set(others) for name, others in edges().items()}
    while free := [name for name, others in left.items() if not others & set(left)]:
        for name in free:
            del left[name]

    assert not left, f"import cycles among {sorted(left)}"


@pytest.mark.parametrize("name", sorted(modules()))
def test_diag_imports_neither_its_tests_nor_the_bundled_job(name: str) -> None:
    assert not {other.split(".")[0] for other in imported(name, modules()[name])} & {"tests", "diag_job"}
