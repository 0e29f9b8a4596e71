"""Who sent a request: the run's own user, or another user of this machine, whom the kernel distinguishes.

A bearer of the token, the user that diag runs as and root own the run. TCP has no SO_PEERCRED, but a
connection over loopback has both its ends on this machine, and /proc/net/tcp has the user of each.
"""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from diag.outputs.http.daemon_thread import in_daemon_thread

_ESTABLISHED = "01"  # include/net/tcp_states.h
_NO_INODE = "0"
_ROOT = 0
Address = tuple[str, int]


class Asker:
    """Of one request. `trusted`: it needs no check, for it had the token, or no request comes here without."""

    def __init__(self, client: Address | None, server: Address | None, *, trusted: bool = False) -> None:
        self._ends = client, server
        self._owns: bool | None = True if trusted else None

    async def owns_the_run(self) -> bool:
        if self._owns is None:
            client, server = self._ends
            uid = await in_daemon_thread(lambda: uid_of(client, server)) if client and server else None
            self._owns = uid in (os.geteuid(), _ROOT)
        return self._owns


def uid_of(client: Address, server: Address, net: Path = Path("/proc/net")) -> int | None:
    """The user who holds the other end of a connection over loopback; None where the kernel does not say so."""
    # A closed socket has no user any more, and is shown as root's (net/core/sock.c, sock_i_uid): one is
    # believed only while it is established, twice, so that it cannot have been closed while its line was
    # written.
    first = _row(client, server, net)
    return first[0] if first is not None and first == _row(client, server, net) else None


def _row(client: Address, server: Address, net: Path) -> tuple[int, str] | None:
    """User and inode of the established socket whose own end is `client`."""
    try:
        ends = {f"{one} {other}" for one, other in zip(_words(client), _words(server), strict=True)}
    except (ValueError, TypeError):  # no address, no port: not by TCP
        return None
    for name in ("tcp", "tcp6"):  # a socket of IPv6 may have an IPv4 address
        try:
            lines = (net / name).read_text("ascii", "replace").splitlines()
        except OSError:
            continue
        for line in lines:
            # sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode ...
            words = line.split(None, 10)
            if (
                len(words) > 9
                and f"{words[1]} {words[2]}" in ends
                and words[3] == _ESTABLISHED
                and words[9] != _NO_INODE
            ):
                return int(words[7]), words[9]
    return None


def _words(address: Address) -> Iterable[str]:
    """As /proc/net/tcp and tcp6 write it: words of 32 bits in this machine's byte order, then the port.
    Raises ValueError."""
    ip = ipaddress.ip_address(address[0])
    plain = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped else ip
    mapped = ipaddress.IPv6Address(f"::ffff:{plain}") if plain.version == 4 else plain
    return [f"{_swapped(packed)}:{address[1]:04X}" for packed in dict.fromkeys((plain.packed, mapped.packed))]


def _swapped(packed: bytes) -> str:
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
