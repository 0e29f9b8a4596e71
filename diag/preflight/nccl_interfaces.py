"""Which IP interfaces NCCL and gloo will take, from what there is and what the environment says. Pure.

NCCL's rule is that of src/misc/socket.cc (ncclFindInterfaces) and src/os/linux.cc (ncclOsFindInterfaces); its
list is ordered as getifaddrs gives it: all IPv4 addresses by interface index, then all IPv6 ones. The first
is the one of bootstrap and of the out-of-band connections of RDMA; NET/Socket spreads data over all of them
(16 at most).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diag.knowledge.nccl_filters import matches

_MOST = 16  # MAX_IFS
_FAMILIES = {"AF_INET": 4, "AF_INET6": 6}
# Since NCCL 2.28.3 (its release notes): interfaces without IFF_RUNNING are skipped, and libvirt's bridges
# come last. Before, even one that is down was taken.
_RUNNING_SINCE = (2, 28)


@dataclass(frozen=True, slots=True)
class Address:
    """An IP address with the length of its network's prefix: ("10.0.0.1", 24); IPv6 without the zone."""

    ip: str
    prefix: int

    @property
    def version(self) -> int:
        return ipaddress.ip_address(self.ip).version

    def holds(self, ip: str) -> bool:
        """Whether `ip` is in this address's subnet."""
        network = ipaddress.ip_network(f"{self.ip}/{self.prefix}", strict=False)
        other = ipaddress.ip_address(ip)
        return other.version == network.version and other in network


@dataclass(frozen=True, slots=True)
class NetworkInterface:
    """`up` and `running` are its flags IFF_UP and IFF_RUNNING (a cable without carrier is up and does not
    run)."""

    name: str
    up: bool
    running: bool
    addresses: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """Interfaces in the order in which NCCL lists them, each with the address taken, and the step that found
    them.

    `how` is NCCL_SOCKET_IFNAME, "ib", NCCL_COMM_ID, "others", "docker", "lo", "virbr", or "" where nothing
    was found.
    """

    interfaces: tuple[tuple[str, Address], ...]
    how: str

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.interfaces)


def choose(
    interfaces: Sequence[NetworkInterface],
    environment: Mapping[str, str],
    version: tuple[int, ...] | None = None,
    comm_id_ip: str = "",
) -> Choice:
    """NCCL's choice; `version` of NCCL, None for a recent one; `comm_id_ip` is what the host in NCCL_COMM_ID
    resolves to."""
    family = _FAMILIES.get(environment.get("NCCL_SOCKET_FAMILY", ""))
    recent = version is None or version[:2] >= _RUNNING_SINCE
    usable = [
        (interface.name, address)
        for wanted in (4, 6)
        for interface in interfaces
        for address in interface.addresses
        if address.version == wanted and (interface.running or not recent)
    ]

    def find(spec: str) -> tuple[tuple[str, Address], ...]:
        found: dict[str, Address] = {}
        for name, address in usable:
            if family is not None and address.version != family:
                continue
            if address.version == 6 and ipaddress.ip_address(address.ip).is_loopback:
                continue
            if matches(name, spec) and name not in found and len(found) < _MOST:
                found[name] = address
        return tuple(found.items())

    wanted = environment.get("NCCL_SOCKET_IFNAME", "")
    if len(wanted) > 1:  # NCCL asks for more than one character, too
        return Choice(find(wanted), "NCCL_SOCKET_IFNAME")
    found = find("ib")
    if found:
        return Choice(found, "ib")
    if comm_id_ip:
        same = next(((name, address) for name, address in usable if address.holds(comm_id_ip)), None)
        if same is not None:
            return Choice((same,), "NCCL_COMM_ID")
    for how, spec in (
        ("others", "^docker,lo,virbr" if recent else "^docker,lo"), ("docker", "docker"), ("lo", "lo"), ("virbr", "virbr"),
    ):  # fmt: skip
        found = find(spec)
        if found:
            return Choice(found, how)
    return Choice((), "")
