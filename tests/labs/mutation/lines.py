"""Which lines a test runs, and which lines belong to a place in the source."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

Lines = dict[str, frozenset[int]]  # by file


@contextmanager
def traced(files: set[str]) -> Iterator[dict[str, set[int]]]:
    """Fills what it gives with the lines of these files that are run meanwhile, in this thread."""
    seen: dict[str, set[int]] = {}

    def trace(frame: FrameType, event: str, argument: object) -> object:
        if frame.f_code.co_filename not in files:
            return None
        lines = seen.setdefault(frame.f_code.co_filename, set())
        lines.add(frame.f_lineno)

        def local(frame: FrameType, event: str, argument: object) -> object:
            lines.add(frame.f_lineno)
            return local

        return local

    sys.settrace(trace)
    try:
        yield seen
    finally:
        sys.settrace(None)


def statement_lines(source: str, line: int) -> range | None:
    """Lines of the innermost statement with this line, of one with a body those of its head; None outside of
    functions: that runs once, when the file is imported."""
    found: range | None = None
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef) or not function.lineno <= line <= _end(function):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.stmt) and node is not function:
                body = getattr(node, "body", None)
                lines = range(node.lineno, max(body[0].lineno - 1 if body else _end(node), node.lineno) + 1)
                if line in lines and (found is None or len(lines) < len(found)):
                    found = lines
    return found


def _end(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno
