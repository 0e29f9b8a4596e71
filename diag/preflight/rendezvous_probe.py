"""Whether nodes reach each other on the rendezvous port: node 0 listens there for a while, the others
connect.

The listener speaks first, and what connects sends nothing before it has read `diag-doctor/1`: a training that
already runs there sees a connection that is closed again, never a byte it does not know.
"""

from __future__ import annotations

import contextlib
import errno
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any, TypeVar

from diag.preflight.ways import ANSWER_SECONDS, Doors, Way, doors_of, knock, ways_of, ways_told
from diag.text.units import format_seconds

_T = TypeVar("_T")
_GREETING = b"diag-doctor/1\n"
_MOST_BYTES = 4096
_SPEAK_SECONDS = 1.0  # a listener that is diag greets at once
_TRY_SECONDS = 2.0  # one lost SYN is sent again after 1 s (tcp(7)), so 2 s hold two of them
_PAUSE_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Met:
    """A node that was heard: its node rank and number of nodes as CMD has them there (None where it does
    not), and its name."""

    node_rank: int | None
    nodes: int | None
    host: str
    seen_as: str  # the address that its connection came from
    own: str  # the address that it has itself: another one where NAT is in between
    name: str = ""  # what torchrun would call it to the others: its host's full name, or --local_addr
    ahead_seconds: float | None = None  # its clock against this node's; None where it was not sent
    unsure_seconds: float = 0.0  # by half of the time that the exchange took
    ways: tuple[Way, ...] | None = None  # from here to where NCCL and gloo will listen there; None: not tried
    back: tuple[Way, ...] | None = None  # from there to here, as it says


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a connection ended. `how` is reached, refused, silence, no-route, stranger (something else
    listens), or error."""

    how: str
    address: str
    seconds: float
    tries: int
    met: Met | None = None
    said: str = ""  # what the kernel reported, or the stranger sent


def resolve(name: str, port: int, seconds: float) -> tuple[tuple[str, ...], str]:
    """The addresses of a name, in the resolver's order; when there are none, why."""

    def ask() -> tuple[tuple[str, ...], str]:
        try:
            if not name:
                return (), "it has no name"
            answers = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
            return tuple(dict.fromkeys(str(place[0]) for *_, place in answers)), ""
        except socket.gaierror as error:
            known = {socket.EAI_NONAME: "no such name", socket.EAI_AGAIN: "the name server did not answer"}
            return (), known.get(error.errno or 0, error.strerror or str(error))
        except (OSError, ValueError, OverflowError) as error:
            return (), str(error)

    return _within(seconds, ask) or ((), f"the name server did not answer within {format_seconds(seconds)}")


def own_name(seconds: float) -> str:
    """What torchrun's c10d rendezvous calls this node: socket.getfqdn. "" when the name server takes too
    long."""
    return _within(seconds, socket.getfqdn) or ""


def _within(seconds: float, ask: Callable[[], _T]) -> _T | None:
    """The resolver's answer, None where that takes longer: it has no deadline of its own."""
    found: list[_T] = []
    asker = threading.Thread(target=lambda: found.append(ask()), daemon=True, name="diag-resolve")
    asker.start()
    asker.join(seconds)
    return found[0] if found else None


def connect(
    address: str,
    port: int,
    wait_seconds: float,
    mine: Mapping[str, Any],
    clock: Callable[[], float] = time.time,
    *,
    doors: Doors | None = None,
) -> Outcome:
    """Tries again until `wait_seconds` are over where nothing listens (yet); `mine` is what node 0 learns of
    this node. With `doors` both try each other's.

    With `wait_seconds` 0 it is one try, of 2 s where nothing answers.
    """
    began = time.monotonic()
    tries = 0
    # the last answer; silence only where there never was one: ICMP answers come once a second at most
    last = ("silence", "")
    while True:
        left = wait_seconds - (time.monotonic() - began)
        tries += 1
        longest = max(min(_TRY_SECONDS, left), 0.5) if wait_seconds else _TRY_SECONDS
        how, met, said = _attempt(address, port, longest, mine, clock, doors=doors)
        last = last if how == "silence" else (how, said)
        spent = time.monotonic() - began
        # A stranger stays; a firewall's or the kernel's answer may still change when node 0 begins to listen.
        if how in ("reached", "stranger") or spent + _PAUSE_SECONDS >= wait_seconds:
            return Outcome(last[0], address, spent, tries, met, last[1])
        time.sleep(_PAUSE_SECONDS)


def _attempt(
    address: str,
    port: int,
    seconds: float,
    mine: Mapping[str, Any],
    clock: Callable[[], float],
    *,
    doors: Doors | None,
) -> tuple[str, Met | None, str]:
    try:
        with socket.create_connection((address, port), seconds) as peer:
            peer.settimeout(_SPEAK_SECONDS)
            try:
                greeting = peer.recv(len(_GREETING), socket.MSG_WAITALL)
            except TimeoutError:
                return "stranger", None, "it sent nothing"
            if greeting != _GREETING:
                sent = f"it sent {greeting[:40]!r}" if greeting else "it closed the connection at once"
                return "stranger", None, sent
            before = clock()
            talk = _Talk(peer)
            talk.send(_introduced(peer, mine, before, doors))
            told = talk.read(_SPEAK_SECONDS)
            met = _met(told, address, before, clock)
            return "reached", _try_doors(talk, met, told, doors), ""
    except TimeoutError:
        return "silence", None, ""
    except ConnectionRefusedError as error:
        return "refused", None, error.strerror or ""
    except OSError as error:
        no_route = error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL)
        return "no-route" if no_route else "error", None, error.strerror or str(error)


