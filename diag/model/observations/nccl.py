"""What NCCL's own lines say (NCCL_DEBUG): one `NcclLine` each, and what of it decides something as a fact of
its own."""

from __future__ import annotations

from dataclasses import dataclass

from diag.model.observations.base import Observation


@dataclass(frozen=True, slots=True)
class NcclLine(Observation):
    """One line of NCCL_DEBUG: `level` INFO, WARN, TRACE ...; `gpu` is NCCL's own [n], the CUDA device index.

    `host`, `pid` and `tid` as the process sees itself. `where` is FILE:LINE of a warning, "" where the line
    has none.
    """

    host: str
    pid: int
    tid: int
    gpu: int | None
    level: str
    text: str
    where: str = ""


@dataclass(frozen=True, slots=True)
class NcclPlainLines(Observation):
    """Consecutive lines of NCCL that show nothing but that it is at work (rings, trees, channels within a
    node): `count` of them in place of a `LogLine` and an `NcclLine` each; `last` are the last 200 as they
    stand, `text` is all of them."""

    stream: str
    count: int
    last: tuple[str, ...]
    text: str = ""


@dataclass(frozen=True, slots=True)
class NcclFact(Observation):
    """Base of what a line says; `line` is the evidence."""

    line: NcclLine


@dataclass(frozen=True, slots=True)
class NcclVersion(NcclFact):
    """`version` "2.28.9", `cuda` "13.0" ("" where it does not say)."""

    version: str
    cuda: str = ""


@dataclass(frozen=True, slots=True)
class NcclRasListening(NcclFact):
    """Where RAS takes questions, as NCCL writes it: "127.0.0.1<28028>"."""

    address: str


