"""Numbers for people: one rule of each kind, the same in Python and on the page, and nobody else has one."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.text.units import (
    format_bytes,
    format_count,
    format_number,
    format_path,
    format_quantity,
    format_ranges,
    format_ranks,
    format_ratio,
    format_seconds,
    format_time,
)

_HERE = Path(__file__)
_REPOSITORY = _HERE.parents[2]
_EXAMPLES: dict[str, list[tuple[Any, str]]] = json.loads(_HERE.with_name("units.json").read_text())
_FORMATTERS: dict[str, Callable[[Any], str]] = {
    "format_bytes": format_bytes,
    "format_seconds": format_seconds,
    "format_ratio": format_ratio,
    "format_number": format_number,
    "format_watts": lambda value: format_quantity(value, "W"),
    "format_ranks": format_ranks,
    "format_count": lambda value: format_count(value, "rank"),
    "format_time": lambda value: format_time(*value),
}
_PAGE = """
import * as page from "%s";
const formatters = {
  format_bytes: page.bytes, format_seconds: page.seconds, format_ratio: page.percent, format_number: page.number,
  format_watts: (value) => page.withUnit(value, "watts"), format_ranks: page.rankWords,
  format_count: (value) => page.plural(value, "rank"), format_time: ([at, now]) => page.clock(at, now),
};
const asked = JSON.parse(await new Response(process.stdin).text());
const told = {};
for (const [name, values] of Object.entries(asked)) told[name] = values.map((value) => formatters[name](value));
console.log(JSON.stringify(told));
"""
_SIZES = st.one_of(st.integers(0, 1 << 62), st.floats(0, 1e18, allow_subnormal=False))
_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "PiB": 1 << 50}
_SECONDS = {"µs": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600, "d": 86400}


def on_the_page(asked: dict[str, list[Any]]) -> dict[str, list[str]]:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    script = _PAGE % (_REPOSITORY / "diag/outputs/web/format.js").as_uri()
    command = [node, "--input-type=module", "-e", script]
    done = subprocess.run(
        command,
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"TZ": "UTC"},
    )
    told: dict[str, list[str]] = json.loads(done.stdout)
    return told


@pytest.mark.parametrize(
    ("name", "value", "text"), [(name, *one) for name, examples in _EXAMPLES.items() for one in examples]
)
def test_example_of_the_table(name: str, value: Any, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()

    assert _FORMATTERS[name](value) == text


def test_page_follows_the_same_table() -> None:
    told = on_the_page({name: [value for value, _ in examples] for name, examples in _EXAMPLES.items()})

    assert told == {name: [text for _, text in examples] for name, examples in _EXAMPLES.items()}


def test_page_and_terminal_round_alike_between_the_examples() -> None:
    # Every unit and both sides of every border, halves included, which JavaScript and Python round differently
    steps = [n / 8 for n in range(1, 100)] + [1.005, 1023.4, 1023.5, 999.5, 9.95, 99.95, 59.5, 9.96]
    asked: dict[str, list[Any]] = {
        "format_bytes": [step * 1024**power for step in steps for power in range(6)],
        "format_seconds": [
            step * scale for step in steps for scale in (1e-6, 1e-3, 0.1, 1, 7, 60, 3600, 86400)
        ],
        "format_ratio": [step / 100 for step in steps],
        "format_number": [step * 10.0**power for step in steps for power in range(-6, 12)],
    }

    assert on_the_page(asked) == {
        name: [_FORMATTERS[name](value) for value in values] for name, values in asked.items()
    }


# --- what holds for every number


def read_back(text: str, units: dict[str, float]) -> float:
    words = text.split()
    return sum(float(number) * units[unit] for number, unit in zip(words[::2], words[1::2], strict=True))


@given(size=_SIZES)
def test_size_reads_back_within_its_rounding_and_its_unit_is_the_right_one(size: float) -> None:
    text = format_bytes(size)

    number, unit = text.split()
    assert abs(read_back(text, _BYTES) - size) <= size * 0.005 + (1e-12 if size < 1 else 0)
    assert float(number) < 1024 or unit == "PiB"
    assert len(number.replace(".", "").lstrip("0")) <= 4 or unit == "PiB"


@given(size=st.floats(1e-9, 1e18))
def test_something_is_never_nothing(size: float) -> None:
    assert not format_bytes(size).startswith("0 ")
    assert not format_seconds(size).startswith("0 ")
    assert not format_ratio(size).startswith("0 ")


@given(one=_SIZES, other=_SIZES)
def test_larger_number_is_not_written_smaller(one: float, other: float) -> None:
    less, more = sorted((one, other))

    assert read_back(format_bytes(less), _BYTES) <= read_back(format_bytes(more), _BYTES)
    assert read_back(format_seconds(less), _SECONDS) <= read_back(format_seconds(more), _SECONDS) * (1 + 1e-9)


@given(seconds=st.floats(1e-6, 1e9))
def test_duration_reads_back_within_its_rounding(seconds: float) -> None:
    text = format_seconds(seconds)

    rounding = 0.05 * seconds if seconds < 10 else 0.5 if seconds < 600 else 60 if seconds < 86400 else 3600
    assert abs(read_back(text, _SECONDS) - seconds) <= rounding + 1e-9
    assert not re.search(r"\b60 (?:s|min)\b|\b24 h\b|\b1000 (?:µs|ms)\b", text)


@given(ratio=st.floats(0, 1))
def test_only_all_of_it_is_a_hundred_percent(ratio: float) -> None:
    assert (format_ratio(ratio) == "100 %") == (ratio == 1)
    assert (format_ratio(ratio) == "0 %") == (ratio == 0)


@given(ranks=st.sets(st.integers(0, 300), min_size=1, max_size=12))
def test_ranks_read_back(ranks: set[int]) -> None:
    spans = [part.partition("-") for part in format_ranges(ranks, longest=1000).split(", ")]

    assert {rank for low, _, high in spans for rank in range(int(low), int(high or low) + 1)} == ranks


@given(path=st.text(st.characters(codec="utf-8"), max_size=80))
def test_path_of_own_code_is_never_cut(path: str) -> None:
    kept = format_path(path)

    assert kept == path or (
        path.endswith(kept) and re.search(r"/(?:site|dist)-packages/|/lib(?:64)?/python3", path)
    )


# --- nobody else formats a number for people

# Where a unit stands beside a number and it is no text for people.
_ALLOWED = {
    "diag/text/units.py": "the one place",
    "diag_job": "the bundled job prints what trainers print",
    "diag/launch/inject": "runs in the job's own interpreters, without diag",
    "diag/preflight/estimate/machine.py": 'the hint "80GiB" is the value of a flag',
    "diag/preflight/estimate/trust.py": "what others published, in their units",
    "diag/launch/launchers/hostlist.py": "a format specification, no days",
}
_UNIT = re.compile(
    r"\s?(?:[KMGTP]i?B|kB)(?:/s)?(?![\w=-])|\s(?:B/s|[KMG]bit|[µmn]?s|min|h|d|W|[MG]Hz|°?C|%)(?![\w=-])|%"
)
_PERCENT = re.compile(r"\{[^{}]*:[^{}]*%\}")
_VALUE = re.compile(r"%(?:\.\d+)?[dfg]|\{\d*(?::[^{}]*)?\}")


def units_beside_numbers(tree: ast.AST) -> Iterator[ast.AST]:
    """F-strings, `.format` and `%` in which a unit follows a value; and every `:.0%`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            for value, following in zip(node.values, [*node.values[1:], ast.Constant("")], strict=True):
                if not isinstance(value, ast.FormattedValue):
                    continue
                follows = isinstance(following, ast.Constant) and _UNIT.match(str(following.value))
                made_of = ast.unparse(value.value)
                if (follows and "format_" not in made_of) or (
                    value.format_spec and "%" in ast.unparse(value.format_spec)
                ):
                    yield node
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _PERCENT.search(node.value):
            yield node
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            values = _VALUE.finditer(node.value)
            yield from (node for value in values if _UNIT.match(node.value, value.end()))


