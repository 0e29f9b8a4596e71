"""One actor among the nodes of a job. Of a job of one node there is nobody else; of several nodes each order takes a number
that no other gets, see the module's functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from diag.text.errors import DiagError


@dataclass(frozen=True, slots=True)
class Fence:
    """`of_several`: whether the job has other nodes, as far as is known by now."""

    of_several: Callable[[], bool]

    @property
    def needed(self) -> bool:
        return self.of_several()

    def closed(self) -> str:
        """Why no order can be given; empty where it can."""
        return "the job has other nodes, and nothing is shared by which one of them could act for all" if self.needed else ""

    def take(self, order: Mapping[str, Any]) -> int:
        """The order's number, once no other node can give one of that number. Raises DiagError."""
        raise DiagError(self.closed())