class _Talk:
    """Lines of JSON over a connection, one way and the other."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer, self._held = peer, b""

    def send(self, told: Mapping[str, Any]) -> None:
        self._peer.sendall(json.dumps(told).encode() + b"\n")

    def read(self, seconds: float) -> dict[str, Any] | None:
        """None for anything else than such a line, and for one that does not come within `seconds`."""
        deadline = time.monotonic() + seconds
        try:
            while b"\n" not in self._held and len(self._held) < _MOST_BYTES:
                self._peer.settimeout(max(deadline - time.monotonic(), 0.01))
                part = self._peer.recv(_MOST_BYTES)
                if not part:
                    break
                self._held += part
            row, _, self._held = self._held.partition(b"\n")
            found = json.loads(row)
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None


def _introduced(
    peer: socket.socket, mine: Mapping[str, Any], now: float, doors: Doors | None
) -> dict[str, Any]:
    told = doors.told() if doors is not None else {}
    return {**mine, "own": peer.getsockname()[0], "clock": now, **told}


def _met(
    sent: Mapping[str, Any] | None, seen_as: str, before: float, clock: Callable[[], float]
) -> Met | None:
    """What a node says of itself. It read its clock between `before` and now."""
    after = clock()
    if sent is None:
        return None
    rank, nodes = (sent[name] if isinstance(sent.get(name), int) else None for name in ("node_rank", "nodes"))
    there = sent.get("clock")
    is_time = isinstance(there, (int, float)) and not isinstance(there, bool) and abs(there) < 1e12
    return Met(
        node_rank=rank,
        nodes=nodes,
        host=str(sent.get("host", ""))[:253],
        seen_as=seen_as,
        own=str(sent.get("own", ""))[:64].removeprefix("::ffff:"),
        name=str(sent.get("name", ""))[:253],
        ahead_seconds=there - (before + after) / 2 if is_time and there is not None else None,
        unsure_seconds=(after - before) / 2,
    )


def _try_doors(
    talk: _Talk, met: Met | None, told: Mapping[str, Any] | None, doors: Doors | None
) -> Met | None:
    """Each side tries those of the other, and says how that went: while it does, its own stay open."""
    if met is None or told is None or doors is None or "doors" not in told:
        return met
    theirs, word = doors_of(told)
    ways = knock(theirs, word, doors.own)
    with contextlib.suppress(OSError):
        talk.send(ways_told(ways))
    return replace(met, ways=ways, back=ways_of(talk.read(ANSWER_SECONDS)))


def listen(
    place: socket.socket,
    wait_seconds: float,
    expected: int,
    mine: Mapping[str, Any],
    clock: Callable[[], float] = time.time,
    *,
    doors: Doors | None = None,
) -> Iterator[Met | None]:
    """Each node that comes, None for what connects and is not diag; ends when `expected` nodes came, or the
    time is over. Nodes are talked to at the same time: each is to be greeted at once."""
    deadline = time.monotonic() + wait_seconds
    known: set[tuple[int | None, str]] = set()
    talks = 0
    ended: SimpleQueue[Met | None] = SimpleQueue()
    wake, woken = socket.socketpair()
    place.setblocking(False)  # who knocked may be gone again

    def welcome(peer: socket.socket, seen_as: str) -> None:
        met = None
        with contextlib.suppress(OSError), peer:
            met = _welcomed(peer, seen_as, mine, clock, doors)
        ended.put(met)
        with contextlib.suppress(OSError):
            wake.send(b".")

    with wake, woken:
        while len(known) < expected:
            left = deadline - time.monotonic()
            if left <= 0 and not talks:
                return
            longest = max(left, 0.0) if not talks else max(left, ANSWER_SECONDS)
            ready = select.select([woken, *([place] if left > 0 else [])], [], [], longest)[0]
            if not ready and left <= 0:
                return
            if place in ready:
                with contextlib.suppress(OSError):  # gone again before we accepted it
                    peer, address = place.accept()
                    talks += 1
                    seen_as = address[0].removeprefix("::ffff:")
                    threading.Thread(target=welcome, args=(peer, seen_as), daemon=True).start()
            if woken in ready:
                woken.recv(1)
                talks -= 1
                met = ended.get()
                if met is None:
                    yield None
                elif (met.node_rank, met.host) not in known:
                    known.add((met.node_rank, met.host))
                    yield met


def _welcomed(
    peer: socket.socket,
    seen_as: str,
    mine: Mapping[str, Any],
    clock: Callable[[], float],
    doors: Doors | None,
) -> Met | None:
    peer.settimeout(_SPEAK_SECONDS)
    talk = _Talk(peer)
    before = clock()  # it answers the greeting at once
    peer.sendall(_GREETING)
    told = talk.read(_SPEAK_SECONDS)
    met = _met(told, seen_as, before, clock)
    if met is not None:
        talk.send(_introduced(peer, mine, clock(), doors))
    return _try_doors(talk, met, told, doors)
