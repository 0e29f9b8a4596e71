"""How a suite of tests says what it asks of the machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Part = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Parts:
    """`first` come one by one, then those `together`, then those `alone`.

    Jobs under `diag run` go side by side, for one waits while another starts; but not those that change
    something for all.
    """

    first: dict[str, Part]
    together: dict[str, Part] = field(default_factory=dict)
    alone: dict[str, Part] = field(default_factory=dict)
