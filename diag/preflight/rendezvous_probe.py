"""Whether nodes reach each other on the rendezvous port: node 0 listens there for a while, the others
connect.

Who listens speaks first, and who connects says nothing before it has read `diag-doctor/1`: a training that
already runs there sees a connection that is closed again, never a byte it does not know.
"""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from diag.text.units import format_seconds

_GREETING = b"diag-doctor/1\n"
_MOST_BYTES = 4096
_SPEAK_SECONDS = 1.0  # who listens and is diag greets at once
_TRY_SECONDS = 2.0  # one lost SYN is sent again after 1 s (tcp(7)), so 2 s hold two of them
_PAUSE_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Met:
    """A node that was heard: its node rank and number of nodes as CMD tells it there (None where it does
    not), and its name."""

    node_rank: int | None
    nodes: int | None
    host: str
    seen_as: str  # the address that its connection came from
    own: str  # the address that it has itself: another one where NAT stands between
    name: str = ""  # what torchrun would call it to the others: its host's full name, or --local_addr
    ahead_seconds: float | None = None  # its clock against this node's; None where it did not tell
    unsure_seconds: float = 0.0  # by half of the time that the exchange took


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a connection ended. `how` is reached, refused, silence, no-route, stranger (something else
    listens), or error."""

    how: str
    address: str
    seconds: float
    tries: int
    met: Met | None = None
    said: str = ""  # what the kernel, or the stranger, said


def resolve(name: str, port: int, seconds: float) -> tuple[tuple[str, ...], str]:
    """The addresses of a name, in the resolver's order; when there are none, why. The resolver has no
    deadline of its own."""
    found: list[tuple[str, ...]] = []
    failed: list[str] = []

    def ask() -> None:
        try:
            if not name:
                raise OSError("it has no name")
            answers = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
            found.append(tuple(dict.fromkeys(str(place[0]) for *_, place in answers)))
        except socket.gaierror as error:
            words = {socket.EAI_NONAME: "no such name", socket.EAI_AGAIN: "the name server did not answer"}
            failed.append(words.get(error.errno or 0, error.strerror or str(error)))
        except (OSError, ValueError, OverflowError) as error:
            failed.append(str(error))

    asker = threading.Thread(target=ask, daemon=True, name="diag-resolve")
    asker.start()
    asker.join(seconds)
    if found:
        return found[0], ""
    return (), failed[0] if failed else f"the name server did not answer within {format_seconds(seconds)}"


def own_name(seconds: float) -> str:
    """What torchrun's c10d rendezvous calls this node: socket.getfqdn. "" when the name server takes too
    long."""
    found: list[str] = []
    asker = threading.Thread(target=lambda: found.append(socket.getfqdn()), daemon=True, name="diag-resolve")
    asker.start()
    asker.join(seconds)
    return found[0] if found else ""


def connect(
    address: str,
    port: int,
    wait_seconds: float,
    mine: dict[str, int | str | None],
    clock: Callable[[], float] = time.time,
) -> Outcome:
    """Tries again until `wait_seconds` are over where nobody listens (yet); `mine` is what node 0 is told of
    this node.

    With `wait_seconds` 0 it is one try, of 2 s where nothing answers.
    """
    began = time.monotonic()
    tries = 0
    # what was said last; silence only where nothing ever was: ICMP answers come once a second at most
    word = ("silence", "")
    while True:
        left = wait_seconds - (time.monotonic() - began)
        tries += 1
        longest = max(min(_TRY_SECONDS, left), 0.5) if wait_seconds else _TRY_SECONDS
        how, met, said = _attempt(address, port, longest, mine, clock)
        word = word if how == "silence" else (how, said)
        spent = time.monotonic() - began
        # A stranger stays; a firewall's or the kernel's word may still change when node 0 begins to listen.
        if how in ("reached", "stranger") or spent + _PAUSE_SECONDS >= wait_seconds:
            return Outcome(word[0], address, spent, tries, met, word[1])
        time.sleep(_PAUSE_SECONDS)


def _attempt(
    address: str, port: int, seconds: float, mine: dict[str, int | str | None], clock: Callable[[], float]
) -> tuple[str, Met | None, str]:
    try:
        with socket.create_connection((address, port), seconds) as peer:
            peer.settimeout(_SPEAK_SECONDS)
            try:
                greeting = peer.recv(len(_GREETING), socket.MSG_WAITALL)
            except TimeoutError:
                return "stranger", None, "it said nothing"
            if greeting != _GREETING:
                return (
                    "stranger",
                    None,
                    f"it said {greeting[:40]!r}" if greeting else "it closed the connection at once",
                )
            before = clock()
            peer.sendall(json.dumps({**mine, "own": peer.getsockname()[0], "clock": before}).encode() + b"\n")
            return "reached", _read(peer, address, before, clock), ""
    except TimeoutError:
        return "silence", None, ""
    except ConnectionRefusedError as error:
        return "refused", None, error.strerror or ""
    except OSError as error:
        how = (
            "no-route"
            if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL)
            else "error"
        )
        return how, None, error.strerror or str(error)


def _read(peer: socket.socket, seen_as: str, before: float, clock: Callable[[], float]) -> Met | None:
    """One line of JSON of a peer; None for anything else. It read its clock between `before` and now."""
    data = b""
    deadline = time.monotonic() + _SPEAK_SECONDS
    try:
        while b"\n" not in data and len(data) < _MOST_BYTES and time.monotonic() < deadline:
            part = peer.recv(_MOST_BYTES)
            if not part:
                break
            data += part
        after = clock()
        told = json.loads(data)
        numbers = [
            told.get(name) if isinstance(told.get(name), int) else None for name in ("node_rank", "nodes")
        ]
        return Met(
            numbers[0],
            numbers[1],
            str(told.get("host", ""))[:253],
            seen_as,
            str(told.get("own", ""))[:64].removeprefix("::ffff:"),
            str(told.get("name", ""))[:253],
            None if (there := _clock_of(told)) is None else there - (before + after) / 2,
            (after - before) / 2,
        )
    except (OSError, ValueError, AttributeError):
        return None


def _clock_of(told: dict[str, object]) -> float | None:
    value = told.get("clock")
    return (
        float(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e12
        else None
    )


def listen(
    place: socket.socket,
    wait_seconds: float,
    expected: int,
    mine: dict[str, int | str | None],
    clock: Callable[[], float] = time.time,
) -> Iterator[Met | None]:
    """Each node that comes, None for what connects and is no diag; ends when `expected` nodes came, or the
    time is over."""
    deadline = time.monotonic() + wait_seconds
    known: set[tuple[int | None, str]] = set()
    while len(known) < expected:
        left = deadline - time.monotonic()
        if left <= 0:
            return
        place.settimeout(left)
        try:
            peer, address = place.accept()
        except TimeoutError:
            return
        except OSError:
            continue  # gone again before we accepted it
        met = None
        with contextlib.suppress(OSError), peer:
            peer.settimeout(_SPEAK_SECONDS)
            before = clock()  # it answers the greeting at once
            peer.sendall(_GREETING)
            met = _read(peer, address[0].removeprefix("::ffff:"), before, clock)
            if met is not None:
                peer.sendall(
                    json.dumps({**mine, "own": peer.getsockname()[0], "clock": clock()}).encode() + b"\n"
                )
        if met is None:
            yield None
        elif (met.node_rank, met.host) not in known:
            known.add((met.node_rank, met.host))
            yield met
