"""The node's networks from readings to what is told of them: bytes a second, metrics, the lines of a dump,
the watch itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diag.agent.samplers.devices import NetworkSampler
from diag.agent.samplers.sampler import Reporter
from diag.detectors.relations import Precedence
from diag.engine.engine import Engine
from diag.model import Record
from diag.model.observations import (
    Interface,
    InterfacesSeen,
    Observation,
    RdmaAccess,
    RdmaPort,
    RdmaPortsSeen,
)
from diag.outputs.prometheus.samples import network_samples
from diag.outputs.view.network_view import network_json
from diag.sources.network.infiniband import InfinibandReader
from diag.sources.network.interfaces import InterfacesReader
from diag.sources.parsers import PARSERS
from diag.state.network import NetworkState
from diag.state.traffic import Traffic, recent
from tests.facts import Story, pid_of

GB = 10**9


def port(
    sent: int | None = None,
    received: int | None = None,
    *,
    device: str = "mlx5_0",
    state: int | None = 4,
    layer: str = "InfiniBand",
    **counters: int,
) -> RdmaPort:
    data = {"port_xmit_data": sent, "port_rcv_data": received}
    told = {name: value for name, value in data.items() if value is not None} | counters
    return RdmaPort(device, 1, state, "LinkUp", 50e9, layer, tuple(told.items()))


def ports(at: float, *listed: RdmaPort) -> RdmaPortsSeen:
    return RdmaPortsSeen(None, listed, at)


def net(at: float, **bytes_of: tuple[int, int]) -> InterfacesSeen:
    def one(name: str, received: int, sent: int) -> Interface:
        kind = "loopback" if name == "lo" else "infiniband" if name.startswith("ib") else "ethernet"
        return Interface(name, True, kind, (), received, sent, None, name not in ("lo", "bond0", "docker0"))

    return InterfacesSeen(None, tuple(one(name, *both) for name, both in bytes_of.items()), at)


def over_ten_seconds(before: tuple[Observation, ...], after: tuple[Observation, ...]) -> Traffic:
    state = NetworkState()
    for at, facts in ((100.0, before), (110.0, after)):
        for fact in facts:
            assert isinstance(fact, (RdmaPortsSeen, InterfacesSeen))
            state.observe(at, fact)
    told = recent(state, 0.0)
    assert told is not None and told.seconds == 10
    return told


# --- where the bytes go
# --------------------------------------------------------------------------------------


def test_bytes_of_rdma_and_of_sockets_are_told_apart() -> None:
    told = over_ten_seconds(
        (ports(1, port(0, 0), port(5, 5, device="mlx5_1")), net(1, eth0=(0, 0), lo=(0, 0), bond0=(0, 0))),
        (
            ports(2, port(100 * GB, 80 * GB), port(5, 5, device="mlx5_1")),
            net(2, eth0=(GB, 2 * GB), lo=(GB, GB), bond0=(GB, GB)),
        ),
    )

    assert (told.rdma_sent, told.rdma_received) == (10e9, 8e9)
    assert (told.socket_sent, told.socket_received) == (0.2e9, 0.1e9)
    assert (told.rdma, told.sockets) == (18e9, pytest.approx(0.3e9))


def test_sockets_over_infiniband_are_no_rdma() -> None:
    # given NCCL on sockets over ib0, which it prefers: the port's counter moves as it would with RDMA, by 1.8
    # % more
    told = over_ten_seconds(
        (ports(1, port(0, 0)), net(1, ib0=(0, 0), eth0=(0, 0))),
        (ports(2, port(101_800_000_000, 100 * GB)), net(2, ib0=(99 * GB, 100 * GB), eth0=(0, 0))),
    )

    assert (told.rdma_sent, told.rdma_received) == (0.0, 0.0)
    assert told.socket_sent == 10e9


def test_rdma_beside_sockets_over_infiniband_is_seen() -> None:
    told = over_ten_seconds(
        (ports(1, port(0, 0)), net(1, ib0=(0, 0))),
        (ports(2, port(100 * GB, 100 * GB)), net(2, ib0=(GB, GB))),
    )

    assert told.rdma_sent == 9.9e9


def test_driver_that_counts_packets_only_gives_no_bytes() -> None:
    # given soft-RoCE, whose bytes are those of the interface under it
    told = over_ten_seconds(
        (ports(1, port(device="rxe0", layer="Ethernet", sent_pkts=0, rcvd_pkts=0)), net(1, d0=(0, 0))),
        (ports(2, port(device="rxe0", layer="Ethernet", sent_pkts=500, rcvd_pkts=300)), net(2, d0=(10, 20))),
    )

    assert (told.rdma, told.rdma_packets, told.socket_sent) == (None, 80.0, 2.0)


def test_bytes_of_efa_are_those_of_its_own_counters() -> None:
    told = over_ten_seconds(
        (ports(1, port(device="rdmap0s6", tx_bytes=10, rx_bytes=10)),),
        (ports(2, port(device="rdmap0s6", tx_bytes=110, rx_bytes=60)),),
    )

    assert (told.rdma_sent, told.rdma_received, told.sockets) == (10.0, 5.0, None)


def test_node_without_rdma_moves_nothing_over_it_and_one_not_looked_at_is_not_known() -> None:
    none = over_ten_seconds((ports(1), net(1, eth0=(0, 0))), (ports(2), net(2, eth0=(0, 10))))
    unseen = over_ten_seconds((net(1, eth0=(0, 0)),), (net(2, eth0=(0, 10)),))

    assert (none.rdma, none.sockets) == (0.0, 1.0)
    assert (unseen.rdma, unseen.sockets) == (None, 1.0)


def test_counters_that_began_anew_and_ports_that_came_say_nothing() -> None:
    told = over_ten_seconds(
        (ports(1, port(100, 100)), net(1, eth0=(100, 100))),
        (ports(2, port(5, 5), port(900, 900, device="mlx5_1")), net(2, eth0=(5, 5), eth1=(900, 900))),
    )

    assert (told.rdma, told.sockets) == (None, None)


def test_two_readings_are_needed_for_a_rate() -> None:
    state = NetworkState()
    assert recent(state, 0.0) is None
    state.observe(1.0, ports(1.0, port(0, 0)))
    assert recent(state, 0.0) is None
    state.observe(11.0, ports(11.0, port(10, 0)))

    assert recent(state, 0.0) is not None
    assert recent(state, 5.0) is None  # of the time asked for there is one


def test_first_previous_and_last_readings_are_kept() -> None:
    state = NetworkState()
    for at in range(100):
        state.observe(float(at), ports(float(at)))

    assert state.ports.first is not None and state.ports.last is not None
    assert [state.ports.first[0], state.ports.last[0]] == [0, 99]
    assert len(state.ports.latest) == 31


# --- outputs
# -------------------------------------------------------------------------------------------------


def samples(engine: Engine) -> dict[tuple[str, ...], float]:
    return {
        (name, *map(str, labels)): value
        for name, labels, value in network_samples(engine.job)
        if value is not None
    }


def test_metrics_tell_ports_and_bytes_by_transport() -> None:
    story = Story([])
    down = port(device="mlx5_1", state=1, link_downed=3)
    story.tell(ports(1, port(100, 200, link_downed=0), down), net(1, eth0=(5, 6), ib0=(7, 8), lo=(1, 1)))

    told = samples(story.engine)

    assert told["diag_ib_port_up", "mlx5_0", "1"] == 1 and told["diag_ib_port_up", "mlx5_1", "1"] == 0
    assert told["diag_ib_link_downed_total", "mlx5_1", "1"] == 3
    assert told["diag_ib_port_rate_bytes_per_second", "mlx5_0", "1"] == 50e9
    assert told["diag_net_transmit_bytes_total", "mlx5_0", "ib"] == 100
    assert told["diag_net_receive_bytes_total", "eth0", "eth"] == 5
    assert told["diag_net_transmit_bytes_total", "ib0", "ipoib"] == 8
    assert not [key for key in told if "lo" in key or key[:2] == ("diag_net_transmit_bytes_total", "mlx5_1")]


def access(rank: int, **changed: Any) -> RdmaAccess:
    facts: dict[str, Any] = {
        "device_nodes": ("uverbs0", "uverbs1"),
        "open_nodes": ("uverbs0",),
        "mapped": ("libibverbs",),
        "verbs_library": True,
        "providers": ("mlx5",),
        "ipc_lock": True,
        "container": "kubernetes",
    }
    return RdmaAccess(rank, pid_of(rank), **{**facts, **changed})


def test_dump_says_in_a_line_what_the_node_has_and_which_ranks_use_it() -> None:
    story = Story([], world=4)
    story.tell(ports(1, port(0, 0), port(device="mlx5_1", state=1)), net(1, eth0=(0, 0)))
    story.tell(access(0), access(1), access(2, open_nodes=()), access(3, device_nodes=(), open_nodes=()))
    story.wait(10)
    story.tell(ports(2, port(100 * GB, 90 * GB), port(device="mlx5_1", state=1)), net(2, eth0=(10**7, 10**4)))

    told = network_json(story.engine)

    assert told["text"] == [
        "network: 1 of 2 RDMA ports active (up to 400 Gbit/s), not mlx5_1:1; last 10 s: RDMA 9.31 GiB/s sent, 8.38 GiB/s received; "
        "sockets 1000 B/s sent, 977 KiB/s received",
        "network of ranks 0-1: holds uverbs0 open",
        "network of rank 2: holds none of uverbs0, uverbs1 open",
    ]
    json.dumps(told)


def test_dump_says_nothing_of_networks_that_nobody_looked_at() -> None:
    assert network_json(Story([]).engine)["text"] == []


def test_access_of_an_earlier_process_of_a_rank_is_not_its_own() -> None:
    story = Story([])
    story.tell(RdmaAccess(0, 4242, ("uverbs0",), (), (), True, (), True))

    assert story.engine.job.ranks[0].rdma is None


# --- the watch
# -----------------------------------------------------------------------------------------------


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_watch_reads_this_node_and_its_records_are_understood() -> None:
    told: list[Record] = []
    watch = NetworkSampler(Reporter(told.append, "here"), lambda: None, every_seconds=0.05)
    watch.start()
    until(lambda: len(told) >= 4)
    watch.stop()

    engine = Engine(PARSERS, [], Precedence())
    for number, record in enumerate(told[:4]):
        engine.feed(Record.from_json(json.loads(json.dumps(record.to_json())) | {"at": 1e9 + number}))
    assert not engine.job.sources.unparsed and not engine.job.sources.failed
    assert engine.job.network.interfaces.last is not None and engine.job.network.ports.last is not None


def test_watch_goes_by_a_living_rank_and_outlives_its_end() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    told: list[Record] = []
    watch = NetworkSampler(Reporter(told.append, "here"), lambda: child.pid, every_seconds=0.02)
    watch.start()
    until(lambda: len(told) >= 4)
    child.kill()
    child.wait()
    count = len(told)
    until(lambda: len(told) >= count + 6)
    watch.stop()

    assert {record.source for record in told} == {"infiniband", "interfaces"}


def test_port_that_holds_up_its_reader_holds_up_nobody_else(tmp_path: Path) -> None:
    # given a file of a port that blocks whoever opens it
    folder = tmp_path / "class/infiniband/mlx5_0/ports/1"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "state")
    told: list[Record] = []
    watch = NetworkSampler(
        Reporter(told.append, "here"), lambda: None, ports=InfinibandReader(tmp_path / "class/infiniband")
    )
    watch.start()
    until(lambda: any(thread.name == "networks" for thread in threading.enumerate()))

    began = time.monotonic()
    watch.wake()
    watch.stop()

    assert time.monotonic() - began < 1.0 and not told
    (stuck,) = [thread for thread in threading.enumerate() if thread.name == "networks"]
    assert stuck.daemon  # it ends with diag
    with open(folder / "state", "w") as file:  # let it go
        file.write("4: ACTIVE\n")
    stuck.join(20.0)
    assert not stuck.is_alive()


def test_what_cannot_be_looked_at_is_said_once_and_taken_back(tmp_path: Path) -> None:
    told: list[Record] = []
    root = tmp_path / "class/infiniband"
    watch = NetworkSampler(
        Reporter(told.append, "here"),
        lambda: None,
        every_seconds=0.02,
        ports=InfinibandReader(root),
        net=InterfacesReader(proc=tmp_path),
    )
    watch.start()
    until(lambda: len(told) >= 2)
    root.mkdir(parents=True)
    until(lambda: any(record.source == "infiniband" for record in told))
    watch.stop()

    engine = Engine(PARSERS, [], Precedence())
    for number, record in enumerate(told[:2]):
        engine.feed(Record(record.source, record.payload, at=1e9 + number))
    assert {line.what: line.reason for line in engine.job.not_checked()} == {
        "RDMA ports": f"{root} is not visible: /sys is not mounted",
        "network interfaces": f"{tmp_path} shows no network",
    }
    events = [record.payload["event"] for record in told if record.source == "run"]
    assert events == ["failed", "failed", "works"]
