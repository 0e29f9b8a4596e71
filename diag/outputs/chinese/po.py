"""Pairs of texts from a catalogue in gettext's .po format: `msgid`, `msgstr`, strings over several lines, comments."""

from __future__ import annotations

import json
from collections.abc import Iterator


def read(text: str) -> Iterator[tuple[str, str]]:
    """(English, Chinese) of each entry that has both. Raises ValueError for a line that is none of a catalogue.

    >>> list(read('# of hangs\\nmsgid "rank {n} "\\n"waits"\\nmsgstr "rank {n} 在等"\\n'))
    [('rank {n} waits', 'rank {n} 在等')]
    """
    parts: dict[str, str] = {}
    name = ""
    for number, line in enumerate([*text.splitlines(), 'msgid ""'], 1):
        word, _, rest = line.strip().partition(" ")
        if not word or word.startswith("#"):
            continue
        if word in ("msgid", "msgstr"):
            if word == "msgid":
                if parts.get("msgid") and parts.get("msgstr"):
                    yield parts["msgid"], parts["msgstr"]
                parts = {}
            name, quoted = word, rest
        else:
            quoted = line.strip()
        if not name or not quoted.startswith('"'):
            raise ValueError(f"line {number} is none of a catalogue: {line}")
        parts[name] = parts.get(name, "") + json.loads(quoted)
