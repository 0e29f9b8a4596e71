"""ib-fallback: each cause from NCCL's lines and from outside of them, what it is worth on this machine, and
when it is silent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from diag.model import Severity
from diag.model.observations import GpuSample, Iteration, NetworkExpected, Observation
from diag.sources.logs.line_facts import read_text
from tests.detectors.netfacts import (
    INFINIBAND,
    SOCKETS,
    access,
    channel,
    environment,
    interfaces,
    nccl,
    port,
    ports,
    told,
    two_nodes,
    warns,
    world,
)
from tests.facts import Story, pid_of

NO_LIBRARY = (
    "Failed to open libibverbs.so[.1]",
    "NET/Socket : Using [0]eth0:192.0.2.2<0>",
    "Using network Socket",
)
QUIET = ("NET/Socket : Using [0]eth0:192.0.2.2<0>", "Using network Socket")  # not a word of RDMA


def fell(*lines: str, rank: int = 0) -> Iterator[Observation]:
    """A rank that came out on sockets with these lines."""
    return nccl(pid_of(rank), *lines, *world(rank), channel(rank, 2, "NET/Socket/0"))


# --- the causes
# ------------------------------------------------------------------------------------------------

LOGGED = [
    ("libibverbs_missing", NO_LIBRARY, ()),
    ("libibverbs_missing", ("Count not open libibverbs.so.1", *QUIET), ()),  # 2.30 spells it so
    ("ib_disabled", ("NCCL_IB_DISABLE set by environment to 1.", *QUIET), ()),
    ("hca_filter", ("NCCL_IB_HCA set to mlx5_bond_7", *SOCKETS), ()),
    ("hca_filter", ("NCCL_IB_HCA set to =mlx5_1", *SOCKETS), (ports(port("mlx5_0")),)),
    ("net_forced", QUIET, ()),
    ("net_forced", QUIET, (environment(0, NCCL_NET="Socket"),)),
    ("net_forced", SOCKETS, (access(0, conf=(("/etc/nccl.conf", "NCCL_NET", "Socket"),)),)),
    ("no_device", SOCKETS, ()),
    ("no_rdma", SOCKETS, (ports(),)),
    ("device_nodes_missing", SOCKETS, (ports(port("mlx5_0")), access(0, nodes=()))),
    ("provider_missing", SOCKETS, (ports(port("mlx5_0")), access(0, providers=("rxe",)))),
    ("port_down", SOCKETS, (ports(port("mlx5_0", 1), port("mlx5_1", 2)), access(0))),
    (
        "efa_plugin_missing",
        SOCKETS,
        (ports(port("rdmap16s27", layer="Unspecified")), access(0, providers=("efa",))),
    ),
    (
        "device_nodes_missing",
        QUIET,
        (ports(port("mlx5_0")), access(0, nodes=()), environment(0, NCCL_IB_DISABLE="true")),
    ),
    ("ib_disabled", QUIET, (environment(0, NCCL_IB_DISABLE="2"),)),
]


@pytest.mark.parametrize(("cause", "lines", "outside"), LOGGED)
def test_cause_is_named_from_the_lines_and_what_is_seen_beside_them(
    cause: str, lines: tuple[str, ...], outside: tuple[Observation, ...]
) -> None:
    found = told(two_nodes(), *outside, *fell(*lines))["ib-fallback"]

    assert (found.cause, found.ranks) == (cause, (0,))
    assert "over TCP sockets (eth0)" in found.summary
    assert found.advice
    assert any("Using network Socket" in item.excerpt for item in found.evidence)


def test_driver_that_libibverbs_itself_misses_is_the_cause() -> None:
    # rdma-core 44 in a soft-RoCE machine whose provider was taken away, on stderr
    line = "libibverbs: Warning: couldn't load driver 'libmlx5-rdmav34.so': libmlx5-rdmav34.so: cannot open shared object file: "

    found = told(two_nodes(), *read_text(line + "No such file or directory", "stderr", 0), *fell(*SOCKETS))[
        "ib-fallback"
    ]

    assert found.cause == "provider_missing"
    assert "libmlx5-rdmav34.so" in found.summary


def test_driver_that_no_device_of_the_node_needs_is_not_the_cause() -> None:
    # rdma-core 44 warns of each driver that it is configured for, and works with the others
    line = "libibverbs: Warning: couldn't load driver 'libmlx4-rdmav34.so': libmlx4-rdmav34.so: cannot open shared object file: "
    unneeded = [*read_text(line + "No such file or directory", "stderr", 0)]

    found = told(two_nodes(), ports(port("mlx5_0")), access(0, nodes=()), *unneeded, *fell(*SOCKETS))[
        "ib-fallback"
    ]

    assert found.cause == "device_nodes_missing"


def test_interface_that_rdma_needs_beside_it_is_the_cause() -> None:
    facts = [
        *warns(pid_of(0), "transport/net_ib/init.cc:300", "NET/IB : No IP interface found."),
        *fell(*SOCKETS),
    ]

    assert told(two_nodes(), *facts)["ib-fallback"].cause == "no_oob_interface"


def test_device_that_may_not_be_opened_is_the_cause() -> None:
    facts = [
        *warns(pid_of(0), "misc/ibvwrap.cc:212", "Call to ibv_open_device failed"),
        *warns(pid_of(0), "transport/net_ib.cc:400", "NET/IB : Unable to open device mlx5_0"),
        *fell(*SOCKETS),
    ]

    assert told(two_nodes(), *facts)["ib-fallback"].cause == "device_open_failed"


def test_filter_that_selects_an_active_port_is_not_the_cause() -> None:
    found = told(two_nodes(), ports(port("mlx5_0")), access(0), *fell("NCCL_IB_HCA set to mlx5", *SOCKETS))[
        "ib-fallback"
    ]

    assert found.cause == "no_device"


# --- how much it matters
# -----------------------------------------------------------------------------------------

WORTH = [
    ((), Severity.WARNING),  # nobody could look: a log replayed elsewhere
    ((ports(),), Severity.INFO),  # no RDMA here: sockets are all there is
    ((ports(port("mlx5_0", 1)),), Severity.WARNING),
    ((ports(port("mlx5_0")),), Severity.CRITICAL),
    ((ports(port("mlx5_0"), port("mlx5_1", 1)),), Severity.CRITICAL),
]


@pytest.mark.parametrize(("outside", "severity"), WORTH)
def test_it_is_as_grave_as_what_lies_unused(outside: tuple[Observation, ...], severity: Severity) -> None:
    assert told(two_nodes(), *outside, *fell(*SOCKETS))["ib-fallback"].severity is severity


def test_setting_beside_active_ports_is_sure_and_names_what_is_unused() -> None:
    disabled = fell("NCCL_IB_DISABLE set by environment to 1.", *QUIET)

    found = told(two_nodes(), ports(port("mlx5_0", rate=50e9)), *disabled)["ib-fallback"]

    assert found.confidence.value == "high"
    assert "unused: mlx5_0:1 InfiniBand 400 Gb/s ACTIVE" in found.summary


PLACES = [
    ("kubernetes", "rdma/"),
    ("docker", "--device=/dev/infiniband"),
    ("slurm", "ConstrainDevices"),
    ("", "modprobe"),
]


def test_cause_is_not_told_before_the_ranks_own_view_is_there() -> None:
    story = two_nodes()

    early = told(story, ports(port("mlx5_0")), *fell(*SOCKETS), wait=2.0)
    found = told(story, access(0, nodes=()), wait=1.0)

    assert early == {}
    assert found["ib-fallback"].cause == "device_nodes_missing"


@pytest.mark.parametrize(("place", "words"), PLACES)
def test_advice_is_for_where_the_rank_runs(place: str, words: str) -> None:
    found = told(two_nodes(), ports(port("mlx5_0")), access(0, nodes=(), container=place), *fell(*SOCKETS))[
        "ib-fallback"
    ]

    assert words in found.advice


def test_all_ranks_that_fell_back_are_named_and_those_with_another_cause_told_apart() -> None:
    facts = [*fell(*SOCKETS, rank=0), *fell("NCCL_IB_DISABLE set by environment to 1.", *QUIET, rank=1)]

    found = told(two_nodes(), ports(port("mlx5_0")), access(0, nodes=()), access(1, nodes=()), *facts)[
        "ib-fallback"
    ]

    assert found.ranks == (0, 1)
    assert "NCCL_IB_DISABLE=1" in found.summary
    assert "/dev/infiniband" in found.summary


# --- when it is silent
# -------------------------------------------------------------------------------------------

ROCE = tuple(line.replace("[0]mlx5_0:1/IB [1]mlx5_1:1/IB", "[0]mlx5_bond_0:1/RoCE") for line in INFINIBAND)
# aws-ofi-nccl on EFA
EFA = ("NET/OFI Selected provider is efa, fabric is efa (found 4 nics)", "Using network AWS Libfabric")
HEALTHY = {
    "infiniband": (*INFINIBAND, *world(0), channel(0, 2, "NET/IB/0/GDRDMA")),
    "roce bond": (*ROCE, *world(0), channel(0, 2, "NET/IB/0/GDRDMA/Shared")),
    "efa": (*EFA, *world(0), channel(0, 2, "NET/AWS Libfabric/0/GDRDMA")),
    "hpc-x": ("NET/IB : No device found.", "Using network IBext_v10", *world(0)),
    "sockets on one node": (
        *SOCKETS,
        *world(0, 2, nodes=1),
        "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
    ),
    "sockets on one node without P2P": (*SOCKETS, *world(0, 2, nodes=1), channel(0, 1, "NET/Socket/0")),
    "no communicator yet": SOCKETS,
    "bootstrap and out-of-band are sockets": ("Bootstrap: Using eth0:192.0.2.2<0>", *INFINIBAND, *world(0)),
}


@pytest.mark.parametrize("lines", HEALTHY.values(), ids=HEALTHY.keys())
def test_healthy_log_raises_nothing(lines: tuple[str, ...]) -> None:
    assert told(two_nodes(), ports(port("mlx5_0")), *nccl(pid_of(0), *lines)) == {}


def test_nodes_that_reach_each_other_over_nvlink_are_not_on_sockets() -> None:
    lines = [line.replace("MNNVL 0", "MNNVL 1") for line in world(0)]

    assert told(two_nodes(), ports(port("mlx5_0")), *nccl(pid_of(0), *SOCKETS, *lines)) == {}


def log_of(nodes: dict[str, str], *, again: str = "") -> Iterator[Observation]:
    """Tensor parallel groups of two within a node and data parallel groups over both, in one log without any
    rank; no communicator of the world. `again`: appended to what tells one attempt from another."""
    for number, (host, net) in enumerate(nodes.items()):
        for local in range(2):
            pid = 500 + local + 100 * len(again)
            yield from nccl(
                pid,
                "NET/Socket : Using [0]eth0:192.0.2.2<0>",
                f"Using network {net}",
                f"ncclCommInitRankConfig comm 0x1 rank {local} nranks 2 cudaDev {local} nvmlDev {local} busId {local}a000 "
                f"commId 0x7{number}{again} - Init START",
                f"comm 0x1 rank {local} nRanks 2 nNodes 1 localRanks 2 localRank {local} MNNVL 0",
                f"Using network {net}",
                f"ncclCommSplit comm 0x2 rank {number} nranks 2 cudaDev {local} nvmlDev {local} busId {local}a000 parent 0x1 "
                f"splitCount 1 color {local} key 0 commId 0x8{local}{again} - Init START",
                f"comm 0x2 rank {number} nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0",
                host=host,
                gpu=local,
            )


def test_log_without_ranks_and_without_a_world_names_hosts_and_no_wrong_rank() -> None:
    story = Story(world=4, nodes=4)

    found = told(story, *log_of({"node-a": "Socket", "node-b": "Socket"}))["ib-fallback"]

    assert found.ranks == ()
    assert found.summary.startswith("4 processes on node-a, node-b send NCCL traffic")


def test_log_without_ranks_tells_mixed_networks() -> None:
    found = told(Story(world=4, nodes=4), *log_of({"node-a": "IB", "node-b": "Socket"}))

    assert "2 processes on node-b: Socket" in found["transport-mismatch"].summary
    assert "ib-fallback" not in found


def test_attempt_that_another_has_replaced_is_not_judged() -> None:
    facts = [
        *log_of({"node-a": "Socket", "node-b": "Socket"}),
        *log_of({"node-a": "IB", "node-b": "IB"}, again="f"),
    ]

    assert told(Story(world=4, nodes=4), *facts) == {}


def test_sockets_of_a_small_communicator_within_a_node_do_not_count() -> None:
    lines = (*INFINIBAND, *world(0), "Using network Socket", *world(0, 2, nodes=1, comm="0x777"))

    assert told(two_nodes(), ports(port("mlx5_0")), *nccl(pid_of(0), *lines)) == {}


def test_sockets_that_are_expected_raise_nothing_and_another_network_does() -> None:
    meant = NetworkExpected(None, ("Socket",))
    other = NetworkExpected(None, ("AWS Libfabric",))

    assert told(two_nodes(), meant, ports(port("mlx5_0")), *fell(*SOCKETS)) == {}
    found = told(two_nodes(), other, *nccl(pid_of(0), *HEALTHY["infiniband"]))["ib-fallback"]
    assert (found.cause, "AWS Libfabric is expected" in found.summary) == ("not_expected", True)


# --- without a word of NCCL
# --------------------------------------------------------------------------------------


def gpu(*pids: int) -> GpuSample:
    return GpuSample(
        None,
        0,
        "GPU-0",
        "0000:00:06.0",
        "H200",
        1.0,
        1 << 30,
        141 << 30,
        120.0,
        700.0,
        None,
        None,
        None,
        pids,
    )


def trains(
    story: Story,
    *,
    seconds: float = 60.0,
    ether: float = 0.0,
    rdma: float = 0.0,
    held: tuple[str, ...] | None = (),
    counted: bool = True,
) -> None:
    """A minute of steps with so many bytes a second on each wire."""
    begin = story.now
    while story.now - begin < seconds:
        past = story.now - begin
        story.tell(
            gpu(pid_of(0), pid_of(1)),
            access(0, held=held),
            access(1, held=held),
            ports(port("mlx5_0", sent=int(rdma * past) if counted else None), at=story.now),
            interfaces(int(ether * past), story.now),
            Iteration(None, 1 + int(past), 0, f"iteration {past:.0f}"),
        )
        story.wait(5)


def test_closed_devices_and_bytes_over_ethernet_tell_the_fallback_without_any_log() -> None:
    story = two_nodes()

    trains(story, ether=900e6)

    found = story.the("ib-fallback")
    assert (found.severity, found.ranks, found.cause) == (Severity.CRITICAL, (0, 1), "unknown")
    assert "858 MiB/s leave this node over sockets" in found.summary
    assert "none of their processes holds an RDMA device open" in found.summary


def test_the_cause_is_found_in_the_environment_without_any_log() -> None:
    story = two_nodes()
    story.tell(environment(0, NCCL_IB_DISABLE="1"), environment(1, NCCL_IB_DISABLE="1"))

    trains(story, ether=900e6)

    assert (story.the("ib-fallback").cause, story.the("ib-fallback").confidence.value) == (
        "ib_disabled",
        "high",
    )


def test_bytes_alone_tell_it_where_open_files_may_not_be_read() -> None:
    story = two_nodes()

    trains(story, ether=900e6, held=None)

    assert "none of their processes" not in story.the("ib-fallback").summary


def test_sockets_over_infiniband_count_as_sockets_though_the_port_counts_them_too() -> None:
    story = two_nodes()
    for second in range(0, 65, 5):  # NCCL prefers ib0 for its sockets
        story.tell(gpu(pid_of(0), pid_of(1)), access(0), access(1))
        story.tell(
            ports(port("mlx5_0", sent=int(1.02e9 * second)), at=story.now),
            interfaces(int(1e9 * second), story.now, "ib0", "infiniband"),
            Iteration(None, 1 + second, 0, "iteration"),
        )
        story.wait(5)

    assert "954 MiB/s leave this node over sockets, 0 B/s over RDMA" in story.the("ib-fallback").summary


QUIET_RUNS = {
    "an RDMA device is held open": {"ether": 900e6, "held": ("uverbs0",)},
    "the bytes go over RDMA": {"ether": 20e6, "rdma": 20e9, "held": None},
    "nothing tells": {"ether": 0.0, "held": None},
    "no counters, and files that may not be read": {"ether": 900e6, "held": None, "counted": False},
}


@pytest.mark.parametrize("how", QUIET_RUNS.values(), ids=QUIET_RUNS.keys())
def test_without_log_nothing_is_said_when(how: dict[str, object]) -> None:
    story = two_nodes()

    trains(story, **how)  # type: ignore[arg-type]

    assert story.findings() == []


def test_job_on_gloo_is_not_blamed_for_sockets() -> None:
    story = two_nodes()
    for number in range(12):
        story.tell(
            access(0),
            access(1),
            ports(port("mlx5_0", sent=0), at=story.now),
            interfaces(int(900e6 * 5 * number), story.now),
            Iteration(None, 1 + number, 0, "iteration"),
        )
        story.wait(5)

    assert story.findings() == []


def test_one_node_needs_no_network() -> None:
    story = Story(world=2)

    trains(story, ether=900e6)

    assert story.findings() == []


def test_ranks_that_cannot_be_looked_into_are_said_to_be_unchecked() -> None:
    story = two_nodes()
    story.tell(access(0, held=None), access(1, held=None), ports(port("mlx5_0")))

    assert any("hold RDMA devices open" in line.what for line in story.engine.not_checked())
