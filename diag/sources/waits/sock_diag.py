"""Sockets of this network namespace by NETLINK_SOCK_DIAG (sock_diag(7)): state, queues, and when the last byte came.

/proc/net/tcp takes 2.5 times as long and does not say when. pyroute2 could ask too; it brings more modules than a
sidecar has, for two messages.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_NETLINK_SOCK_DIAG = 4
_BY_FAMILY, _DUMP = 20, 0x301  # SOCK_DIAG_BY_FAMILY; NLM_F_REQUEST | NLM_F_DUMP
_ERROR, _DONE = 2, 3
_HEADER = struct.Struct("=IHHII")
_TCP, _INFO = 6, 2  # IPPROTO_TCP, INET_DIAG_INFO
_LAST_DATA_RECV, _BYTES_RECEIVED = 52, 128  # in tcp_info; milliseconds, 64 bits (since Linux 4.1)
_UNIX_NAME, _UNIX_PEER, _UNIX_WAITING, _UNIX_QUEUES = 0, 2, 3, 4
_SECONDS = 2.0
STATES = (
    "", "ESTABLISHED", "SYN_SENT", "SYN_RECV", "FIN_WAIT1", "FIN_WAIT2", "TIME_WAIT", "CLOSE", "CLOSE_WAIT",
    "LAST_ACK", "LISTEN", "CLOSING", "NEW_SYN_RECV",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TcpSocket:
    """Of one that listens `unread` are the connections that nobody has accepted, and `unsent` how many there may be. An end
    that nobody has accepted has no inode."""

    inode: int
    state: str
    local: str
    peer: str
    unread: int
    unsent: int
    retransmits: int
    silent_ms: int | None
    received: int | None  # bytes of data that ever came


@dataclass(frozen=True, slots=True)
class UnixSocket:
    inode: int
    peer: int  # the other one's inode, 0 for none
    unread: int
    name: str  # the path, or the abstract name with @
    waiting: tuple[int, ...]  # of one that listens: those that have connected to it, and are not accepted


def tcp_sockets() -> Iterator[TcpSocket]:
    """IPv4 and IPv6. Raises OSError where the kernel does not answer."""
    for family in (socket.AF_INET, socket.AF_INET6):
        for body in _ask(struct.pack("=BBBBI48x", family, _TCP, 1 << (_INFO - 1), 0, 0xFFF)):
            if len(body) >= 72:
                yield _tcp(body)


def _tcp(body: bytes) -> TcpSocket:
    family, state, _, retransmits = body[:4]
    ports = struct.unpack_from(">HH", body, 4)
    size = 4 if family == socket.AF_INET else 16
    addresses = [socket.inet_ntop(family, body[at : at + size]) for at in (8, 24)]
    local, peer = (
        f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
        for name, port in zip((_plain(one) for one in addresses), ports, strict=True)
    )
    _, unread, unsent, _, inode = struct.unpack_from("=IIIII", body, 52)
    info = _attributes(body[72:]).get(_INFO, b"")
    silent = struct.unpack_from("=I", info, _LAST_DATA_RECV)[0] if len(info) >= _LAST_DATA_RECV + 4 else None
    received = (
        struct.unpack_from("=Q", info, _BYTES_RECEIVED)[0] if len(info) >= _BYTES_RECEIVED + 8 else None
    )
    name = STATES[state] if state < len(STATES) else str(state)
    return TcpSocket(inode, name, local, peer, unread, unsent, retransmits, silent, received)


def _plain(address: str) -> str:
    """An IPv4 address of a socket that speaks both.

    >>> _plain("::ffff:10.0.0.5")
    '10.0.0.5'
    """
    return address[7:] if address.startswith("::ffff:") and "." in address else address


def unix_sockets() -> Iterator[UnixSocket]:
    """Raises OSError where the kernel does not answer (ENOENT: the module is not loaded)."""
    for body in _ask(struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, 1 | 4 | 8 | 16, 0, 0)):
        if len(body) < 16:
            continue
        found = _attributes(body[16:])
        peer = struct.unpack_from("=I", found.get(_UNIX_PEER, bytes(4)))[0]
        unread = struct.unpack_from("=I", found.get(_UNIX_QUEUES, bytes(8)))[0]
        icons = found.get(_UNIX_WAITING, b"")
        waiting = tuple(one for (one,) in struct.iter_unpack("=I", icons[: len(icons) // 4 * 4]) if one)
        name = found.get(_UNIX_NAME, b"").decode(errors="replace")
        name = f"@{name[1:]}" if name.startswith("\0") else name.rstrip("\0")
        yield UnixSocket(struct.unpack_from("=I", body, 4)[0], peer, unread, name, waiting)


def _ask(request: bytes) -> Iterator[bytes]:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as channel:
        channel.settimeout(_SECONDS)
        channel.send(_HEADER.pack(_HEADER.size + len(request), _BY_FAMILY, _DUMP, 1, 0) + request)
        while True:
            data = channel.recv(1 << 16)
            at = 0
            while at + _HEADER.size <= len(data):
                length, kind, *_ = _HEADER.unpack_from(data, at)
                body = data[at + _HEADER.size : at + length]
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    raise OSError(-struct.unpack_from("=i", body)[0], "sock_diag")
                yield body
                at += max(_HEADER.size, length + 3 & ~3)


def _attributes(data: bytes) -> dict[int, bytes]:
    found, at = {}, 0
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, at)
        if length < 4:
            break
        found[kind] = data[at + 4 : at + length]
        at += length + 3 & ~3
    return found
