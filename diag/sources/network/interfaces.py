"""IP interfaces of the network namespace that the ranks live in: bytes, addresses, speed, and which of them
carry the bytes.

/proc/PID/net/dev of a rank is world-readable; what /sys says of an interface and its addresses come from the
rank's own view where that is another one than ours.
"""

from __future__ import annotations

import ipaddress
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from diag.model import Payload, Record
from diag.model.observations import Interface, InterfacesSeen, Observation, Unparsed
from diag.sources.host.job_files import Files, JobFiles
from diag.sources.host.process_tree import PROC, read_raw, same_namespace
from diag.sources.payload import mapping, texts, word
from diag.text.errors import SourceUnavailable

SOURCE = "interfaces"

SYS_NET = Path("/sys/class/net")
_MOST_INTERFACES = 256
_MOST_BYTES = 256 * 1024  # of a routing table: hosts that route for others have long ones
_MOST_DEFAULTS = 8
_SELDOM_SECONDS = 300.0  # `speed` asks the driver under the kernel's lock of all interfaces


def own_addresses() -> dict[str, list[str]]:
    """Addresses by interface of our own network namespace, IPv4 first."""
    import socket

    import psutil  # the hub has it already; a sidecar never comes here

    order = (socket.AF_INET, socket.AF_INET6)
    return {
        name: [
            entry.address.partition("%")[0] for family in order for entry in entries if entry.family == family
        ]
        for name, entries in psutil.net_if_addrs().items()
    }


