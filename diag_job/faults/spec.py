"""The faults by name, and reading `NAME[:key=value,...]`. No fault is done here.

faults.json has a row for each: `summary`; `keys` that it understands beside `rank` (1) and `step` (0), with their
defaults (`all_keys`: these alone; 0 seconds are for ever); and what is true of it (see truth.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class FaultError(ValueError):
    """A fault that was asked for and cannot be given: unknown, misspelt, or impossible on this machine."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One fault that can be asked for; `keys` are what it understands, with their defaults."""

    name: str
    summary: str
    keys: Mapping[str, float]


def _keys(row: Mapping[str, Any]) -> Mapping[str, float]:
    keys: Mapping[str, float] = row.get("all_keys") or {"rank": 1, "step": 0, **row.get("keys", {})}
    return keys


# JSON, which a job's interpreter of any version reads in no time.
TABLE: Mapping[str, Mapping[str, Any]] = json.loads(Path(__file__).with_name("faults.json").read_text())
KINDS = tuple(Kind(name, row["summary"], _keys(row)) for name, row in TABLE.items())
_BY_NAME = {kind.name: kind for kind in KINDS}
_WHOLE_NUMBERS = ("rank", "step", "limit", "spare", "seed")


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault as asked for."""

    name: str
    options: Mapping[str, float]

    @property
    def rank(self) -> int:
        return int(self.options["rank"])

    @property
    def step(self) -> int:
        """Training steps are counted from 0, so step 0 is the first iteration."""
        return int(self.options.get("step", 0))

    def option(self, key: str) -> float:
        return self.options[key]

    def __str__(self) -> str:
        """The same fault as text again, every key spelt out."""
        return f"{self.name}:" + ",".join(f"{key}={value:g}" for key, value in self.options.items())


def parse(text: str) -> Fault:
    """Read one fault.

    >>> str(parse("data-hang:rank=0,step=3"))
    'data-hang:rank=0,step=3'
    """
    name, _, rest = text.strip().partition(":")
    kind = _BY_NAME.get(name)
    if kind is None:
        raise FaultError(f"there is no fault {name!r}\n\nhint: one of {', '.join(_BY_NAME)}")
    options = dict(kind.keys)
    for item in filter(None, rest.split(",")):
        key, equals, value = item.partition("=")
        if not equals or key not in kind.keys:
            raise FaultError(
                f"fault {name} does not know {item!r}\n\n"
                f"hint: {name}[:key=value,...] with {', '.join(kind.keys)}; faults are {', '.join(_BY_NAME)}"
            )
        try:
            options[key] = int(value) if key in _WHOLE_NUMBERS else float(value)
        except ValueError:
            raise FaultError(
                f"fault {name}: {key}={value} is not a number\n\nhint: {name}:{key}={kind.keys[key]:g}"
            ) from None
        if not 0 <= options[key] < float("inf"):
            raise FaultError(
                f"fault {name}: {key}={value} is out of range\n\nhint: {name}:{key}={kind.keys[key]:g}"
            )
    return Fault(name, options)
