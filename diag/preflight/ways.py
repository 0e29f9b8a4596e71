"""Whether nodes that met on the rendezvous port reach each other where NCCL and gloo will listen: at each node's own
address, on ports that the kernel chooses.

Each node opens such a port at each of these addresses for as long as they talk, tells the other, and tries the other's.
Who is let in sends nothing and is sent one line, by which it knows that it met this node and no other machine with the
same address.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import secrets
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_MOST_DOORS = 4
_TRY_SECONDS = 2.0  # one lost SYN is sent again after 1 s (tcp(7))
_SPEAK_SECONDS = 1.0
# How long the other one may take to try all of mine.
ANSWER_SECONDS = _MOST_DOORS * (_TRY_SECONDS + _SPEAK_SECONDS)


@dataclass(frozen=True, slots=True)
class Door:
    """A port that a node listens on: `use` is what will listen at this address later ("NCCL", "gloo")."""

    use: str
    ip: str
    port: int


@dataclass(frozen=True, slots=True)
class Way:
    """A try at a door. `how` is reached, refused, silence, no-route, other (another machine has the address), own (this
    node has it too), or error."""

    door: Door
    how: str
    said: str = ""

    @property
    def place(self) -> str:
        return (
            f"[{self.door.ip}]:{self.door.port}"
            if ":" in self.door.ip
            else f"{self.door.ip}:{self.door.port}"
        )


class Doors:
    """Those of this node, and the word by which they are known."""

    def __init__(self, addresses: Mapping[str, str]) -> None:
        """`addresses`: what will listen, and at which address of this node."""
        self.word = secrets.token_hex(8)
        self.own = frozenset(addresses.values())
        self._places: list[tuple[Door, socket.socket]] = []
        for use, ip in addresses.items():
            with contextlib.suppress(OSError):
                place = socket.create_server((ip, 0), family=_family(ip))
                self._places.append((Door(use, ip, place.getsockname()[1]), place))
        for _, place in self._places:
            threading.Thread(target=self._let_in, args=(place,), daemon=True, name="diag-door").start()

    def __enter__(self) -> Doors:
        return self

    def __exit__(self, *error: object) -> None:
        for _, place in self._places:
            with contextlib.suppress(OSError):
                place.shutdown(socket.SHUT_RDWR)  # wakes who waits in accept
            place.close()

    def told(self) -> dict[str, Any]:
        """What the other node is told of them."""
        doors = [[door.use, door.ip, door.port] for door, _ in self._places]
        return {"doors": doors, "word": self.word}

    def _let_in(self, place: socket.socket) -> None:
        while True:
            try:
                peer, _ = place.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), peer:
                peer.settimeout(_SPEAK_SECONDS)
                peer.sendall(f"{self.word}\n".encode())


def doors_of(told: Mapping[str, Any]) -> tuple[tuple[Door, ...], str]:
    """What another node says of its own; none of what makes no sense."""
    doors = told.get("doors")
    return tuple(_read(doors if isinstance(doors, list) else ())), str(told.get("word", ""))[:64]


def _read(doors: Sequence[Any]) -> Iterator[Door]:
    for entry in doors[:_MOST_DOORS]:
        with contextlib.suppress(ValueError, TypeError):
            use, ip, port = entry
            address = ipaddress.ip_address(str(ip))
            if 0 < int(port) < 65536 and not (address.is_loopback or address.is_multicast):
                yield Door(str(use)[:40], str(address), int(port))


def knock(doors: Sequence[Door], word: str, own: frozenset[str]) -> tuple[Way, ...]:
    """Tries each; `own` are addresses of this node."""
    return tuple(Way(door, "own") if door.ip in own else _knock(door, word) for door in doors)


def _knock(door: Door, word: str) -> Way:
    try:
        with socket.create_connection((door.ip, door.port), _TRY_SECONDS) as peer:
            peer.settimeout(_SPEAK_SECONDS)
            with contextlib.suppress(TimeoutError):
                if peer.recv(64, socket.MSG_WAITALL).decode(errors="replace").strip() == word:
                    return Way(door, "reached")
            return Way(door, "other")
    except TimeoutError:
        return Way(door, "silence")
    except ConnectionRefusedError as error:
        return Way(door, "refused", error.strerror or "")
    except OSError as error:
        no_route = error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL)
        return Way(door, "no-route" if no_route else "error", error.strerror or str(error))


def ways_told(ways: Sequence[Way]) -> dict[str, Any]:
    return {"ways": [[way.door.use, way.door.ip, way.door.port, way.how, way.said] for way in ways]}


def ways_of(told: Mapping[str, Any] | None) -> tuple[Way, ...] | None:
    """What the other node found of this one's doors; None where it did not say."""
    ways = told.get("ways") if told is not None else None
    if not isinstance(ways, list):
        return None
    found = []
    for entry in ways[:_MOST_DOORS]:
        if isinstance(entry, list) and len(entry) == 5:
            found += [Way(door, str(entry[3])[:20], str(entry[4])[:200]) for door in _read([entry[:3]])]
    return tuple(found)


def _family(ip: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in ip else socket.AF_INET
