"""Who is at the other end of a TCP or UNIX socket: the process that holds it, or the one that has not accepted it yet.

A connection is there before the listening process accepts it: it waits in that socket's queue, without a descriptor and
so without an inode, and what the client sends is kept for whoever will.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from diag.sources.host.process_tree import same_namespace
from diag.sources.waits import sock_diag
from diag.sources.waits.ends import Ends
from diag.sources.waits.sock_diag import TcpSocket, UnixSocket

_OPENED = ("ESTABLISHED", "SYN_RECV", "NEW_SYN_RECV")  # by the client, and by nobody else yet


class Sockets:
    """Of this network namespace, listed once, when the first wait asks. `gaps` gets what could not be."""

    def __init__(self, proc: str, ends: Ends, gaps: set[str]) -> None:
        self._proc = proc
        self._ends = ends
        self._gaps = gaps

    def facts(self, pid: int, inode: int) -> dict[str, Any]:
        """`held`: who has the other end open, or with `not_accepted` the socket in whose queue that end is."""
        if (tcp := self._tcp_of(pid).get(inode)) is not None:
            about = {
                "state": tcp.state, "local": tcp.local, "peer": tcp.peer, "unread": tcp.unread, "unsent": tcp.unsent,
                "retransmits": tcp.retransmits, "silent_ms": tcp.silent_ms, "received": tcp.received,
            }  # fmt: skip
            other = self._tcp_by_ends.get((tcp.peer, tcp.local))
            if other is not None and other.inode and tcp.state != "LISTEN":
                about["peer_unread"] = other.unread
            return {"tcp": about, **self._other_end(tcp)}
        if (unix := self._unix_by_inode.get(inode)) is not None:
            about = {"unread": unix.unread, "peer": unix.peer}
            if (end := self._unix_by_inode.get(unix.peer)) is not None:
                about["peer_unread"] = end.unread
            return {"unix": about, **self._pair(pid, unix)}
        return {}

    def _other_end(self, tcp: TcpSocket) -> dict[str, Any]:
        other = self._tcp_by_ends.get((tcp.peer, tcp.local))
        if other is not None and other.inode:
            return {"held": self._ends.socket(other.inode)}
        listener = self._listener(tcp.peer)
        if listener is None or tcp.state == "LISTEN":
            return {"held": []}
        full = listener.unread > listener.unsent  # its queue, and how long that may be
        waits = other.state in _OPENED if other is not None else full
        if not waits:
            return {"held": []}
        about = {"local": listener.local, "waiting": listener.unread, "full": full}
        return {"held": self._ends.socket(listener.inode), "not_accepted": about}

    def _listener(self, address: str) -> TcpSocket | None:
        """Of several with one port (SO_REUSEPORT) one that has connections waiting."""
        host, _, port = address.rpartition(":")
        found = [
            one
            for one in self._listening
            if one.local.rpartition(":")[2] == port
            and one.local.rpartition(":")[0] in (host, "0.0.0.0", "[::]")
        ]
        return max(found, key=lambda one: (one.local == address, one.unread), default=None)

    def _pair(self, pid: int, unix: UnixSocket) -> dict[str, Any]:
        if unix.peer:
            return self._ends.pair(pid, unix.peer)
        listener = next((one for one in self._unix if unix.inode in one.waiting), None)
        if listener is None:
            return {"held": []}
        about = {"local": listener.name, "waiting": len(listener.waiting), "full": False}
        return {"held": self._ends.socket(listener.inode), "not_accepted": about}

    def _tcp_of(self, pid: int) -> dict[int, TcpSocket]:
        same = same_namespace("net", pid, self._proc)
        if same is False:
            self._gaps.add(f"sockets of pid {pid}: it is in another network namespace")
        return self._tcp_by_inode if same is True else {}

    @cached_property
    def _tcp(self) -> tuple[TcpSocket, ...]:
        try:
            return tuple(sock_diag.tcp_sockets())
        except OSError as error:
            self._gaps.add(f"TCP sockets: {error.strerror}")
            return ()

    @cached_property
    def _tcp_by_inode(self) -> dict[int, TcpSocket]:
        return {one.inode: one for one in self._tcp if one.inode}

    @cached_property
    def _tcp_by_ends(self) -> dict[tuple[str, str], TcpSocket]:
        return {(one.local, one.peer): one for one in self._tcp}

    @cached_property
    def _listening(self) -> tuple[TcpSocket, ...]:
        return tuple(one for one in self._tcp if one.state == "LISTEN" and one.inode)

    @cached_property
    def _unix(self) -> tuple[UnixSocket, ...]:
        try:
            return tuple(sock_diag.unix_sockets())
        except OSError as error:
            self._gaps.add(f"UNIX sockets: {error.strerror}")
            return ()

    @cached_property
    def _unix_by_inode(self) -> dict[int, UnixSocket]:
        return {one.inode: one for one in self._unix}
