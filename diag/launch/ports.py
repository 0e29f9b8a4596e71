"""A TCP port of this host that is free now, for others to take."""

from __future__ import annotations

import errno
import random
import socket
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