def test_nothing_else_puts_a_unit_to_a_number() -> None:
    found = []
    for path in sorted((_REPOSITORY / "diag").rglob("*.py")):
        name = path.relative_to(_REPOSITORY).as_posix()
        if any(name == allowed or name.startswith(allowed + "/") for allowed in _ALLOWED):
            continue
        found += [f"{name}:{node.lineno}" for node in units_beside_numbers(ast.parse(path.read_text()))]  # type: ignore[attr-defined]

    assert not found, "format it by diag/text/units.py"


@pytest.mark.parametrize(
    "code",
    [
        'f"{size / 2**20:.0f} MiB"', 'f"{seconds:.1f} s"', 'f"{share:.0%}"', 'f"{size >> 30}GiB"',
        '"%d MiB" % size', '"{:.1f} GB".format(size)',
        'f"{100 * share:.0f} %"', 'f"{minutes} min {left} s"', 'f"{rate / 1e9} GB/s"', 'f"{hertz / 1e6:.0f} MHz"',
    ],
)  # fmt: skip
def test_check_finds_a_unit(code: str) -> None:
    assert list(units_beside_numbers(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    [
        'f"{format_bytes(size)} free"',
        'f"{who} steps"',
        'f"rank {rank} says"',
        'f"--shm-size={size}g"',
        '"100 MiB"',
    ],
)
def test_check_is_silent_where_there_is_none(code: str) -> None:
    assert not list(units_beside_numbers(ast.parse(code)))
