"""Jobs that `diag run` watches inside the machine, and what it must find. Read by the machine (to run them) and by the tests
(to judge them), so standard library only.

To add one: an entry of SCENARIOS. To expect more of one: a `Wanted` in `wanted`.
"""

from __future__ import annotations

from dataclasses import dataclass

LIBRARY = "/usr/lib/x86_64-linux-gnu/libibverbs.so*"
PROVIDERS = "/usr/lib/x86_64-linux-gnu/libibverbs"
DEVICE_NODES = "/dev/infiniband"

MIB = 1 << 20
NOBODY = 65534


@dataclass(frozen=True, slots=True)
class Rank:
    """How one rank runs, on a "node" of its own.

    `registers`: bytes that it registers with its device (rxe0 of rank 0, rxe1 of rank 1), 0 for a rank that does not touch
    RDMA. `without`: files that its container lacks, None for no container. `memlock`: its limit of locked memory in bytes, None
    for unlimited. `nccl`: the lines of NCCL that it prints, "socket" (no RDMA device found, data goes over sockets) or "".
    """

    registers: int = MIB
    without: tuple[str, ...] | None = None
    memlock: int | None = None
    nccl: str = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A finding that must open: its id, and where they are given its cause, culprit ranks and words of its summary."""

    id: str
    cause: str | None = None
    ranks: tuple[int, ...] | None = None
    words: str = ""


@dataclass(frozen=True, slots=True)
class Scenario:
    """`wanted` must all open, and nothing else of level warning or above.

    `user`: who runs diag and the job; root has CAP_IPC_LOCK. `down`: the cable is cut at rank 0's end "before" the job or
    "during" it, and mended when it has ended.
    """

    name: str
    ranks: tuple[Rank, Rank]
    wanted: tuple[Wanted, ...] = ()
    user: int = 0
    down: str = ""


_FELL_BACK = Rank(registers=0, nccl="socket")

SCENARIOS = (
    # CAP_IPC_LOCK: rank 0's limit does not hold
    Scenario("healthy", (Rank(16 * MIB, memlock=8 * MIB), Rank())),
    Scenario("no_device_nodes", (Rank(0, (DEVICE_NODES,), nccl="socket"), Rank(0, (DEVICE_NODES,), nccl="socket"))),
    Scenario("one_rank_without_device_nodes", (Rank(), Rank(0, (DEVICE_NODES,), nccl="socket"))),
    # libibverbs itself warns on stderr, of each driver that it is configured for
    Scenario("no_drivers", (Rank(without=(PROVIDERS,), nccl="socket"), Rank(without=(PROVIDERS,), nccl="socket"))),
    Scenario("no_library", (Rank(without=(LIBRARY,), nccl="socket"), Rank(without=(LIBRARY,), nccl="socket"))),
    Scenario(
        "memlock",
        (Rank(16 * MIB, memlock=8 * MIB), Rank(16 * MIB, memlock=0)),
        (Wanted("memlock-limit", "registration_failed", ranks=(0, 1)),),
        user=NOBODY,
    ),
    Scenario("port_down", (_FELL_BACK, _FELL_BACK), down="before"),
    Scenario("port_goes_down", (Rank(), Rank()), down="during"),
)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
