"""What the readers of lines share: the words of a line that show a phase, and the numbers of a dict as Python prints it:
also nan and inf, which are no literals, and of a torn line what is whole."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

from diag.text.tables import load_table

# ms-swift 4.6.0 (swift/megatron/callbacks/print.py rounds with round(), which keeps nan), transformers 4.57
# and 5 (source: the numbers are strings there), torch 2.x tensors that were never turned into numbers:
#   {'loss': nan, 'grad_norm': inf, ...}     {'loss': '4.36', ...}     {'loss': tensor(nan, device='cuda:0'), ...}
_NUMBER = r"[-+]?(?:\d{1,40}(?:\.\d{0,40})?(?:[eE][-+]?\d{1,4})?|nan|inf)"
_PAIR = re.compile(rf"'([^'\\]{{1,100}})': (?:tensor\(|np\.float(?:32|64)\()?('?)({_NUMBER})\2(?=[,}})])")
_MOST = 400
# A dict of plain numbers alone, as nearly all are: read by this twice as fast as by Python's own parser.
_PLAIN = re.compile(
    r"\{'[^'\\]{1,100}': -?(?:0|[1-9]\d{0,39})(?:\.\d{0,40})?(?:e[-+]?\d{1,4})?"
    r"(?:, '[^'\\]{1,100}': -?(?:0|[1-9]\d{0,39})(?:\.\d{0,40})?(?:e[-+]?\d{1,4})?)*\}"
)
_PLAIN_PAIR = re.compile(r"'([^'\\]+)': ([^,}]+)")


@functools.cache
def phases(program: str) -> tuple[tuple[str, str, str], ...]:
    """Of phases.yaml: words of a line, what else it must hold, and the phase that it shows."""
    rows = load_table(Path(__file__).with_name("phases.yaml"))[program]
    return tuple((row["line"], row.get("also", ""), row["phase"]) for row in rows)


def phase_of(text: str, program: str) -> str | None:
    for word, also, phase in phases(program):
        if word in text and also in text:
            return phase
    return None


def numbers_of(text: str) -> tuple[tuple[str, float], ...]:
    """Name and number of each pair that has one; a line that is no dict gives the pairs that it shows.

    >>> numbers_of("{'loss': nan, 'grad_norm': 1.5, 'iteration': '3/12', 'lr': '1e-05'}")
    (('loss', nan), ('grad_norm', 1.5), ('lr', 1e-05))
    """
    if _PLAIN.fullmatch(text):
        return tuple({match[1]: float(match[2]) for match in _PLAIN_PAIR.finditer(text)}.items())
    try:
        data = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return tuple(
            (match[1], float(match[3])) for match, _ in zip(_PAIR.finditer(text), range(_MOST), strict=False)
        )
    if not isinstance(data, dict):
        return ()
    found: list[tuple[str, float]] = []
    for key, value in data.items():
        if isinstance(value, (int, float, str)):
            try:
                found.append((str(key), float(value)))
            except (ValueError, OverflowError):
                continue
    return tuple(found)
