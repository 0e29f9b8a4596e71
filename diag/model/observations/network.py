"""Networks outside of any log: RDMA ports and IP interfaces of a node, and what a rank's process has of RDMA."""

from __future__ import annotations

from dataclasses import dataclass

from diag.model.observations.base import Observation


@dataclass(frozen=True, slots=True)
class RdmaGid:
    """An entry of a port's GID table: `kind` "IB/RoCE v1" or "RoCE v2", `interface` the IP interface behind
    it ("": none)."""

    index: int
    gid: str
    kind: str
    interface: str = ""


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """A port of /sys/class/infiniband. `state` 1 down, 2 init, 3 armed, 4 active, 5 active-defer; None for
    what is not readable.

    `counters` by the kernel's names; those of data (port_xmit_data, port_rcv_data) in bytes, not in its words
    of 4.
    """

    device: str
    port: int
    state: int | None
    physical_state: str = ""  # "LinkUp", "Disabled", "Polling" ...
    rate_bytes_per_second: float | None = None
    link_layer: str = ""  # "InfiniBand" or "Ethernet" (RoCE)
    counters: tuple[tuple[str, int], ...] = ()
    gids: tuple[RdmaGid, ...] = ()

    @property
    def active(self) -> bool:
        return self.state in (4, 5)


@dataclass(frozen=True, slots=True)
class RdmaPortsSeen(Observation):
    """All RDMA ports of the node, none where it has no RDMA device. `emitted` is the reader's clock."""

    ports: tuple[RdmaPort, ...]
    emitted: float


@dataclass(frozen=True, slots=True)
class Interface:
    """An IP interface: `kind` loopback, ethernet, infiniband (IPoIB) or other; speed None where the driver
    does not say.

    `carries`: its bytes enter or leave the namespace here; those of bonds, VLANs, bridges and containers'
    ends are counted by what lies below them too.
    """

    name: str
    up: bool
    kind: str
    addresses: tuple[str, ...]
    received_bytes: int
    sent_bytes: int
    speed_bytes_per_second: float | None = None
    carries: bool = True


@dataclass(frozen=True, slots=True)
class InterfacesSeen(Observation):
    """All IP interfaces of the network namespace that the ranks live in."""

    interfaces: tuple[Interface, ...]
    emitted: float


@dataclass(frozen=True, slots=True)
class RdmaAccess(Observation):
    """What a rank's process has of RDMA; None for what cannot be read.

    `device_nodes` are in its /dev/infiniband ("uverbs0"), `open_nodes` those that it holds open; `mapped` are
    libraries in its memory ("libibverbs", "libmlx5", "libnccl-net" ...), `verbs_library` whether a
    libibverbs.so.1 can be found in its file system, `providers` the drivers of libibverbs there ("mlx5").
    `ipc_lock`: it may lock memory beyond its limit. `container` is kubernetes, docker, podman, slurm or ""
    for none of them. `nccl_conf`: (file, name, value).
    """

    pid: int
    device_nodes: tuple[str, ...] | None
    open_nodes: tuple[str, ...] | None
    mapped: tuple[str, ...] | None
    verbs_library: bool | None
    providers: tuple[str, ...] | None
    ipc_lock: bool | None
    container: str = ""
    nccl_conf: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class NetworkExpected(Observation):
    """The user says which networks NCCL is meant to use between nodes: names with * and ?, as NCCL writes
    them."""

    nets: tuple[str, ...]
