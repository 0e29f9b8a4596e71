"""Facts of a job on two nodes: NCCL's real lines through the real parser, and readings of ports, interfaces
and processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from diag.model import Finding
from diag.model.observations import (
    EnvironmentSeen,
    Interface,
    InterfacesSeen,
    Observation,
    RdmaAccess,
    RdmaPort,
    RdmaPortsSeen,
)
from diag.sources.logs.line_facts import read_text
from tests.facts import Story, pid_of

# NCCL 2.28.9, two H200 that NCCL took for two nodes, 2026-11-20; the addresses of the world's communicator differ by process.
SOCKETS = (
    "NCCL version 2.28.9+cuda13.0",
    "NET/Plugin: Could not find: libnccl-net.so",
    "NET/IB : No device found.",
    "NET/IB : Using [RO]; OOB eth0:192.0.2.2<0>",
    "Failed to initialize NET plugin IB",
    "NET/Socket : Using [0]eth0:192.0.2.2<0>",
    "Initialized NET plugin Socket",
    "Assigned NET plugin Socket to comm",
    "Using network Socket",
)
# The same version's lines with devices (src/transport/net_ib/init.cc).
INFINIBAND = (
    "NCCL version 2.28.9+cuda13.0",
    "NET/Plugin: Could not find: libnccl-net.so",
    "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:192.0.2.2<0>",
    "Initialized NET plugin IB",
    "Assigned NET plugin IB to comm",
    "Using network IB",
)


def nccl(
    pid: int, *lines: str, host: str = "gpu-node-0", level: str = "INFO", gpu: int = 0
) -> Iterator[Observation]:
    """What the parser makes of lines of this process, as they stand in one file of all ranks."""
    for line in lines:
        yield from read_text(f"{host}:{pid}:{pid} [{gpu}] NCCL {level} {line}", "nccl.log", None)


def warns(pid: int, where: str, line: str, host: str = "gpu-node-0") -> Iterator[Observation]:
    """A warning as 2.26 and later write it."""
    yield from read_text(
        f"[2026-11-20 22:48:14] {host}:{pid}:{pid} [0] {where} NCCL WARN {line}", "nccl.log", None
    )


def world(
    rank: int, size: int = 4, *, nodes: int = 2, comm: str = "0x20035e20", made: bool = True
) -> tuple[str, ...]:
    """A communicator's own lines as a member writes them (2.28.9)."""
    head = f"ncclCommInitRankConfig comm {comm} rank {rank} nranks {size} cudaDev 0 nvmlDev 0 busId 60 commId 0x1e3d17e1cf875ee7"
    local = size // nodes
    start = (
        f"{head} - Init START",
        f"comm {comm} rank {rank} nRanks {size} nNodes {nodes} localRanks {local} localRank "
        f"{rank % local} MNNVL 0",
    )
    return (*start, f"{head} - Init COMPLETE") if made else start


def channel(sender: int, receiver: int, via: str) -> str:
    return f"Channel 00/0 : {sender}[{sender}] -> {receiver}[{receiver}] [send] via {via}"


def port(
    device: str = "mlx5_0",
    state: int | None = 4,
    *,
    rate: float = 50e9,
    layer: str = "InfiniBand",
    sent: int | None = None,
    **counters: int,
) -> RdmaPort:
    told = tuple(counters.items()) + ((("port_xmit_data", sent),) if sent is not None else ())
    return RdmaPort(device, 1, state, "LinkUp" if state == 4 else "Disabled", rate, layer, told)


def ports(*found: RdmaPort, at: float = 1000.0) -> RdmaPortsSeen:
    return RdmaPortsSeen(None, found, at)


def interfaces(sent: int, at: float, name: str = "eth0", kind: str = "ethernet") -> InterfacesSeen:
    lo = Interface("lo", True, "loopback", ("127.0.0.1",), 1 << 40, 1 << 40)
    return InterfacesSeen(None, (lo, Interface(name, True, kind, ("192.0.2.2",), sent, sent, 1.25e9)), at)


def access(
    rank: int,
    *,
    nodes: Sequence[str] | None = ("uverbs0",),
    held: Sequence[str] | None = (),
    library: bool | None = True,
    providers: Sequence[str] | None = ("mlx5",),
    ipc_lock: bool = True,
    container: str = "",
    conf: tuple[tuple[str, str, str], ...] = (),
) -> RdmaAccess:
    return RdmaAccess(
        rank,
        pid_of(rank),
        None if nodes is None else tuple(nodes),
        None if held is None else tuple(held),
        ("libibverbs",) if library else (),
        library,
        None if providers is None else tuple(providers),
        ipc_lock,
        container,
        conf,
    )


def environment(rank: int, **variables: str) -> EnvironmentSeen:
    return EnvironmentSeen(rank, pid_of(rank), tuple(variables.items()))


def two_nodes() -> Story:
    """Four ranks on two nodes, of which this one has ranks 0 and 1."""
    return Story(world=4, nodes=2)


def told(story: Story, *facts: Observation, wait: float = 12.0) -> dict[str, Finding]:
    """Findings by id after these facts."""
    story.tell(*facts)
    story.wait(wait)
    return {finding.id: finding for finding in story.findings()}
