"""A process that cannot reach the store at which its job meets: what its stack and its sockets show
of it.

Nothing is sent anywhere: a blocked call is read from the process's own stack, a missing connection from
the kernel's tables.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from diag.launch.launchers.command import Rendezvous, read_command
from diag.model import Payload, Record
from diag.model.observations import Observation, StoreWaited
from diag.sources.host.process_tree import same_namespace
from diag.sources.payload import from_mapping, guarded
from diag.sources.waits import sock_diag

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


# In which an agent of torchrun waits for the others, as its own thread's frames show (torch 1.9-2.13):
#   DynamicRendezvousHandler.next_rendezvous (torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:1171)
#   SimpleElasticAgent._rendezvous (torch/distributed/elastic/agent/server/api.py:520)
_MEETS_IN = "torch/distributed/elastic/rendezvous/"
_AGENT = "torch/distributed/elastic/agent/server/api.py"


def meets(function: str, file: str) -> bool:
    """
    >>> meets("_BackendRendezvousStateHolder.sync", "/v/torch/distributed/elastic/rendezvous/dynamic_rendezvous.py")
    True
    >>> meets("SimpleElasticAgent._monitor_workers", "/v/torch/distributed/elastic/agent/server/api.py")
    False
    """
    return _MEETS_IN in file or (file.endswith(_AGENT) and function.rpartition(".")[2] == "_rendezvous")


# --- where it goes
Place = tuple[str, int, int | None]  # host, port, the node's number


def place_of_launcher(argv: Sequence[str], environment: Mapping[str, str]) -> Place | None:
    """None where it meets no others over TCP by its own command: one node, etcd, a configuration file."""
    return place_of_meeting(read_command(argv, environment, read_text=lambda path: None).meeting)


def place_of_meeting(found: Rendezvous) -> Place | None:
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


def hosts_connected(pid: int, port: int, proc: Path = Path("/proc")) -> tuple[str, ...]:
    """Addresses of other machines whose connections to this port the process has accepted; none where that may not be
    read."""
    own = _sockets(proc / str(pid) / "fd")
    if not own or not same_namespace("net", pid, os.fspath(proc)):
        return ()
    try:
        every = tuple(sock_diag.tcp_sockets())
    except OSError:
        return ()
    here = {(one.peer, one.local) for one in every}
    hosts = {
        one.peer.rpartition(":")[0]
        for one in every
        if one.state == "ESTABLISHED" and one.local.endswith(f":{port}") and str(one.inode) in own
        if (one.local, one.peer) not in here
    }
    return tuple(sorted(hosts))


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
    yield from_mapping(StoreWaited, record.payload, rank=record.rank)