@dataclass(frozen=True, slots=True)
class NcclEnvironment(NcclFact):
    """NCCL read a variable (of the environment or of an nccl.conf) and logs its value."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class NcclNetChosen(NcclFact):
    """A communicator's network between nodes: "IB", "Socket", "IBext_v10", "AWS Libfabric" ... On one node it
    is not used."""

    net: str


@dataclass(frozen=True, slots=True)
class NcclNetFailed(NcclFact):
    """A network that could not be used; `net` is "" for "any"."""

    net: str


@dataclass(frozen=True, slots=True)
class NcclPlugin(NcclFact):
    """An external network plugin. `status` is missing (normal: the built-in one is used), loaded, or failed
    (not usable)."""

    name: str
    status: str


@dataclass(frozen=True, slots=True)
class NcclIbDevice:
    """A port that NCCL uses: `link` is IB or RoCE."""

    name: str
    port: int
    link: str


@dataclass(frozen=True, slots=True)
class NcclIbDevices(NcclFact):
    """The RDMA ports that NCCL will use, none when it found none; the interface of its out-of-band
    connections ("" not given)."""

    devices: tuple[NcclIbDevice, ...]
    interface: str = ""
    address: str = ""
    cut: bool = False  # NCCL cut the line at 1023 bytes: there are more


@dataclass(frozen=True, slots=True)
class NcclSockets(NcclFact):
    """The interfaces that NET/Socket will use: (name, address) each. Printed only when RDMA was not usable."""

    interfaces: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class NcclBootstrap(NcclFact):
    """The interface over which ranks find each other: always a socket, whatever carries the data."""

    interface: str
    address: str


@dataclass(frozen=True, slots=True)
class NcclInterfaceMissing(NcclFact):
    """No IP interface for `use` ("bootstrap", "oob", "socket"); `wanted` as the line names it, "" when it
    does not."""

    use: str
    wanted: str = ""


@dataclass(frozen=True, slots=True)
class NcclLibraryMissing(NcclFact):
    """A library that NCCL tried to open: "libibverbs" (no RDMA without it) or "mlx5dv" (features only:
    harmless)."""

    library: str


@dataclass(frozen=True, slots=True)
class NcclChannel(NcclFact):
    """One direction of a connection between nodes. Ranks are the communicator's. `net` "IB", "Socket" ...;
    `proxy` the rank whose network card is used for it (PXN), None when its own."""

    channel: int
    sender: int
    receiver: int
    direction: str  # "send" or "receive"; "" where the line does not say
    net: str
    device: int | None
    gpu_direct: bool
    proxy: int | None = None


@dataclass(frozen=True, slots=True)
class NcclCommunicator(NcclFact):
    """A step of a communicator's life as one member logs it. `stage` is start, topology, complete, destroyed
    or aborted.

    `comm` is the address in that process ("0x20035e20"), `comm_id` the same on all members ("" where the line
    has none). `nodes` and `local_ranks` come with topology only (NCCL 2.20 and later), `bus_id` of the
    member's GPU with the other stages; `nvlink`: the nodes reach each other over NVLink (MNNVL).
    """

    stage: str
    comm: str
    comm_rank: int
    size: int
    comm_id: str = ""
    function: str = ""
    parent: str = ""
    nodes: int | None = None
    local_ranks: int | None = None
    bus_id: str = ""
    nvlink: bool = False


@dataclass(frozen=True, slots=True)
class NcclInitTimings(NcclFact):
    """How long a communicator took to be made. `parts` are seconds by NCCL's own names (kernels, bootstrap,
    topo ...)."""

    function: str
    comm_rank: int
    size: int
    total_seconds: float
    parts: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class NcclGpuDirect(NcclFact):
    """Whether a GPU's memory is reached by the network card itself; `why` as the line says, "" when it does
    not.

    "use ring PXN 0 GDR 0" is logged of any communicator's rings: on one node, or over sockets, it means nothing
    (seen: 0 and 1).
    """

    enabled: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class NcclVerbsError(NcclFact):
    """A call of libibverbs failed: `call` "ibv_reg_mr_iova2"; `errno` where it is given or follows from the
    text."""

    call: str
    error: str
    errno: int | None = None
    device: str = ""
    port: int | None = None
    gid_index: int | None = None
    local_gid: str = ""
    remote_gid: str = ""


@dataclass(frozen=True, slots=True)
class NcclCompletionError(NcclFact):
    """A transfer over RDMA failed: `status` of ibv_wc_status (12 retries exceeded, 5 flushed, 4 protection,
    10 remote access)."""

    peer: str
    status: int
    vendor_error: int | None = None
    device: str = ""


@dataclass(frozen=True, slots=True)
class NcclPortEvent(NcclFact):
    """An asynchronous event of a device: "port error", "port active", "GID table changed" ... `device` ""
    where not given."""

    device: str
    port: int | None
    event: str
    fatal: bool = False


@dataclass(frozen=True, slots=True)
class NcclDuplicateGpu(NcclFact):
    """Two ranks of a communicator on one GPU. NCCL 2.30 and later do not say which: -1, -1 and ""."""

    comm_rank: int
    other_rank: int
    bus_id: str


@dataclass(frozen=True, slots=True)
class NcclPeerLost(NcclFact):
    """A connection between ranks could not be made or broke; `peer` is an address ("" not given)."""

    peer: str
    error: str


@dataclass(frozen=True, slots=True)
class NcclNetDiffers(NcclFact):
    """A peer connects with another network than this process uses: `theirs` and `ours` are "Socket" or "IB"."""

    theirs: str
    ours: str
    peer: str = ""


@dataclass(frozen=True, slots=True)
class NcclRetry(NcclFact):
    """A connection is tried again: `call` "connect" or "ibv_modify_qp", `attempt` 1, 2 ... of `most`; no
    failure yet."""

    call: str
    error: str
    attempt: int
    most: int
    peer: str = ""
    errno: int | None = None


@dataclass(frozen=True, slots=True)
class NcclResult(NcclFact):
    """A line of NCCL's own traceback ("init.cc:126 -> 5"): `code` is ncclResult_t (2 system, 3 internal, 5
    usage, 6 remote)."""

    code: int


@dataclass(frozen=True, slots=True)
class VerbsDriverMissing(Observation):
    """libibverbs itself says (on stderr) that it cannot load the driver of a device: "libmlx5-rdmav34.so"."""

    driver: str
    text: str
