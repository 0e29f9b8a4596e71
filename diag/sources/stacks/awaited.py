"""The statement that made what a line waits for: `request = dist.isend(...)` of `request.wait()`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from diag.sources.stacks.statements import FUNCTIONS, Line, end_of

_AWAITED = re.compile(r"([A-Za-z_][\w.]*)(?:\[[^\[\]]*\])?\.wait\(")
_MOST_NAMES = 4  # one taken from another, as in `for one in requests`


def made_by(lines: Sequence[Line], heads: Sequence[int], text: str) -> str:
    """The statement that made what this one waits for, followed from name to name."""
    found = _AWAITED.search(text)
    if found is None:
        return ""
    name, first, last = found[1], 0, len(lines)
    if "." not in name and heads and lines[heads[-1]].word in FUNCTIONS:
        first, last = heads[-1] + 1, end_of(lines, heads[-1])
    texts = [text, *(one.text for one in lines[first:last])]
    for _ in range(_MOST_NAMES):
        escaped = re.escape(name)
        taken = re.compile(
            rf"\bfor (?:[\w, ]+, )?{escaped} in (?:\w+\()?([A-Za-z_][\w.]*)\)?(?=[:\])}}]|$| if )"
        )
        given = re.compile(
            rf"(?:^|, ){escaped}(?: ?:[^=]+)?(?:, [\w., ]+)? \+?= (.+)|^{escaped}\.(?:append|extend)\((.+)\)"
        )
        outer = next((match[1] for one in texts if (match := taken.search(one))), None)
        if outer is not None:
            name = outer
            continue
        values = [(one, match) for one in texts if (match := given.search(one))]
        # the last one that is no empty list, which only begins it
        return next(
            (one for one, match in reversed(values) if (match[1] or match[2]) not in ("[]", "None")), ""
        )
    return ""
