"""Tables that lie as YAML beside the code that reads them, and sentences with places for values in such tables."""

from __future__ import annotations

import functools
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

from diag.text.compiled import compiled, name_of
from diag.text.units import format_bytes, format_count, format_magnitude, format_ratio

_UNITS: dict[str, Callable[[float], str]] = {
    "bytes": format_bytes,
    "magnitude": format_magnitude,
    "ratio": format_ratio,
}


@functools.cache
def load_table(path: Path) -> dict[str, Any]:
    """The table of a file that comes with diag. Read once a process; not to be changed."""
    source = path.read_bytes()
    found: dict[str, Any] | None = compiled(name_of(path), [source])
    if found is None:
        import yaml

        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's, where PyYAML was built with it
        found = yaml.load(source, loader)
    assert found is not None
    return found


class _Formatter(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        kind, _, noun = format_spec.partition(" ")
        if kind == "count":
            return format_count(value, noun)
        return _UNITS[kind](value) if kind in _UNITS else str(super().format_field(value, format_spec))


def fill(template: str, **values: object) -> str:
    """`str.format`, whose format of a number may also be bytes, magnitude, ratio, or count and a noun.

    >>> fill("{ranks:count rank} x {each:bytes}, {share:ratio} of {all:magnitude}", ranks=2, each=1 << 20, share=0.5, all=7e9)
    '2 ranks x 1 MiB, 50 % of 7B'
    """
    return _Formatter().vformat(template, (), values)


def places(template: str) -> set[str]:
    """
    >>> sorted(places("{ranks:count rank} of {job}"))
    ['job', 'ranks']
    """
    return {name for _, name, _, _ in _Formatter().parse(template) if name}
