"""Trees of /sys/class/infiniband as real machines show them; files that fail are real files of this kernel
that fail so."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.model import Record
from diag.model.observations import RdmaGid, RdmaPort, RdmaPortsSeen, Unparsed
from diag.sources.network.infiniband import InfinibandReader, parse
from diag.text.errors import SourceUnavailable

HERE = Path("/sys/class/infiniband")


@pytest.fixture
def root(tmp_path: Path, captures: Path) -> Path:
    """All devices of the capture."""
    made = tmp_path / "class" / "infiniband"
    for line in (captures / "sources" / "network" / "infiniband.txt").read_text().splitlines():
        if not line.startswith("#"):
            path, _, text = line.partition(" = ")
            (made / path).parent.mkdir(parents=True, exist_ok=True)
            (made / path).write_text(text + "\n")
    return made


@pytest.fixture
def mlx5(root: Path) -> Path:
    """A machine with one mlx5 port, its folder."""
    for device in root.iterdir():
        if device.name != "mlx5_0":
            shutil.rmtree(device)
    return root / "mlx5_0" / "ports" / "1"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def seen(reader: InfinibandReader) -> RdmaPortsSeen:
    (found,) = parse(Record("infiniband", reader.sample(), at=5.0, emitted=4.5))
    assert isinstance(found, RdmaPortsSeen)
    return found


def port_of(reader: InfinibandReader) -> RdmaPort:
    (port,) = seen(reader).ports
    return port


def failing(file: str, number: int) -> Path:
    """A file of this kernel that cannot be read for that reason."""
    try:
        Path(file).read_bytes()
    except OSError as error:
        if error.errno == number:
            return Path(file)
    pytest.skip(f"{file} does not fail with {errno.errorcode[number]} here")


def put_link(file: Path, target: Path) -> None:
    file.unlink(missing_ok=True)
    file.symlink_to(target)


def test_ports_of_all_devices_are_told_with_state_rate_and_layer(root: Path) -> None:
    found = seen(InfinibandReader(root))

    told = {(port.device, port.port): port for port in found.ports}
    assert sorted(told) == [
        ("hfi1_0", 1),
        ("mlx4_0", 1),
        ("mlx4_0", 2),
        ("mlx5_0", 1),
        ("mlx5_bond_0", 1),
        ("rdmap0s6", 1),
        ("rxe0", 1),
    ]
    assert all(port.active and port.state == 4 for port in found.ports)
    assert told["hfi1_0", 1].rate_bytes_per_second == 12.5e9
    assert told["mlx4_0", 2].rate_bytes_per_second == 5e9
    assert (told["mlx5_bond_0", 1].link_layer, told["rdmap0s6", 1].link_layer) == ("Ethernet", "Unknown")
    assert told["rxe0", 1].physical_state == "LinkUp"
    assert found.emitted == 4.5


def test_data_counters_are_in_bytes_and_no_other(root: Path) -> None:
    told = {(port.device, port.port): dict(port.counters) for port in seen(InfinibandReader(root)).ports}

    assert told["mlx5_0", 1]["port_xmit_data"] == 4 * 2880761508848
    assert told["mlx4_0", 1]["port_rcv_data"] == 4 * 2221223609
    assert told["mlx4_0", 1]["port_xmit_packets"] == 85734114
    assert told["rdmap0s6", 1]["tx_bytes"] == 8472920000  # EFA counts bytes itself


def test_counters_of_the_driver_are_there_where_ib_core_has_none(root: Path) -> None:
    told = {port.device: dict(port.counters) for port in seen(InfinibandReader(root)).ports}

    assert told["rxe0"]["link_downed"] == 0 and told["rxe0"]["sent_pkts"] == 0
    assert told["mlx5_0"]["local_ack_timeout_err"] == 131
    assert all("lifespan" not in counters for counters in told.values())  # milliseconds, counts nothing


def test_counters_of_the_device_stand_in_where_its_only_port_has_none(root: Path) -> None:
    # given EFA of an older kernel (CentOS: /sys/class/infiniband/efa_0/hw_counters/tx_pkts)
    device = root / "rdmap0s6"
    (device / "ports/1/hw_counters").rename(device / "hw_counters")

    told = {port.device: dict(port.counters) for port in seen(InfinibandReader(root)).ports}

    assert told["rdmap0s6"]["tx_bytes"] == 8472920000


def test_only_slots_in_use_of_the_gid_table_are_told(root: Path) -> None:
    told = {port.device: port.gids for port in seen(InfinibandReader(root)).ports}

    assert told["rxe0"] == (
        RdmaGid(0, "fe80:0000:0000:0000:9cc3:3bff:fe4a:1517", "RoCE v2", "d0"),
        RdmaGid(1, "0000:0000:0000:0000:0000:ffff:0a01:0001", "RoCE v2", "d0"),
    )
    assert [(gid.index, gid.kind, gid.interface) for gid in told["mlx5_bond_0"]] == [
        (4, "IB/RoCE v1", "net1"),
        (5, "RoCE v2", "net1"),
        (6, "IB/RoCE v1", "net1"),
        (7, "RoCE v2", "net1"),
    ]


def test_gids_are_read_seldom(root: Path) -> None:
    clock = Clock()
    reader = InfinibandReader(root, clock)
    shutil.rmtree(root / "mlx5_bond_0")
    first = {port.device: port.gids for port in seen(reader).ports}

    (root / "rxe0/ports/1/gids/2").write_text("0000:0000:0000:0000:0000:ffff:0a01:0002\n")
    clock.now += 10
    soon = {port.device: port.gids for port in seen(reader).ports}
    clock.now += 300
    later = {port.device: port.gids for port in seen(reader).ports}

    assert soon == first
    assert later["rxe0"][2] == RdmaGid(2, "0000:0000:0000:0000:0000:ffff:0a01:0002", "", "")


def test_port_that_is_down_is_told_with_what_it_is_doing(mlx5: Path) -> None:
    (mlx5 / "state").write_text("1: DOWN\n")
    (mlx5 / "phys_state").write_text("3: Disabled\n")

    port = port_of(InfinibandReader(mlx5.parents[2]))

    assert (port.state, port.active, port.physical_state) == (1, False, "Disabled")


def test_counter_that_the_driver_refused_is_never_asked_again(mlx5: Path) -> None:
    # given mlx5 of a restricted PF: EINVAL, and each further question would be a line in the kernel log
    put_link(mlx5 / "counters/symbol_error", failing("/sys/class/net/lo/speed", errno.EINVAL))
    clock = Clock()
    reader = InfinibandReader(mlx5.parents[2], clock)
    assert "symbol_error" not in dict(port_of(reader).counters)

    # when the file would answer now
    put_link(mlx5 / "counters/symbol_error", mlx5 / "counters/link_downed")
    clock.now += 1e6

    # then nobody has looked
    assert "symbol_error" not in dict(port_of(reader).counters)
    assert "symbol_error" in dict(port_of(InfinibandReader(mlx5.parents[2])).counters)


def test_port_whose_driver_refuses_its_state_is_asked_for_nothing_that_asks_the_same(mlx5: Path) -> None:
    put_link(mlx5 / "state", failing("/sys/class/net/lo/speed", errno.EINVAL))

    payload = InfinibandReader(mlx5.parents[2]).sample()
    (found,) = parse(Record("infiniband", payload))

    assert "rate" not in payload["devices"]["mlx5_0"]["1"]
    assert isinstance(found, RdmaPortsSeen)
    assert (found.ports[0].state, found.ports[0].active, found.ports[0].rate_bytes_per_second) == (
        None,
        False,
        None,
    )


def test_card_that_is_being_reset_is_looked_at_again_later(mlx5: Path) -> None:
    state = (mlx5 / "state").read_text()
    put_link(mlx5 / "state", failing("/proc/self/mem", errno.EIO))
    clock = Clock()
    reader = InfinibandReader(mlx5.parents[2], clock)
    assert port_of(reader).state is None

    (mlx5 / "state").unlink()
    (mlx5 / "state").write_text(state)
    clock.now += 60
    soon = port_of(reader).state
    clock.now += 300

    assert (soon, port_of(reader).state) == (None, 4)


def test_counter_that_a_virtual_function_does_not_have_is_no_zero(mlx5: Path) -> None:
    (mlx5 / "counters/port_xmit_data").write_text("N/A (no PMA)\n")
    reader = InfinibandReader(mlx5.parents[2])
    assert "port_xmit_data" not in dict(port_of(reader).counters)

    (mlx5 / "counters/port_xmit_data").write_text("17\n")

    assert "port_xmit_data" not in dict(port_of(reader).counters)


def test_counter_that_stopped_at_its_end_is_no_count(mlx5: Path) -> None:
    (mlx5 / "counters/port_xmit_data").write_text("4294967295\n")

    assert "port_xmit_data" not in dict(port_of(InfinibandReader(mlx5.parents[2])).counters)


def test_device_that_left_is_gone_and_starts_anew_when_it_is_back(mlx5: Path, tmp_path: Path) -> None:
    device = mlx5.parents[1]
    put_link(mlx5 / "counters/symbol_error", failing("/sys/class/net/lo/speed", errno.EINVAL))
    reader = InfinibandReader(device.parent)
    seen(reader)

    device.rename(tmp_path / "away")
    assert seen(reader).ports == ()
    put_link(tmp_path / "away/ports/1/counters/symbol_error", tmp_path / "away/ports/1/counters/link_downed")
    (tmp_path / "away").rename(device)
    put_link(mlx5 / "counters/symbol_error", mlx5 / "counters/link_downed")

    assert "symbol_error" in dict(port_of(reader).counters)


def test_machine_without_rdma_is_known_to_have_none(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()

    assert seen(InfinibandReader(tmp_path / "class" / "infiniband")).ports == ()


def test_machine_whose_sys_is_not_mounted_is_not_said_to_have_none(tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailable) as failed:
        InfinibandReader(tmp_path / "class" / "infiniband").sample()

    assert "not mounted" in failed.value.reason and failed.value.remedy


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_folder_that_may_not_be_read_is_not_said_to_be_empty(root: Path) -> None:
    code = (
        "import os, sys\nfrom pathlib import Path\n"
        "from diag.sources.network.infiniband import InfinibandReader\nfrom diag.text.errors import SourceUnavailable\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: print(InfinibandReader(Path(sys.argv[1])).sample())\nexcept SourceUnavailable as error: print(error.reason)"
    )
    root.chmod(0o700)

    answer = subprocess.run([sys.executable, "-c", code, root], capture_output=True, text=True, check=True)

    assert answer.stdout.strip().endswith("cannot be read: Permission denied")


def test_this_machine_is_read_as_its_files_are() -> None:
    found = seen(InfinibandReader())

    ports = {(port.parents[1].name, int(port.name)) for port in HERE.glob("*/ports/*")}
    assert {(port.device, port.port) for port in found.ports} == ports
    for port in found.ports:
        text = (HERE / port.device / "ports" / str(port.port) / "state").read_text()
        assert port.state == int(text.partition(":")[0])


def test_reading_eight_ports_is_cheap(mlx5: Path) -> None:
    device = mlx5.parents[1]
    for number in range(1, 8):
        shutil.copytree(device, device.with_name(f"mlx5_{number}"))
    reader = InfinibandReader(device.parent)
    seen(reader)

    def spent() -> Iterator[float]:
        for _ in range(5):
            began = time.thread_time()
            reader.sample()
            yield time.thread_time() - began

    assert min(spent()) < 0.05  # 3 ms here; a driver's own time comes to it


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
FILES = ("state", "phys_state", "rate", "link_layer", "counters", "hw_counters", "gids")
PORTS = st.dictionaries(
    st.sampled_from("12x"), st.fixed_dictionaries({}, optional=dict.fromkeys(FILES, JSON)) | JSON
)


@settings(deadline=None, max_examples=100)
@given(JSON | st.fixed_dictionaries({"devices": st.dictionaries(st.text(), PORTS | JSON)}))
def test_parse_raises_for_nothing(payload: Any) -> None:
    for found in parse(Record("infiniband", payload)):
        assert isinstance(found, (RdmaPortsSeen, Unparsed))
