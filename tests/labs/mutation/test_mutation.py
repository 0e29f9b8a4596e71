"""A mutant is put where it was drawn, and nowhere else. Without cosmic-ray, which only `make mutants` needs."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.labs.mutation.lines import statement_lines, traced
from tests.labs.mutation.swap import place_of, put_in

SOURCE = """\
LIMIT = 10.0


class Guard:
    most = 3

    @property
    def late(self) -> bool:
        return (
            self.most > 2
            and LIMIT > 5
        )


def judge(value: float, least: float = 1.0) -> bool:
    if value > LIMIT:
        return True
    return value < least
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "a_mutated_module.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("a_mutated_module")
    monkeypatch.delitem(importlib.sys.modules, "a_mutated_module")


@pytest.mark.parametrize(
    ("line", "place", "lines"),
    [
        (1, (), None),
        (5, None, None),
        (7, None, None),
        (11, ("Guard", "late"), range(9, 13)),
        (15, None, None),
        (16, ("judge",), range(16, 17)),
        (18, ("judge",), range(18, 19)),
    ],
)
def test_place_of_a_line(line: int, place: tuple[str, ...] | None, lines: range | None) -> None:
    assert place_of(SOURCE, line) == place
    assert statement_lines(SOURCE, line) == lines


def test_function_is_changed_for_all_that_have_imported_it(module: ModuleType) -> None:
    judge = module.judge
    assert not judge(10.0)

    put_in("a_mutated_module", SOURCE.replace("value > LIMIT", "value >= LIMIT"), ("judge",))

    assert judge(10.0)


def test_property_and_value_of_the_module_are_changed(module: ModuleType) -> None:
    put_in("a_mutated_module", SOURCE.replace("self.most > 2", "self.most > 3"), ("Guard", "late"))
    assert not module.Guard().late

    put_in("a_mutated_module", SOURCE.replace("10.0", "20.0"), ())
    assert module.LIMIT == 20.0 and not module.judge(15.0)


def test_lines_that_run_are_seen(module: ModuleType) -> None:
    with traced({str(module.__file__)}) as seen:
        module.judge(20.0)

    assert seen == {str(module.__file__): {15, 16, 17}}
