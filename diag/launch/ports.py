"""TCP ports of this host, and addresses of it: a port that is free now, who listens on one, what is loopback."""

from __future__ import annotations

import errno
import ipaddress
import os
import random
import socket
from dataclasses import dataclass
from pathlib import Path

_FIRST, _LAST = 20_000, 60_999
# NCCL RAS, torchrun's rendezvous, MASTER_PORT of torch and of ms-swift
_KNOWN = frozenset({28028, 29400, 29500, 29501})
_TRIES = 50


def free_port(proc: Path = Path("/proc")) -> int | None:
    """Not held: whoever binds it next has it. None when none was found.

    Outside of the range that the kernel gives to outgoing connections, which are many before NCCL takes the
    port.
    """
    low, high = _ephemeral(proc)
    wanted = [port for port in range(_FIRST, _LAST + 1) if not low <= port <= high and port not in _KNOWN]
    tries = random.SystemRandom().sample(wanted, min(_TRIES, len(wanted)))
    return next((port for port in tries if _is_free(port)), None)


def _ephemeral(proc: Path) -> tuple[int, int]:
    try:
        low, high = (proc / "sys/net/ipv4/ip_local_port_range").read_text().split()
        if (int(low), int(high)) != (0, 0) and not (int(low) <= _FIRST and int(high) >= _LAST):
            return int(low), int(high)
    except (OSError, ValueError):
        pass
    return 0, 0


def _is_free(port: int) -> bool:
    """By binding it for a moment on each address of localhost, without SO_REUSEPORT."""
    try:
        places = socket.getaddrinfo("localhost", port, type=socket.SOCK_STREAM)
    except OSError:
        places = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port))]
    free = False
    for family, kind, protocol, _, place in places:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(place)
                free = True
        except OSError as error:
            # a host without IPv6 has it in /etc/hosts
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                return False
    return free


_LISTEN = "0A"


@dataclass(frozen=True, slots=True)
class Owner:
    """`pid` None where the process belongs to another user, or lives in another process namespace. `uid` of
    the socket."""

    pid: int | None
    uid: int
    command: str = ""


def owner_of(port: int, proc: Path = Path("/proc")) -> Owner | None:
    """None where no process listens there (a connection may still hold the port)."""
    found = _listening(port, proc)
    if found is None:
        return None
    inode, uid = found
    wanted = f"socket:[{inode}]"
    for folder in proc.iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            if any(os.readlink(entry.path) == wanted for entry in os.scandir(folder / "fd")):
                words = (
                    (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                )
                return Owner(int(folder.name), uid, words[:200])
        except OSError:
            continue  # another user's, or gone
    return Owner(None, uid)


def _listening(port: int, proc: Path) -> tuple[str, int] | None:
    # Linux 6.18:
    #   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
    #    0: 00000000:7337 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12345 1 ...
    for name in ("net/tcp", "net/tcp6"):
        try:
            lines = (proc / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if len(fields) > 9 and fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                return fields[9], int(fields[7])
    return None


def is_loopback(host: str) -> bool:
    """
    >>> is_loopback("::1"), is_loopback("0.0.0.0")
    (True, False)
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
