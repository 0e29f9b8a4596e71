"""A process that cannot reach the store at which its job meets: what its stack, its sockets and its log show
of it.

Nothing is sent anywhere: a blocked call is read from the process's own stack, a missing connection from
the kernel's tables.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from diag.launch.launchers.command import read_command
from diag.model import Payload, Record
from diag.model.observations import Observation, StoreTried, StoreWaited
from diag.sources.payload import fill, guarded

SOURCE = "store"

# --- the stack
# torch 2.4-2.13, the innermost Python frame while TCPStore connects (what it does then is C++):
#   _create_c10d_store (torch/distributed/rendezvous.py:198)
#   StaticTCPRendezvous.next_rendezvous (torch/distributed/elastic/rendezvous/static_tcp_rendezvous.py:70)
#   _create_tcp_store (torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py:160)
_CONNECTS = {
    "_create_c10d_store": "torch/distributed/rendezvous.py",
    "next_rendezvous": "torch/distributed/elastic/rendezvous/static_tcp_rendezvous.py",
    "_create_tcp_store": "torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py",
    "create_c10d_store": "torch/distributed/elastic/utils/distributed.py",
}


def connects(function: str, file: str) -> bool:
    """
    >>> connects("_create_c10d_store", "/opt/venv/lib/python3.11/site-packages/torch/distributed/rendezvous.py")
    True
    """
    name = function.rpartition(".")[2]  # 3.11 and newer give the class before it
    return name in _CONNECTS and file.endswith(_CONNECTS[name])


# --- where it goes
Place = tuple[str, int, int | None]  # host, port, the node's number


def place_of_launcher(argv: Sequence[str], environment: Mapping[str, str]) -> Place | None:
    """None where it meets no others over TCP by its own command: one node, etcd, a configuration file."""
    found = read_command(argv, environment, read_text=lambda path: None).meeting
    if found.nodes < 2 or found.address is None or found.backend not in ("static", "c10d") or found.bad:
        return None
    return found.address, found.port, found.node_rank if found.backend == "static" else None


def place_of_rank(environment: Mapping[str, str], node: int | None) -> Place | None:
    host, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    return (host, int(port), node) if host and port.isdecimal() and len(port) < 6 else None


# --- the kernel
_ESTABLISHED, _SYN_SENT = "01", "02"
_MOST_BYTES = 8 << 20  # 50,000 sockets: more are not read
_MOST_FDS = 4096


@dataclass(frozen=True, slots=True)
class Connections:
    """To one remote port, of one process."""

    established: bool
    pending: bool


def connections(pid: int, port: int, proc: Path = Path("/proc")) -> Connections | None:
    """None where it is not known: the process is gone or another user's, or there are too many sockets."""
    own = _sockets(proc / str(pid) / "fd")
    if own is None:
        return None
    states: set[str] = set()
    for name in ("net/tcp", "net/tcp6"):
        rows = _table(proc / str(pid) / name)
        if rows is None:
            return None
        states.update(state for remote, state, inode in rows if remote == port and inode in own)
    return Connections(_ESTABLISHED in states, _SYN_SENT in states)


def _sockets(folder: Path) -> set[str] | None:
    found = set()
    try:
        names = os.listdir(folder)
        if len(names) > _MOST_FDS:
            return None
        for name in names:
            try:
                target = os.readlink(folder / name)
            except FileNotFoundError:
                continue
            if target.startswith("socket:["):
                found.add(target[8:-1])
    except OSError:
        return None
    return found


def _table(path: Path) -> Iterable[tuple[int, str, str]] | None:
    # Linux 6.18:
    #   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
    #    0: 0100007F:C350 0100007F:733C 01 00000000:00000000 00:00000000 00000000     0        0 12345 1 ...
    try:
        with path.open(encoding="ascii", errors="replace") as file:
            text = file.read(_MOST_BYTES)
    except FileNotFoundError:  # a kernel without IPv6
        return []
    except OSError:
        return None
    if len(text) >= _MOST_BYTES:
        return None
    rows = [line.split() for line in text.splitlines()[1:]]
    return [(int(row[2].rpartition(":")[2], 16), row[3], row[9]) for row in rows if len(row) > 9]


# --- the record


def payload(pid: int, place: Place, *, pending: bool, over: bool) -> Payload:
    host, port, node = place
    return {"pid": pid, "host": host[:253], "port": port, "node": node, "pending": pending, "over": over}


@guarded(SOURCE)
def parse(record: Record) -> Iterator[Observation]:
    yield fill(StoreWaited, record.payload, rank=record.rank)


# --- the log
# torch 2.5-2.13, TCPStore.cpp; the addresses in the lines of socket.cpp around it may be wrong (2.13 prints
# freed memory):
#   [W1123 00:19:34.189396703 TCPStore.cpp:340] [c10d] TCP client failed to connect/validate to host 10.9.9.9:29500 - retrying
#   (try=3, timeout=900000ms, delay=1366ms): The client socket has failed to connect to any network address of (10.9.9.9, 29500).
#   The client socket has failed to connect to 94.85.0.0:1529 (errno: 101 - Network is unreachable).
_RETRYING = re.compile(
    r"failed to connect/validate to host (.{1,253}):(\d{1,5}) - retrying \(try=\d{1,9}, timeout=\d{1,12}ms, "
    r"delay=(\d{1,9})ms\): (.*)"
)
# torch 1.11-2.13, socket.cpp, each second while a name has no address:
#   [W1121 23:29:34.025284904 socket.cpp:697] [c10d] The IPv6 network addresses of (trainer-0.train-svc, 29500) cannot be
#   retrieved (gai error: -2 - Name or service not known).
_UNKNOWN = re.compile(
    r"network addresses of \((.{1,253}), (\d{1,5})\) cannot be retrieved \((gai error: -?\d{1,5} - [^)]{1,100})\)"
)
# torch 1.11-2.3, socket.cpp, each second:
#   [W socket.cpp:558] [c10d] The client socket has failed to connect to [trainer-0]:29500 (errno: 111 - Connection refused).
_FAILED = re.compile(
    r"\[W socket\.cpp:\d{1,5}\] \[c10d\] The client socket has failed to connect to \[?(.{1,253}?)\]?:(\d{1,5}) "
    r"\((errno: \d{1,4} - [^)]{1,100})\)"
)
_WHY = re.compile(r"\((errno: \d{1,4} - [^)]{1,100})\)")
_OFTEN = 15.0  # seconds: the longest that lines without a delay are apart while the name is looked up
WORDS = ("- retrying (try=", "gai error: ", "The client socket has failed to connect to ")


def read_line(text: str, rank: int | None) -> Iterator[Observation]:
    """A failed try that its line reports."""
    if match := _RETRYING.search(text):
        why = _WHY.search(match[4])
        yield StoreTried(
            rank, match[1], int(match[2]), why[1] if why else match[4][:200], int(match[3]) / 1000, text[:500]
        )
        return
    match = _UNKNOWN.search(text) or _FAILED.search(text)
    if match:
        yield StoreTried(rank, match[1], int(match[2]), match[3], _OFTEN, text[:500])
