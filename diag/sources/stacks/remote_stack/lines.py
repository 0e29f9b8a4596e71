"""The line of an instruction, from a code object's location table (`co_linetable`, Python 3.11 and later).

The format is that of CPython's Objects/locations.md; columns are skipped.
"""

from __future__ import annotations

_NO_LOCATION, _LONG, _NO_COLUMNS, _FIRST_ONE_LINE = 15, 14, 13, 10


def line_of(table: bytes, first_line: int, instruction: int) -> int:
    """`instruction` counts code units of two bytes. The function's first line where the table does not say.

    Never raises and never walks further than the table: it comes from another process's memory.
    """
    if instruction < 0:
        return first_line
    line, at, done, size = first_line, 0, 0, len(table)
    while at < size:
        head = table[at]
        kind = head >> 3 & 15
        done += (head & 7) + 1
        if kind in (_LONG, _NO_COLUMNS):
            delta, shift, at = 0, 0, at + 1
            while at < size:
                byte = table[at]
                at += 1
                delta |= (byte & 63) << shift
                shift += 6
                if not byte & 64 or shift > 36:
                    break
            line += -(delta >> 1) if delta & 1 else delta >> 1
        elif _FIRST_ONE_LINE <= kind < _NO_COLUMNS:
            line += kind - _FIRST_ONE_LINE
            at += 3
        else:
            at += 1 if kind == _NO_LOCATION else 2
        if done > instruction:
            return first_line if kind == _NO_LOCATION else line
        # an entry begins with the high bit set: what was not read is columns
        while at < size and table[at] < 128:
            at += 1
    return first_line
