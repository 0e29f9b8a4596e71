"""What a line of NCCL's log means by itself, without the job around it: for `diag explain`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from diag.knowledge import table
from diag.model.observations import NcclFact
from diag.sources.logs.nccl_log import driver_missing, plain_runs, read_line
from diag.text.tables import fill

_HEAD = "node:1:1 [0] NCCL INFO "
# What is left of NCCL's own head where somebody cut a line within it: "[3] NCCL INFO ", "NCCL WARN ".
_TORN_HEAD = re.compile(r"(?:.{0,200}\s)?NCCL (?:INFO|WARN|ERROR|TRACE) +(?=\S)")
# Without NCCL's head the first words of a plain line are anybody's ("Trees are green").
_AT_WORK = re.compile(
    r"Channel \d+/\d+ :|Trees \[\d|\[Proxy |\d+ coll channels|threadThresholds \d|P2P Chunksize set|Check P2P Type"
    r"|cudaDriverVersion \d|Comm config Blocking set|CC O(?:ff|n),|MNNVL \w"
)
_HEADINGS = {"en": ("Meaning", "See also"), "zh": ("含义", "参见")}
_IN_NCCL = {"en": "In NCCL's log: ", "zh": "在 NCCL 的日志中："}


def message_of(line: str) -> str:
    """The line without NCCL's head, or what is left of it.

    >>> message_of("[3] NCCL INFO NET/IB : No device found."), message_of("NET/IB : No device found.")
    ('NET/IB : No device found.', 'NET/IB : No device found.')
    """
    line = line.strip()
    head = _TORN_HEAD.match(line)
    return line[head.end() :] if head else line


def meaning(line: str, lang: str) -> dict[str, str]:
    """Heading -> text; empty for a line that is none of those that diag's reader of NCCL's log understands.

    >>> meaning("NET/IB : No device found.", "en")["See also"]
    'ib-fallback, ib-port'
    >>> meaning("NET/IB is what we use here", "en")
    {}
    """
    entry, values = next(_entries(line.strip()), ({}, {}))
    if not entry:
        return {}
    lang = "zh" if lang == "zh" else "en"
    text = fill(entry["zh" if lang == "zh" else "means"], **values)
    # a line without its head may be another program's
    is_whole = message_of(line) != line.strip() or line.strip().startswith("libibverbs:")
    said = text if is_whole else _IN_NCCL[lang] + text
    page = zip(_HEADINGS[lang], (said, ", ".join(entry.get("see", ()))), strict=True)
    return {heading: part for heading, part in page if part}


def _entries(line: str) -> Iterator[tuple[Mapping[str, Any], Mapping[str, object]]]:
    """Of the line as it stands, then of one that lacks NCCL's own head."""
    for text in (line, _HEAD + message_of(line)):
        for fact in read_line(text, None):
            if isinstance(fact, NcclFact):
                values = {name: getattr(fact, name) for name in fact.__dataclass_fields__}
                for entry in table("nccl_lines")[type(fact).__name__]:
                    wanted = entry.get("when", {}).items()
                    if all(re.fullmatch(pattern, str(values[name])) for name, pattern in wanted):
                        yield entry, values
        if _is_plain(text) and _AT_WORK.match(message_of(text)):
            yield table("nccl_lines")["plain"][0], {}
    if driver_missing(line, None) is not None:
        yield table("nccl_lines")["VerbsDriverMissing"][0], {}


def _is_plain(text: str) -> bool:
    """Whether it lies in a run of plain lines without ending it."""
    run = f"{_HEAD}Channel 00/24 : 0 1\n{text}\n{_HEAD}Channel 01/24 : 0 1\n"
    return "\n" not in text and list(plain_runs(run)) == [(0, len(run))]
