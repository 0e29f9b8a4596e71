"""NCCL RAS: what NCCL itself knows of all communicators of a job, over the line protocol that each process
serves.

`read` asks one process for the whole job, `parse` makes one `RasReading` of the answer, or of a file that
somebody saved. Whether it may be asked is decided in `diag.agent.samplers.ras`: on some versions of NCCL a question
can cost the job.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator, Sequence

from diag.model import Payload, Record
from diag.model.observations import Observation, RasReading, SourceFailed, SourceWorks
from diag.sources.collectives.ras_json import load, read_communicators
from diag.sources.collectives.ras_text import read_text
from diag.sources.collectives.worker_server import NoAnswer
from diag.sources.payload import explained, failures_of, guarded, integer, mapping, sequence, word

SOURCE = "nccl_ras"
DEFAULT_ADDRESS = "localhost:28028"  # NCCL's own

# ours: a member of a communicator takes 540 bytes of JSON, and a GPU is in 25 of Megatron's
MAX_BYTES = 8 << 20
_MAX_LINE = 4096
# longer than RAS's own: the connection is not closed on a question that is under way
_DEADLINE_SECONDS = 15.0
_RAS_SECONDS = 5  # RAS gives up on a silent process after this long; its own default
_PROTOCOL = 2


# --- asking


def read(
    address: str = DEFAULT_ADDRESS,
    *,
    want_json: bool = True,
    deadline: float = _DEADLINE_SECONDS,
    own_addresses: Sequence[str] = (),
) -> Payload:
    """{"address", "json" or "text": the report, "addresses": own_addresses}, or {"address", "failed": a key
    of failures.yaml, "detail"}.

    Protocol 2 of NCCL 2.24 and later; JSON from 2.28.7 on, else text. The ranks' Python threads are not
    needed: a thread of NCCL's answers for the whole job.
    """
    try:
        connection = _Connection(split_address(address), time.monotonic() + deadline)
        try:
            return {"address": address, **_talk(connection, want_json), "addresses": list(own_addresses)}
        finally:
            connection.close()
    except NoAnswer as failure:
        return {"address": address, "failed": failure.word, "detail": failure.detail[:300]}


def split_address(address: str) -> tuple[str, int]:
    """HOST:PORT or [IPv6]:PORT as NCCL takes it; an address that means "all" is asked on this host.

    >>> split_address("localhost:28028"), split_address("[::]:1"), split_address("127.0.0.1<28028>")
    (('localhost', 28028), ('::1', 1), ('127.0.0.1', 28028))
    """
    found = re.fullmatch(
        r"\s*(?:\[([\da-fA-F:.]+(?:%\w+)?)\]|([^\s\[\]<>]*?))(?::(\d{1,5})|<(\d{1,5})>)\s*", address[:300]
    )
    port = int(found[3] or found[4]) if found else 0
    if found is None or not 0 < port < 65536:
        raise NoAnswer("no_address", repr(address[:80]))
    host = found[1] or found[2] or "localhost"
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port


def _talk(connection: _Connection, want_json: bool) -> dict[str, str]:
    connection.send(f"CLIENT PROTOCOL {_PROTOCOL}")
    hello = connection.line()
    if not hello.startswith(b"SERVER PROTOCOL "):
        raise NoAnswer("not_ras", repr(hello[:80]))
    connection.send(f"TIMEOUT {_RAS_SECONDS}")
    connection.line()  # OK; a server that does not know it says so and keeps its own
    kind = "text"
    if want_json:
        connection.send("SET FORMAT json")
        kind = "json" if connection.line() == b"OK" else "text"  # ERROR: Unknown command before 2.28.7
    connection.send("VERBOSE STATUS")
    report = connection.rest()
    if not report.strip():
        raise NoAnswer("closed")
    if kind == "json":
        report = re.sub(rb"\n +", b"\n", report)  # its indentation is half of it
    return {kind: report.decode("utf-8", "replace")}


class _Connection:
    """One connection with one deadline for all that is done on it. Raises NoAnswer."""

    def __init__(self, address: tuple[str, int], end: float) -> None:
        self._end = end
        self._buffer = b""
        shown = f"{address[0][:80]}:{address[1]}"
        try:  # to this host, as a rule: it takes a millisecond
            self._socket = socket.create_connection(address, min(self._left(), 2.0))
        except (socket.gaierror, UnicodeError) as error:
            raise NoAnswer("no_address", f"{address[0][:80]}: {error}") from None
        except ConnectionRefusedError:
            raise NoAnswer("refused", shown) from None
        except TimeoutError:
            raise NoAnswer("timed_out", f"no connection to {shown}") from None
        except OSError as error:
            raise NoAnswer("failed", f"{shown}: {error}") from None

    def _left(self) -> float:
        left = self._end - time.monotonic()
        if left <= 0:
            raise NoAnswer("timed_out")
        return left

    def send(self, line: str) -> None:
        self._socket.settimeout(self._left())
        try:
            self._socket.sendall(line.encode() + b"\n")
        except TimeoutError:
            raise NoAnswer("timed_out", line) from None
        except OSError as error:
            raise NoAnswer("closed", f"{line}: {error.strerror}") from None

    def _more(self) -> bytes:
        self._socket.settimeout(self._left())
        try:
            return self._socket.recv(1 << 16)
        except TimeoutError:
            raise NoAnswer("timed_out") from None
        except OSError as error:
            raise NoAnswer("closed", error.strerror or "") from None

    def line(self) -> bytes:
        while b"\n" not in self._buffer:
            data = self._more()
            if not data:
                raise NoAnswer("not_ras", repr(self._buffer[:80])) if self._buffer else NoAnswer("closed")
            self._buffer += data
            if len(self._buffer) > _MAX_LINE and b"\n" not in self._buffer:
                raise NoAnswer("not_ras", repr(self._buffer[:80]))
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.rstrip(b"\r")

    def rest(self) -> bytes:
        """Up to the end that the server sets. What came before a reset or the deadline is given too: `parse`
        sees it."""
        data = bytearray(self._buffer)
        try:
            while chunk := self._more():
                data += chunk
                if len(data) > MAX_BYTES:
                    raise NoAnswer("too_large", f"more than {MAX_BYTES} bytes")
        except NoAnswer as failure:
            if failure.word == "too_large" or not data.strip():
                raise
        return bytes(data)

    def close(self) -> None:
        self._socket.close()


# --- reading

# The server's answers to the commands before the report, as `nc` saves them in front of it:
#   SERVER PROTOCOL 2
#   OK
_BEFORE = re.compile(r"\ufeff?(?:[ \t]*(?:SERVER PROTOCOL \d{1,4}|OK|ERROR: [^\n]{0,300})?\r?\n)*")


def is_answer(text: str) -> bool:
    """Whether a file's beginning (1,000 characters do) looks like a saved answer of RAS, text or JSON."""
    body = text[_match_end(text) :].lstrip(" \t")
    return body.startswith("NCCL version ") or (body.startswith("{") and '"nccl_version"' in body[:200])