class InterfacesReader:
    """Reads all interfaces repeatedly. Not thread-safe."""

    def __init__(
        self,
        proc: Path = PROC,
        net: Path = SYS_NET,
        addresses: Callable[[], dict[str, list[str]]] = own_addresses,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._proc = os.fspath(proc)
        self._net = os.fspath(net)
        self._own_addresses = addresses
        self._clock = clock
        self._described: dict[tuple[int, str], tuple[float, str, dict[str, Any]]] = {}

    def sample(self, pid: int | None = None) -> Payload:
        """The interfaces that process `pid` sees (None: ours). Raises SourceUnavailable."""
        who = "self" if pid is None else str(pid)
        raw = read_raw(f"{self._proc}/{who}/net/dev")
        if raw is None and pid is not None:
            raise SourceUnavailable(
                f"the interfaces of process {pid} cannot be read", "mount /proc without hidepid"
            )
        if raw is None:
            raise SourceUnavailable(f"{self._proc} shows no network", "mount /proc")
        dev = raw.decode("ascii", "replace")
        names = [found[1] for found in _LINE.finditer(dev)][:_MOST_INTERFACES]
        ours = pid is None or self._same_namespace(pid)
        addresses = self._own_addresses() if ours else _addresses(f"{self._proc}/{who}/net", names)
        return {
            "dev": dev[:_MOST_BYTES],
            "addresses": addresses,
            "default": self._default_routes(who),
            "net": self._describe(Files(), names) if ours or pid is None else self._describe_of(pid, names),
        }

    def _default_routes(self, who: str) -> list[str]:
        """Interfaces that a default route leads to. A host that routes for others has long tables; this one
        comes first."""
        found: list[str] = _DEFAULT.findall(_beginning(f"{self._proc}/{who}/net/route"))
        found += _DEFAULT6.findall(_beginning(f"{self._proc}/{who}/net/ipv6_route"))
        return list(dict.fromkeys(found))[:_MOST_DEFAULTS]

    def _same_namespace(self, pid: int) -> bool:
        """Whether it has our network namespace; where that cannot be seen, by the names of its interfaces."""
        if (same := same_namespace("net", pid, self._proc)) is not None:
            return same
        theirs, own = (read_raw(f"{self._proc}/{who}/net/if_inet6") for who in (pid, "self"))
        return theirs is not None and theirs == own

    def _describe_of(self, pid: int, names: list[str]) -> dict[str, dict[str, Any]]:
        """A container's /sys is what the job makes of it."""
        try:
            with JobFiles(pid, self._proc) as files:
                return self._describe(files, names, pid)
        except OSError:
            return {}

    def _describe(self, files: Files, names: list[str], pid: int = 0) -> dict[str, dict[str, Any]]:
        now = self._clock()
        described = {}
        for name in names:
            base = f"{self._net}/{name}"
            state = _line(files, f"{base}/operstate")
            if state is None:
                continue  # a /sys of another namespace, or none
            at, before, facts = self._described.get((pid, name), (-_SELDOM_SECONDS, "", {}))
            if now - at >= _SELDOM_SECONDS or before != state:
                facts = _facts(files, base, state)
                self._described[pid, name] = (now, state, facts)
            described[name] = {"operstate": state, **facts}
        if len(self._described) > 4 * _MOST_INTERFACES:  # pods come and go, and their ends with them
            self._described.clear()
        return described


def _facts(files: Files, base: str, state: str) -> dict[str, Any]:
    """What seldom changes of an interface, as its /sys folder says it."""
    try:
        entries = files.names(base)
    except OSError:
        entries = []
    return {
        "type": _line(files, f"{base}/type"),
        "flags": _line(files, f"{base}/flags"),
        "speed": _line(files, f"{base}/speed") if state == "up" else None,  # EINVAL or -1 while it is down
        "device": "device" in entries,
        "bridge": "bridge" in entries,
        "lower": any(entry.startswith("lower_") for entry in entries),
        "port": _line(files, f"{base}/phys_port_name") if "device" in entries else None,
    }


def _beginning(path: str) -> str:
    """The first _MOST_BYTES of a table of the kernel, empty where it may not be read."""
    data = b""
    try:
        with open(path, "rb", buffering=0) as file:
            while len(data) < _MOST_BYTES and (more := file.read(65536)):
                data += more
    except OSError:
        pass
    return data.decode("ascii", "replace")


def _line(files: Files, path: str) -> str | None:
    try:
        return files.read(path, 64).decode("ascii", "replace").strip()
    except OSError:
        return None


# /proc/net/fib_trie, Linux 6.18, 2026-11-21 (the address of eth0):
#         +-- 192.0.2.0/30 2 0 2
#            |-- 192.0.2.2
#               /32 host LOCAL
_LOCAL = re.compile(r"\|-- (\d{1,3}(?:\.\d{1,3}){3})\n +/32 host LOCAL", re.ASCII)
# /proc/net/route of the same machine (destination and mask as the bytes lie in memory):
#   eth0	000200C0	00000000	0001	0	0	0	00FFFFFF	0	0	0
_ROUTE = re.compile(
    r"^(\S{1,15})\t([0-9A-F]{8})\t0{8}\t\S+\t\d+\t\d+\t\d+\t([0-9A-F]{8})\t", re.ASCII | re.MULTILINE
)
_DEFAULT = re.compile(r"^(\S{1,15})\t0{8}\t[0-9A-F]{8}\t\S+\t\d+\t\d+\t\d+\t0{8}\t", re.ASCII | re.MULTILINE)
# /proc/net/ipv6_route, zeros shortened; the second is of lo and only rejects:
#   0{32} 00 0{32} 00 fd000000000000000000000000000001 00000400 00000001 00000000 00000003     eth0
#   0{32} 00 0{32} 00 0{32} ffffffff 00000001 00000000 00200200       lo
_DEFAULT6 = re.compile(r"^0{32} 00 (?:[0-9a-f]+ ){7} *(?!lo$)(\S{1,15})$", re.ASCII | re.MULTILINE)
# /proc/net/if_inet6:
#   fe8000000000000000fc00fffe000001 04 40 20 80     eth0
_INET6 = re.compile(r"^([0-9a-f]{32}) (?:[0-9a-f]{2,} ){4} *(\S{1,15})$", re.ASCII | re.MULTILINE)


def _addresses(folder: str, names: list[str]) -> dict[str, list[str]]:
    """Of another namespace, from its tables: IPv4 addresses by the interface that their network is routed to."""
    fib_trie, route, if_inet6 = (
        _beginning(f"{folder}/{table}") for table in ("fib_trie", "route", "if_inet6")
    )
    found: dict[str, list[str]] = {name: [] for name in names}
    routes = [
        (name, _little(mask), _little(destination)) for name, destination, mask in _ROUTE.findall(route)
    ]
    routes.sort(key=lambda entry: -entry[1].bit_count())
    for address in dict.fromkeys(_LOCAL.findall(fib_trie)):
        try:
            number = int(ipaddress.IPv4Address(address))
        except ValueError:
            continue
        name = (
            "lo"
            if number >> 24 == 127
            else next((name for name, mask, net in routes if mask and number & mask == net), "")
        )
        if name in found:
            found[name].append(address)
    for digits, name in _INET6.findall(if_inet6):
        if name in found:
            found[name].append(str(ipaddress.IPv6Address(int(digits, 16))))
    return found


def _little(digits: str) -> int:
    return int.from_bytes(bytes.fromhex(digits), "little")


# --- understanding it

# /proc/net/dev, Linux 6.18, 2026-11-21; kernels before 2.6.37 write no space behind the colon:
#     eth0: 7502053086  157395    0    0    0     0          0         0  8184880  107108    0    0    0     0       0          0
_LINE = re.compile(r"^ *(\S{1,15}): *(\d{1,20})((?: +\d{1,20}){7}) +(\d{1,20})\b", re.ASCII | re.MULTILINE)
_KINDS = {"1": "ethernet", "32": "infiniband", "772": "loopback"}  # ARPHRD_* of linux/if_arp.h
_BYTES_PER_MEGABIT = 125_000
_IFF_UP = 0x1
# Ports of an embedded switch (phys_port_name "pf0vf3"): what they show is also in the counters of the uplink.
_REPRESENTOR = re.compile(r"(?:c\d+)?pf\d+(?:vf|sf)\d+$", re.ASCII)


def parse(record: Record) -> Iterator[Observation]:
    """One InterfacesSeen."""
    payload = mapping(record.payload)
    lines = list(_LINE.finditer(word(payload.get("dev"), _MOST_BYTES)))[:_MOST_INTERFACES]
    if not lines:  # even an empty namespace has lo
        yield Unparsed(record.rank, SOURCE, "no table of interfaces", str(record.payload)[:200])
        return
    net, addresses = mapping(payload.get("net")), mapping(payload.get("addresses"))
    known = {line[1]: mapping(net.get(line[1])) for line in lines}
    default = texts(payload.get("default")) or ()
    ways_out = [known[name] for name in default if known.get(name)]
    # A pod's way out is its end of a pair, also where it has an SR-IOV port beside it. A node's is hardware,
    # or lies on it.
    hardware = any(facts.get("device") is True for facts in known.values()) and all(
        _lies_over(facts) or facts.get("device") is True for facts in ways_out
    )
    interfaces = (
        _interface(line, known[line[1]], texts(addresses.get(line[1]), 64) or (), hardware) for line in lines
    )
    yield InterfacesSeen(record.rank, tuple(interfaces), record.read_at)


def _interface(
    line: re.Match[str], facts: Mapping[str, Any], addresses: tuple[str, ...], hardware: bool
) -> Interface:
    name = line[1]
    kind = _KINDS.get(str(facts.get("type")), "loopback" if name == "lo" else "other")
    return Interface(
        name=name,
        up=_is_up(facts, addresses),
        kind=kind,
        addresses=addresses,
        received_bytes=int(line[2]),
        sent_bytes=int(line[4]),
        speed_bytes_per_second=_speed(facts.get("speed")),
        carries=kind != "loopback" and _carries(name, facts, hardware),
    )


def _is_up(facts: Mapping[str, Any], addresses: tuple[str, ...]) -> bool:
    state, flags = facts.get("operstate"), str(facts.get("flags"))
    if state == "unknown":  # drivers without a link of their own: lo, tun, older veth
        return bool(re.fullmatch(r"0x[0-9a-f]{1,8}", flags)) and bool(int(flags, 16) & _IFF_UP)
    return state == "up" if state is not None else bool(addresses)


def _speed(text: object) -> float | None:
    return (
        float(text) * _BYTES_PER_MEGABIT
        if isinstance(text, str) and text.isdecimal() and 0 < len(text) < 9
        else None
    )


def _carries(name: str, facts: Mapping[str, Any], hardware: bool) -> bool:
    """Whether its bytes leave or enter here and are counted by no other interface of the list.

    `hardware`, on a node: its hardware, not the bonds, VLANs, bridges and containers' ends on top of it. In a
    pod: its own ends (eth0 is a veth), and ports given to it.
    """
    if _lies_over(facts):
        return False
    if hardware:
        return facts.get("device") is True and not _REPRESENTOR.match(str(facts.get("port")))
    return not name.startswith(("docker", "br-", "virbr", "dummy", "ifb"))


def _lies_over(facts: Mapping[str, Any]) -> bool:
    return facts.get("lower") is True or facts.get("bridge") is True
