"""NCCL RAS's text report (NCCL 2.24 and later) as communicators: its table, and the paragraphs on what is
wrong.

The text names members of a communicator only where they differ from the rest: a quarter of them at most (half
in a verbose report), and ten; of the others it gives the number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from diag.model.observations import RasCommunicator, RasMissing, RasRank
from diag.sources.collectives.ras_json import IN_PROGRESS

# All of these: NCCL 2.28.9, captured on 2 and 4 x H200, 2026-11-20/21; what was not captured is from NCCL
# 2.32, src/ras/client_support.cc, and marked so.
#   NCCL version 2.28.9 compiled with CUDA 13.0
_VERSION = re.compile(
    r"^NCCL version (?P<version>\d{1,4}\.\d{1,4}\.\d{1,6}\S{0,40}) compiled with CUDA", re.MULTILINE
)
#   Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
#       #  in group  per comm  per node  per comm  in group
#       1         2         1         2         2         2   RUNNING  MISMATCH
# Ranks per node may be "4-8", errors "INCOMPLETE,MISMATCH" (source).
_ROW = re.compile(
    r"^ {0,4}(?P<group>\d{1,7}) +(?P<comms>\d{1,8}) +\d{1,8} +[\d-]{1,17} +(?P<size>\d{1,8}) +\d{1,8} +(?P<status>[A-Z]{4,8}) +"
    r"(?P<errors>[A-Z]{2,10}(?:,[A-Z]{4,10}){0,2})$"
)
#   #1-0 (6724f710479523e4) MISMATCH
_HEAD = re.compile(
    r"^#(?P<group>\d{1,7})-(?P<index>\d{1,8}) \((?P<hash>[0-9a-f]{1,16})\) (?P<word>[A-Z]{4,10})$"
)
#   Communicator ranks have different AllReduce operation counts
_OPERATION = re.compile(r"^  Communicator ranks have different (?P<op>\w{1,40}) operation counts$")
#   Rank 0 has launched up to operation 29 -- GPU 0 managed by process 751 on node 192.0.2.2
#   Rank 0 has not launched any operations -- GPU 0 managed by process 1099 on node 192.0.2.2
#   Rank 1 -- GPU 1 managed by process 1339 on node 192.0.2.2
#   Rank 2 has status INIT -- GPU 2 (NVML 6) managed by process 77 on node 192.0.2.2                          (source)
#   Rank 2 reported Unhandled CUDA error -- GPU 2 managed by process 77 on node 192.0.2.2                     (source)
_RANK = re.compile(
    r"^  Rank (?P<rank>\d{1,7})(?: has launched up to operation (?P<count>\d{1,19})|(?P<none> has not launched any operations)"
    r"| has status (?P<status>[A-Z]{4,8})| reported (?P<error>[\w ]{1,60}))?"
    r" -- GPU (?P<cuda>\d{1,4})(?: \(NVML (?P<nvml>\d{1,4})\))? managed by process (?P<pid>\d{1,10}) "
    r"on node (?P<host>[\w.:%-]{1,64})$"
)
#   7 ranks have launched up to operation 29                                                                   (source)
_CROWD = re.compile(
    r"^  (?P<ranks>\d{1,8}) ranks (?:have launched up to operation (?P<count>\d{1,19})|(?P<none>have not launched any operations)"
    r"|have status (?P<status>[A-Z]{4,8})|reported (?P<error>[\w ]{1,60}))$"
)
#   Initialization error on 1 rank                                                                             (source)
#   Asynchronous errors on 3 ranks                                                                             (source)
_ERRORS_ON = re.compile(r"^  (?P<kind>Initialization|Asynchronous) errors? on \d{1,8} ranks?$")
#   Process 1339 on node 192.0.2.2 managing GPU 1
_PROCESS = re.compile(r"^  Process (?P<pid>\d{1,10}) on node (?P<host>[\w.:%-]{1,64}) managing GPUs? ")
#   TIMEOUT                                                                                                    (source)
#     Encountered 2 communication timeouts while gathering communicator data
_TIMEOUTS = re.compile(r"^  Encountered (?P<count>\d{1,8}) communication timeouts? while")

_STATUS = ("NOCOMM", "INIT", "RUNNING", "FINALIZE", "ABORT")
_RESULTS = {
    "Unhandled CUDA error": 1, "System error": 2, "Internal error": 3, "Invalid argument": 4, "Invalid usage": 5,
    "Remote process error": 6, "NCCL operation in progress": 7, "Unexpected error": 99,
}  # fmt: skip
_MOST_COMMUNICATORS = 20_000
_MOST_EXCERPTS = 20
_EXCERPT_CHARS = 600


@dataclass(slots=True)
class _Member:
    place: tuple[
        int, str, int, int, int
    ]  # its rank, host, pid and devices: what both kinds of facts begin with
    init_state: int | None = None
    async_error: int | None = None
    finalize_called: bool = False
    abort_flag: bool = False
    counts: dict[str, int] = field(default_factory=dict)
    missing: str = ""  # "unresponsive", or "nocomm"

    def set_status(self, status: str) -> None:
        self.missing = "nocomm" if status == "NOCOMM" else self.missing
        self.init_state = {"INIT": IN_PROGRESS, "RUNNING": 0}.get(status, self.init_state)
        self.finalize_called |= status == "FINALIZE"
        self.abort_flag |= status == "ABORT"


@dataclass(slots=True)
class _Communicator:
    hash: str
    size: int = 0
    status: str = ""
    errors: tuple[str, ...] = ()
    members: dict[int, _Member] = field(default_factory=dict)
    unnamed: dict[tuple[str, int], int] = field(default_factory=dict)


def read_text(text: str) -> dict[str, Any]:
    """Fields of a `RasReading`. Raises ValueError for what is no report of RAS."""
    version = _VERSION.search(text)
    if version is None:
        raise ValueError("no report of NCCL RAS: its first line is missing")
    reader = _Reader()
    for paragraph in re.split(r"\n[ \t]*\n", text.replace("\r\n", "\n")):
        reader.paragraph([line.rstrip() for line in paragraph.splitlines()])
    return {
        "nccl_version": version["version"],
        "communicators": reader.communicators(),
        "timeouts": reader.timeouts,
        "whole": reader.whole,
        "detailed": False,
        "dead": tuple(reader.dead),
        "excerpts": tuple(reader.excerpts),
    }


class _Reader:
    """Paragraph by paragraph: each begins with a word or with its communicator, or goes on with the one
    before it."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[int, int, str, tuple[str, ...]]] = {}
        self.named: dict[tuple[int, int], _Communicator] = {}
        self.dead: list[tuple[str, int]] = []
        self.timeouts = 0
        self.whole = False
        self.excerpts: list[str] = []
        self._current: _Communicator | None = None
        self._about = ""  # INCOMPLETE, ERROR, MISMATCH

    def paragraph(self, lines: list[str]) -> None:
        lines = [line for line in lines if line]
        if not lines:
            return
        first = lines[0]
        head = _HEAD.match(first)
        if head is not None:
            key = int(head["group"]), int(head["index"])
            self._current = self.named.setdefault(key, _Communicator(head["hash"]))
            self._about = head["word"]
            self._communicator(self._current, lines[1:])
        elif first in ("INCOMPLETE", "DEAD", "TIMEOUT"):
            self._current, self._about = None, first
            self._processes(lines[1:])
        elif first.startswith("  Communicator ranks have different") and self._current is not None:
            self._communicator(self._current, lines)
        else:
            self._current, self._about = None, ""
            self.whole |= first == "Warnings" and lines[1:2] == ["========"]
            for line in lines:
                self._row(line)
            return
        if len(self.excerpts) < _MOST_EXCERPTS:
            self.excerpts.append("\n".join(lines)[:_EXCERPT_CHARS])

    def _row(self, line: str) -> None:
        row = _ROW.match(line)
        if row is not None and row["status"] in _STATUS:
            errors = () if row["errors"] == "OK" else tuple(row["errors"].split(","))
            self.rows[int(row["group"])] = int(row["comms"]), int(row["size"]), row["status"], errors

    def _processes(self, lines: list[str]) -> None:
        for line in lines:
            process, timeouts = _PROCESS.match(line), _TIMEOUTS.match(line)
            if process is not None and self._about == "DEAD":
                self.dead.append((process["host"], int(process["pid"])))
            elif timeouts is not None:
                self.timeouts = int(timeouts["count"])

    def _communicator(self, communicator: _Communicator, lines: list[str]) -> None:
        operation = kind = ""
        crowd: re.Match[str] | None = None  # members named below "3 ranks have ..." without their count
        for line in lines:
            different, errors_on = _OPERATION.match(line), _ERRORS_ON.match(line)
            if (
                different is not None
                or errors_on is not None
                or line == "  Communicator ranks have different status"
            ):
                operation = different["op"] if different is not None else ""
                kind = errors_on["kind"] if errors_on is not None else kind
                crowd = None
                continue
            found = _CROWD.match(line)
            if found is not None:
                crowd = found
                if operation:
                    key = operation, int(found["count"] or 0)
                    communicator.unnamed[key] = communicator.unnamed.get(key, 0) + int(found["ranks"])
                continue
            rank = _RANK.match(line)
            if rank is not None:
                source = rank if rank["count"] or rank["none"] or rank["status"] or rank["error"] else crowd
                self._member(communicator, rank, source, operation, kind, listed=source is crowd)

    def _member(  # noqa: PLR0917 - one caller, above
        self,
        communicator: _Communicator,
        rank: re.Match[str],
        source: re.Match[str] | None,
        operation: str,
        kind: str,
        listed: bool,
    ) -> None:
        number = int(rank["rank"])
        devices = int(rank["cuda"]), int(rank["nvml"] or rank["cuda"])
        place = number, rank["host"], int(rank["pid"]), *devices
        member = communicator.members.setdefault(number, _Member(place))
        if source is None:
            member.missing = member.missing or ("unresponsive" if self._about == "INCOMPLETE" else "")
        elif source["status"]:
            member.set_status(source["status"])
        elif source["error"]:
            code = _RESULTS.get(source["error"], 99)
            if kind == "Initialization":
                member.init_state = code
            else:
                member.async_error = code
        elif operation:
            member.counts[operation] = int(source["count"] or 0)
            if listed:  # counted among the unnamed, and named after all
                communicator.unnamed[operation, int(source["count"] or 0)] -= 1

    def communicators(self) -> tuple[RasCommunicator, ...]:
        """Of each row of the table as many as it counts; those with a paragraph have their hash and members."""
        made: list[RasCommunicator] = []
        for group, (comms, size, status, errors) in sorted(self.rows.items()):
            for index in range(min(comms, _MOST_COMMUNICATORS - len(made))):
                known = self.named.pop((group, index), None) or _Communicator("")
                known.size, known.status, known.errors = size, status, errors
                made.append(self._made(known))
        made.extend(self._made(known) for known in self.named.values())  # the table was torn off
        return tuple(made)

    def _made(self, known: _Communicator) -> RasCommunicator:
        members = [member for _, member in sorted(known.members.items())]
        ranks = tuple(
            RasRank(
                *member.place,
                member.init_state,
                member.async_error,
                finalize_called=member.finalize_called,
                abort_flag=member.abort_flag,
                counts=tuple(member.counts.items()),
            )
            for member in members
            if not member.missing
        )
        missing = tuple(
            RasMissing(*member.place, member.missing == "unresponsive", member.place[1:3] in self.dead)
            for member in members
            if member.missing
        )
        unnamed = tuple((op, count, ranks_) for (op, count), ranks_ in known.unnamed.items() if ranks_ > 0)
        return RasCommunicator(known.hash, known.size, ranks, missing, known.status, known.errors, unnamed)