def _match_end(text: str) -> int:
    found = _BEFORE.match(text)
    return found.end() if found else 0


@guarded(SOURCE, "not an answer of NCCL RAS")
def parse(record: Record) -> Iterator[Observation]:
    """Parses a live answer, or {"text": ...} or {"json": ...} with a saved file as it is: the format is
    detected."""
    payload = record.payload
    if "failed" in payload:
        yield SourceFailed(record.rank, SOURCE, *explained(failures_of(SOURCE), payload))
        return
    raw = payload["json"] if "json" in payload else payload["text"]
    body = raw[_match_end(raw) :]
    found = _from_json(body) if body.lstrip().startswith("{") else read_text(body)
    addresses = tuple(word(item) for item in sequence(payload.get("addresses"))[:1000])
    yield SourceWorks(record.rank, SOURCE)
    yield RasReading(rank=None, emitted=record.read_at, host=record.host, addresses=addresses, **found)


def _from_json(body: str) -> Payload:
    report, whole = load(body)
    if "nccl_version" not in report:
        raise ValueError("JSON, but no report")
    return {
        "nccl_version": word(report.get("nccl_version")),
        "communicators": read_communicators(report),
        "timeouts": integer(mapping(report.get("ras")).get("timeouts_count")),
        "whole": whole,
        "detailed": True,
    }
