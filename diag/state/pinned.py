"""Whether CUDA's `out of memory` was about the host: pinned memory that it could not lock. It says the same
of both."""

from __future__ import annotations

from collections import deque

from diag.model.observations import CudaErrorRaised, LogLine

__all__ = ["PinnedErrors"]

# In a traceback above `CUDA error: out of memory`: memory of the host was asked for, pinned (torch 2.x,
# megatron-core 0.12-0.18).
_PINS = (
    "pin_memory",
    "pin memory",
    "cudaHostAlloc",
    "cudaHostRegister",
    "preload_tensors",
    "CachingHostAllocator",
)
_TRACEBACK_LINES = 60
_MOST_RANKS = 4096


class PinnedErrors:
    """Told lines and CUDA's errors; `ranks` maps who could not have pinned memory to the time and the line."""

    def __init__(self) -> None:
        self.ranks: dict[int | None, tuple[float, str]] = {}
        self._lines: dict[int | None, deque[str]] = {}

    def read_line(self, line: LogLine) -> None:
        if not line.bar and (line.rank in self._lines or len(self._lines) < _MOST_RANKS):
            self._lines.setdefault(line.rank, deque(maxlen=_TRACEBACK_LINES)).append(line.text[:200])

    def take(self, at: float, error: CudaErrorRaised) -> bool:
        """Whether it was one; remembers the first of each rank."""
        if error.error != "out of memory":
            return False
        above = self._lines.get(error.rank, ())
        pinned = error.host_memory or any(
            word in line for line in above if _is_of_traceback(line) for word in _PINS
        )
        if pinned and len(self.ranks) < _MOST_RANKS:
            self.ranks.setdefault(error.rank, (at, error.text))
        return pinned

    def survived(self, before: float) -> None:
        for rank in [rank for rank, (told, _) in self.ranks.items() if told < before]:
            del self.ranks[rank]

    def start_over(self) -> None:
        self.ranks.clear()
        self._lines.clear()


def _is_of_traceback(line: str) -> bool:
    """Its lines are indented; a list of arguments with dataloader_pin_memory is none of them."""
    return (line.partition("]: ")[2] if line.startswith("[rank") else line).startswith("  ")
