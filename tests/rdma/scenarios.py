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

    `without`: files that its container lacks (() is no container). `memlock`: its limit of locked memory in bytes, None
    unlimited. `user`: its uid; 0 keeps all capabilities, CAP_IPC_LOCK too. `registers`: bytes that it registers with its
    device (rxe0 of rank 0, rxe1 of rank 1), 0 for a rank that does not touch RDMA. `nccl`: the lines of NCCL that it prints,
    "socket" (no RDMA device found, data goes over sockets) or "" for none.
    """

    registers: int = MIB
    without: tuple[str, ...] = ()
    memlock: int | None = None
    user: int = 0
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
    """`down`: the end of the cable (0, 1) that is taken down while the job runs, and comes back at its end. `wanted` must all
    open; any other finding of these `ids` must not."""

    name: str
    ranks: tuple[Rank, Rank]
    wanted: tuple[Wanted, ...] = ()
    down: int | None = None


# Ids of findings about RDMA and networks: in a scenario only those that it wants may open.
IDS = ("ib-fallback", "ib-port", "ib-error", "transport-mismatch", "nccl-init-error", "nccl-no-interface", "memlock-limit")

_FELL_BACK = Rank(registers=0, nccl="socket")

SCENARIOS = (
    Scenario("healthy", (Rank(), Rank())),
    Scenario("no_device_nodes", (Rank(0, (DEVICE_NODES,), nccl="socket"), Rank(0, (DEVICE_NODES,), nccl="socket"))),
    Scenario("no_library", (Rank(without=(LIBRARY,), nccl="socket"), Rank(without=(LIBRARY,), nccl="socket"))),
    Scenario("port_down", (_FELL_BACK, _FELL_BACK), down=0),
    Scenario(
        "memlock",
        (Rank(16 * MIB, user=NOBODY, memlock=8 * MIB), Rank(16 * MIB, user=NOBODY, memlock=0)),
        (Wanted("memlock-limit", ranks=(0, 1)),),
    ),
)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
