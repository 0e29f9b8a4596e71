"""Jobs that `diag run` watches inside the machine, and what it must find. Read by the machine (to run them)
and by the tests (to judge them), so standard library only.

To add one: an entry of SCENARIOS. To expect more of one: a `Wanted` in `wanted`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.vm.wanted import Wanted

LIBRARY = "/usr/lib/x86_64-linux-gnu/libibverbs.so*"
PROVIDERS = "/usr/lib/x86_64-linux-gnu/libibverbs"
DEVICE_NODES = "/dev/infiniband"

MIB = 1 << 20
NOBODY = 65534


@dataclass(frozen=True, slots=True)
class Rank:
    """How one rank runs, on a "node" of its own.

    `registers`: bytes that it registers with its device (rxe0 of rank 0, rxe1 of rank 1), 0 for a rank that
    does not touch RDMA. `without`: files that its container lacks, None for no container. `memlock`: its
    limit of locked memory in bytes, None for unlimited. `nccl`: the case of tests/captures/nccl/2.28.9 whose
    lines it prints (real NCCL, other devices), or "".
    """

    registers: int = MIB
    without: tuple[str, ...] | None = None
    memlock: int | None = None
    nccl: str = ""


@dataclass(frozen=True, slots=True)
class Scenario:
    """`wanted` must all open, and nothing else of level warning or above.

    `user`: who runs diag and the job; root has CAP_IPC_LOCK. `down`: the cable is cut at rank 0's end
    "before" the job or "during" it, and mended when it has ended.
    """

    name: str
    ranks: tuple[Rank, Rank]
    wanted: tuple[Wanted, ...] = ()
    user: int = 0
    down: str = ""


_FELL_BACK = Rank(registers=0, nccl="no-device")
_ISOLATED = Rank(0, (DEVICE_NODES,), nccl="no-device")


def _fallback(cause: str, ranks: tuple[int, ...] = (0, 1), words: str = "") -> tuple[Wanted, ...]:
    return (Wanted("ib-fallback", cause, ranks, words),)


SCENARIOS = (
    # CAP_IPC_LOCK: rank 0's limit does not hold
    Scenario("healthy", (Rank(16 * MIB, memlock=8 * MIB, nccl="ib-healthy"), Rank(nccl="ib-healthy"))),
    Scenario("no_device_nodes", (_ISOLATED, _ISOLATED), _fallback("device_nodes_missing", words="rxe0:1")),
    Scenario(
        "one_rank_without_device_nodes",
        (Rank(), _ISOLATED),
        _fallback("device_nodes_missing", (1,), "/dev/infiniband"),
    ),
    # libibverbs itself warns on stderr, of each driver that it is configured for
    Scenario(
        "no_drivers",
        (Rank(without=(PROVIDERS,), nccl="no-device"), Rank(without=(PROVIDERS,), nccl="no-device")),
        _fallback("provider_missing", words="librxe-rdmav34.so"),
    ),
    Scenario(
        "no_library",
        (Rank(without=(LIBRARY,), nccl="no-libibverbs"), Rank(without=(LIBRARY,), nccl="no-libibverbs")),
        _fallback("libibverbs_missing"),
    ),
    Scenario(
        "memlock",
        (Rank(16 * MIB, memlock=8 * MIB), Rank(16 * MIB, memlock=0)),
        (Wanted("memlock-limit", "registration_failed", ranks=(0, 1), words="0 B to 8 MiB"),),
        user=NOBODY,
    ),
    Scenario(
        "port_down", (_FELL_BACK, _FELL_BACK), _fallback("port_down", words="rxe0:1 Ethernet"), down="before"
    ),
    Scenario(
        "port_goes_down",
        (Rank(nccl="ib-healthy"), Rank(nccl="ib-healthy")),
        (Wanted("ib-port", "went_down"),),
        down="during",
    ),
)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
