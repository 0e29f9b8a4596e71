"""RDMA before the run, over trees of /sys/class/infiniband as real machines show them
(tests/captures/sources/network)."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from diag.launch.launchers.command import read_command
from diag.model.observations import RdmaAccess
from diag.preflight.line import Line
from diag.preflight.plan import LaunchPlan
from diag.preflight.rdma import check_rdma

HAS_ALL = RdmaAccess(
    None, pid=1, device_nodes=("uverbs0",), open_nodes=(), mapped=(), verbs_library=True, ipc_lock=True,
    providers=("bnxt_re", "efa", "irdma", "mlx4", "mlx5", "rxe"),
)  # fmt: skip


def plan(nodes: int = 2, **env: str) -> LaunchPlan:
    words = ("torchrun", "--nnodes", str(nodes), "--master_addr", "a", "t.py")
    return LaunchPlan(read_command(words, env), env, nccl_environment=env, rdma=True)


class Machine:
    def __init__(self, root: Path, devices: Path, modules: Path) -> None:
        self.root, self.devices, self.modules = root, devices, modules
        self.access = HAS_ALL

    def lines(self, nodes: int = 2, **env: str) -> list[Line]:
        return list(check_rdma(plan(nodes, **env), self.root, self.devices, self.access, self.modules))

    def problem(self, **env: str) -> Line:
        (found,) = [line for line in self.lines(**env) if line.status == "problem"]
        return found

    def keep(self, *names: str) -> None:
        for device in self.root.iterdir():
            if device.name not in names:
                shutil.rmtree(device)

    def port(self, device: str, port: int = 1) -> Path:
        return self.root / device / "ports" / str(port)


@pytest.fixture
def machine(tmp_path: Path, captures: Path) -> Machine:
    root = tmp_path / "class" / "infiniband"
    for line in (captures / "sources" / "network" / "infiniband.txt").read_text().splitlines():
        if not line.startswith("#"):
            path, _, text = line.partition(" = ")
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text + "\n")
    devices = tmp_path / "dev"
    devices.mkdir()
    (devices / "uverbs0").touch()
    (tmp_path / "module").mkdir()
    return Machine(root, devices, tmp_path / "module")


def test_good_ports_are_listed(machine: Machine) -> None:
    machine.keep("mlx5_0")

    (line,) = machine.lines()

    assert line.status == "ok" and line.said.startswith("mlx5_0:1 InfiniBand") and "ACTIVE" in line.said


@pytest.mark.parametrize(
    ("nodes", "status", "words"), [(1, "ok", "a job of one node uses none"), (2, "note", "TCP sockets")]
)
def test_machine_without_rdma(machine: Machine, nodes: int, status: str, words: str) -> None:
    machine.keep()

    (line,) = machine.lines(nodes)

    assert line.status == status and words in line.said


def test_sys_that_is_not_there_is_not_checked(machine: Machine, tmp_path: Path) -> None:
    machine.root = tmp_path / "nowhere" / "infiniband"

    assert [line.status for line in machine.lines()] == ["not checked"]


def test_job_of_one_node_is_told_no_trouble(machine: Machine) -> None:
    shutil.rmtree(machine.devices)

    assert [line.status for line in machine.lines(1)] == ["ok"]


@pytest.mark.parametrize(
    ("container", "words"),
    [("kubernetes", "rdma/"), ("docker", "docker run --device=/dev/infiniband"), ("", "modprobe")],
)
def test_devices_that_the_container_was_not_given(machine: Machine, container: str, words: str) -> None:
    machine.keep("mlx5_0")
    shutil.rmtree(machine.devices)
    machine.access = replace(HAS_ALL, container=container)

    found = machine.problem()

    assert found.id == "ib-fallback" and "has none of them" in found.said and words in found.remedy


def test_library_or_driver_missing_in_the_image(machine: Machine) -> None:
    machine.keep("mlx5_0")

    machine.access = replace(HAS_ALL, verbs_library=False)
    assert "libibverbs.so.1 is not in this image" in machine.problem().said
    machine.access = replace(HAS_ALL, providers=("rxe",))
    assert "(mlx5)" in machine.problem().said
    machine.access = replace(HAS_ALL, verbs_library=None, providers=None)
    assert [line.status for line in machine.lines()] == ["not checked"]


@pytest.mark.parametrize("value", ["mlx5_7", "=mlx5", "^mlx5", "mlx5_0:2"])
def test_filter_that_leaves_nothing(machine: Machine, value: str) -> None:
    machine.keep("mlx5_0")

    found = machine.problem(NCCL_IB_HCA=value)

    assert found.id == "ib-fallback" and f"NCCL_IB_HCA={value} leaves none of mlx5_0:1" in found.said


@pytest.mark.parametrize("value", ["mlx5", "=mlx5_0", "mlx5_0:1", "^mlx4", "mlx5_0,mlx5_1"])
def test_filter_that_leaves_something(machine: Machine, value: str) -> None:
    machine.keep("mlx5_0")

    assert [line.status for line in machine.lines(NCCL_IB_HCA=value)] == ["ok"]


def test_port_that_is_not_active(machine: Machine) -> None:
    machine.keep("mlx5_0")
    (machine.port("mlx5_0") / "state").write_text("2: INIT\n")

    found = machine.problem()

    assert found.id == "ib-port" and "no subnet manager" in found.said and found.severity == "critical"


def test_one_port_of_several_is_down(machine: Machine) -> None:
    """Cards have ports without a cable: that is worth a word only, unless NCCL_IB_HCA names the port."""
    machine.keep("mlx5_0", "rxe0")
    (machine.port("mlx5_0") / "state").write_text("1: DOWN\n")

    plain, named = machine.lines(), machine.problem(NCCL_IB_HCA="mlx5_0,rxe0")

    assert "problem" not in {line.status for line in plain} and any(
        "DOWN" in line.said for line in plain if line.status == "note"
    )
    assert named.id == "ib-port" and "NCCL_IB_HCA=mlx5_0,rxe0" in named.said


@pytest.mark.parametrize(
    ("index", "words"), [("0", "is empty"), ("4", "IB/RoCE v1"), ("5", None), ("-1", None), ("", None)]
)
def test_slot_of_the_gid_table(machine: Machine, index: str, words: str | None) -> None:
    """mlx5_bond_0 of the capture has slots 4 to 7: 5 and 7 are RoCE v2."""
    machine.keep("mlx5_bond_0")
    lines = [line for line in machine.lines(NCCL_IB_GID_INDEX=index) if line.status == "problem"]

    assert [line.id for line in lines] == (["ib-fallback"] if words else [])
    assert all(words in line.said and "5, 7" in line.said for line in lines if words)


@pytest.mark.parametrize("env", [{"NCCL_IB_DISABLE": "1"}, {"NCCL_NET": "Socket"}])
def test_rdma_that_is_switched_off_is_not_judged_further(machine: Machine, env: dict[str, str]) -> None:
    shutil.rmtree(machine.devices)

    (line,) = machine.lines(**env)

    assert line.status == "note" and "keeps NCCL from using them" in line.said


def test_kernel_module_for_gpudirect_is_a_note(machine: Machine) -> None:
    machine.keep("mlx5_0")
    (machine.modules / "nvidia").mkdir()

    without = machine.lines()[-1]
    (machine.modules / "nvidia_peermem").mkdir()

    assert (without.what, without.status) == ("GPUDirect RDMA", "note")
    assert machine.lines()[-1].status == "ok"
