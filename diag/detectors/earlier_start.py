"""A file that did not parse, in a log that holds a later start too: there it did, and something else failed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from diag.detectors.last_words import exceptions
from diag.knowledge.tracebacks import CHAIN

# CPython 2.7-3.14. Of a script itself there is no "Traceback" above it, only its frame.
_UNPARSED = re.compile(r"(?:SyntaxError|IndentationError|TabError): ")
_FILE = re.compile(r'\s*File "([^"\n]{1,400})", line \d')


def parsed_since(text: str, above: Iterable[str], tail: Sequence[str]) -> bool:
    """Whether the exception `text`, with the lines above it, is of a start before the one that `tail` ends with: a file
    that does not parse ends each start in the same way, and a later traceback goes through the same program.

    >>> older = ['  File "/job/prepare.py", line 71', "    data = f(", "           ^"]
    >>> later = ["Traceback (most recent call last):", '  File "/job/prepare.py", line 3, in <module>', "KeyError: 'x'"]
    >>> text = "SyntaxError: '(' was never closed"
    >>> parsed_since(text, older, [*older, text, *later]), parsed_since(text, older, [*later, *older, text])
    (True, False)
    """
    if not _UNPARSED.match(text):
        return False
    raised = exceptions(tail)
    if not raised or raised[-1].strip() == text.strip():
        return False
    places = [at for at, line in enumerate(tail) if line.strip() == text.strip()]
    since = tail[places[-1] + 1 :] if places else tail
    if any(CHAIN in line for line in since[:3]):
        return False
    return not _files(above).isdisjoint(_files(since))


def _files(lines: Iterable[str]) -> set[str]:
    return {match[1] for line in lines if (match := _FILE.match(line)) and not match[1].startswith("<")}
