"""Programs as text, whose lines are named by a comment at their end."""

from __future__ import annotations


def line_of(text: str, mark: str) -> int:
    """The number of the line that ends in `# mark`."""
    return next(at for at, line in enumerate(text.splitlines(), 1) if line.endswith(f"# {mark}"))
