"""`diag doctor -- docker run ...`: what docker's own flags give CMD takes the place of what this machine has."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from diag.preflight import Line, interfaces, machine, rdma, storage
from diag.preflight.launch import check_launch
from diag.preflight.launch_facts import launch_facts
from diag.preflight.plan import make_plan

INSIDE = "img swift sft --model m --output_dir /out"


def status(lines: list[Line]) -> list[tuple[str, str]]:
    return [(line.status, line.said) for line in lines]


def run(flags: str, engine: str = "docker") -> list[str]:
    return shlex.split(f"{engine} run --rm -it {flags} {INSIDE}")


@pytest.mark.parametrize(
    ("flags", "expected", "said"),
    [
        ("--shm-size=50G", "ok", "50 GiB (--shm-size=50G)"),
        ("--shm-size 16gb", "ok", "16 GiB"),
        ("", "problem", "64 MiB (docker's default)"),
        ("--shm-size=128m", "problem", "128 MiB (--shm-size=128m)"),
        ("-v /mnt/shm:/dev/shm", "not checked", "a mount"),
        ("--ipc=container:other", "not checked", "--ipc=container:other"),
        ("--shm-size=lots", "not checked", "--shm-size=lots"),
    ],
)
def test_shared_memory_is_that_of_the_container(flags: str, expected: str, said: str) -> None:
    ((found, text),) = status(list(machine.check_shared_memory(launch_facts(run(flags), {}))))

    assert (found, said in text) == (expected, True)


@pytest.mark.parametrize("flags", ["--ipc=host", "-v /dev/shm:/dev/shm"])
def test_shared_memory_of_this_machine_is_looked_at_where_the_container_has_it(
    flags: str, tmp_path: Path
) -> None:
    (line,) = machine.check_shared_memory(launch_facts(run(flags), {}), tmp_path)

    assert line.said.startswith("/dev/shm is ")


@pytest.mark.parametrize(
    ("flags", "files", "memory"),
    [
        ("", "not checked", "not checked"),
        ("--ulimit nofile=1048576:1048576 --ulimit memlock=-1:-1", "ok", "ok"),
        ("--ulimit nofile=1024 --ulimit memlock=65536", "problem", "problem"),
        ("--cap-add IPC_LOCK", "not checked", "ok"),
        ("--privileged", "not checked", "ok"),
        ("--ulimit nofile=many --ulimit memlock=some", "not checked", "not checked"),
    ],
)
def test_limits_are_those_of_ulimit(flags: str, files: str, memory: str) -> None:
    assert [line.status for line in machine.check_open_files(launch_facts(run(flags), {}))] == [files]
    assert [line.status for line in machine.check_locked_memory(launch_facts(run(flags), {}))] == [memory]


def test_limit_of_processes_and_memory() -> None:
    (line,) = machine.check_processes(launch_facts(run("--pids-limit 100"), {}))
    assert line.status == "problem" and "docker run --pids-limit=100" in line.said
    (line,) = machine.check_processes(launch_facts(run("--pids-limit -1"), {}))
    assert "--pids-limit" not in line.said
    assert "docker run --memory=100g" in " ".join(
        line.said for line in machine.check_host_memory(launch_facts(run("-m 100g"), {}))
    )


TWO = "-e NNODES=2 -e NODE_RANK=1 -e NPROC_PER_NODE=8 -e MASTER_ADDR=192.0.2.10"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (f"-p 29500:29500 {TWO}", "problem"),
        (f"--network bridge {TWO}", "problem"),
        (f"--network=ours {TWO}", "not checked"),
        ("-e NPROC_PER_NODE=8", "not checked"),  # the image may have NNODES
        ("-e NNODES=1", "ok"),
    ],
)
def test_network_of_the_container_is_not_that_of_this_machine(flags: str, expected: str) -> None:
    plan = make_plan(run(flags), {}, 0.0)

    assert [line.status for line in interfaces.check_nccl_interface(plan)] == [expected]
    assert not list(interfaces.check_gloo_interface(plan))


def test_network_of_the_host_is_judged_as_without_a_container() -> None:
    inside = make_plan(run(f"--network=host {TWO}"), {}, 0.0)
    outside = make_plan(["swift", "sft"], {"NNODES": "2", "MASTER_ADDR": "192.0.2.10"}, 0.0)

    assert [line.said for line in interfaces.check_nccl_interface(inside, lambda plan: "")] == [
        line.said for line in interfaces.check_nccl_interface(outside, lambda plan: "")
    ]


@pytest.mark.parametrize(
    ("flags", "expected"), [(TWO, "problem"), (f"--device=/dev/infiniband {TWO}", "not checked")]
)
def test_rdma_devices_have_to_be_handed_on(flags: str, expected: str, tmp_path: Path) -> None:
    port = tmp_path / "mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    (port / "link_layer").write_text("InfiniBand\n")
    (port / "rate").write_text("400 Gb/sec (4X NDR)\n")

    lines = list(rdma.check_rdma(make_plan(run(flags), {}, 0.0), tmp_path))

    assert [line.status for line in lines] == [expected]


@pytest.mark.parametrize(
    ("flags", "gpus", "expected"),
    [
        ("--gpus all -e NPROC_PER_NODE=8", 8, "ok"),
        ("--gpus 4 -e NPROC_PER_NODE=8", 8, "problem"),
        ("--gpus '\"device=0,1\"' -e NPROC_PER_NODE=2", 8, "ok"),
        ("--gpus device=GPU-1 -e NPROC_PER_NODE=2", 8, "problem"),
        ("-e NPROC_PER_NODE=8", 8, "not checked"),
    ],
)
def test_ranks_are_held_against_the_devices_of_the_container(flags: str, gpus: int, expected: str) -> None:
    here = tuple(f"GPU-{number}" for number in range(gpus))
    facts = launch_facts(run(f"-e NNODES=1 {flags}"), {}, here)

    statuses = {line.status for line in check_launch(facts)}
    assert expected in statuses and not statuses & {"problem", "not checked"} - {expected}


def test_folders_inside_the_container_are_not_looked_for_here() -> None:
    for check in (storage.check_disk, storage.check_caches):
        assert [line.status for line in check(launch_facts(run(""), {}))] == ["not checked"]


def test_variables_of_this_shell_do_not_reach_the_container() -> None:
    facts = launch_facts(run("-e NNODES=1 -e NCCL_DEBUG=INFO"), {"NCCL_SOCKET_IFNAME": "eth7"})

    assert facts.environment == {"NNODES": "1", "NCCL_DEBUG": "INFO"}


def test_nccl_conf_of_this_machine_is_not_that_of_the_container(tmp_path: Path) -> None:
    conf = tmp_path / "nccl.conf"
    conf.write_text("NCCL_DEBUG=INFO\n")
    env = {"NCCL_CONF_FILE": str(conf)}

    assert make_plan(["swift", "sft"], env, 0.0).environment["NCCL_DEBUG"] == "INFO"
    assert "NCCL_DEBUG" not in make_plan(run("-e NCCL_CONF_FILE"), env, 0.0).environment
