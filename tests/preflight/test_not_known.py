"""What is not known is not called ok: each check in worlds in which what it goes by is missing, unreadable or
undetermined."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from diag.model.observations import GpuSample
from diag.preflight import (
    Line,
    container_flags,
    gpus,
    interfaces,
    launch,
    left_open,
    leftovers,
    machine,
    manifest,
    network,
    rdma,
    rendezvous,
    storage,
)
from diag.preflight import network as network_checks
from diag.preflight.checks import CHECKS
from diag.preflight.launch_facts import LaunchFacts, launch_facts
from diag.preflight.manifest.reading import read_text
from diag.preflight.plan import LaunchPlan, make_plan
from diag.preflight.software import check_software
from diag.text.errors import SourceUnavailable
from tests.preflight.test_manifest import RIGHT, changed, lines_of

# These read limits of their own process from the kernel, which always answers.
ALWAYS_KNOWN = {machine.check_open_files, machine.check_ulimits}

# CMDs of which the number of nodes and ranks is not known, each with the words that say why.
DOCKER = "docker run --network=host -e GLOO_SOCKET_IFNAME=lo image swift sft --model m"
UNKNOWN = {
    "a script that is not there": (["bash", "gone.sh"], "could not be read"),
    "a script without a training": (["bash", "-c", "make train"], "could not be read"),
    "another machine or container": (["ssh", "gpu2", "swift", "sft", "--model", "m"], "could not be read"),
    "an image that may hold more": (DOCKER.split(), "image may set it"),
    "a program that may start ranks": (["mpirun", "-np", "16", "python", "t.py", "--x"], "may start ranks by itself"),
    "computed by the shell": (["bash", "-c", "export NNODES=$(wc -l < hosts)\nswift sft --model m"], "NNODES"),
    "computed, with a pipe": (["bash", "-c", 'export NNODES="$(cat hosts | wc -l)"\nswift sft --model m'], "NNODES"),
    "no value here": (["bash", "-c", "torchrun --nnodes $NODES_OF_JOB --nproc_per_node 8 t.py --x"], "$NODES_OF_JOB"),
    "from another file": (["bash", "-c", "source ./cluster.env\nswift sft --model m"], "source ./cluster.env"),
    "under a condition": (["bash", "-c", "A=1\nif a; then\n NNODES=2\nfi\nNNODES=$NNODES swift sft --model m"], "NNODES"),
    "after a test": (["bash", "-c", "[ -f many ] && export NNODES=2\nswift sft --model m"], "NNODES"),
    "tasks of srun": (["srun", "-n", "16", "python", "t.py", "--x"], "Slurm chooses the nodes"),
}  # fmt: skip
OF_NODES = (
    launch.check_launch,
    interfaces.check_nccl_interface,
    interfaces.check_gloo_interface,
    rdma.check_rdma,
    rendezvous.check_rendezvous,
)


def of(command: Sequence[str] = (), **env: str) -> LaunchFacts:
    return launch_facts(command, env)


def plan(command: list[str], **env: str) -> LaunchPlan:
    return make_plan(command, env, 0.0)


def of_nodes(check: Callable[..., Iterable[Line]], command: list[str]) -> list[Line]:
    return list(
        check(of(command)) if check is launch.check_launch else check(plan(command, GLOO_SOCKET_IFNAME="lo"))
    )


@pytest.mark.parametrize("check", OF_NODES)
@pytest.mark.parametrize("world", sorted(UNKNOWN))
def test_nothing_between_nodes_is_ok_where_their_number_is_not_known(
    world: str, check: Callable[..., Iterable[Line]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NNODES", "NODES_OF_JOB", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"):
        monkeypatch.delenv(name, raising=False)
    command, _ = UNKNOWN[world]

    lines = of_nodes(check, command)

    assert lines and {line.status for line in lines} <= {"not checked", "note"}


@pytest.mark.parametrize("world", sorted(UNKNOWN))
def test_report_says_why_the_number_of_nodes_is_not_known(world: str) -> None:
    command, why = UNKNOWN[world]

    said = " ".join(line.said for line in launch.check_launch(of(command)))

    assert plan(command).nodes is None
    assert why in f"{plan(command).unsure} {said}"


@pytest.mark.parametrize("check", OF_NODES[:-1])  # without CMD there is nothing to meet at
def test_nothing_between_nodes_is_ok_without_a_command(check: Callable[..., Iterable[Line]]) -> None:
    assert {line.status for line in of_nodes(check, [])} <= {"not checked", "note"}


UNREAD = ["bash", "gone.sh"]
SOURCED = ["bash", "-c", "source ./cluster.env\nswift sft --model m"]


def of_disk(*command: str) -> Iterator[Line]:
    return (line for line in storage.check_disk(of(command)))


def no_nvml() -> tuple[tuple[()], SourceUnavailable]:
    return (), SourceUnavailable("no NVML library", "")


def silent_gpu() -> tuple[tuple[GpuSample, ...], None]:
    return (GpuSample(None, 0, "GPU-a", "0000:01:00.0", "H100", *[None] * 7),), None


# Check -> worlds in which what it goes by is not to be had; beside those of the number of nodes.
WORLDS: dict[Callable[..., Iterable[Line]], tuple[Callable[[], Iterable[Line]], ...]] = {
    machine.check_shared_memory: (lambda: machine.check_shared_memory(of(), Path("/nonexistent/shm")),),
    machine.check_locked_memory: (),  # its own test below: it needs a limit
    machine.check_host_memory: (),  # with /proc hidden, below
    machine.check_processes: (
        lambda: machine.check_processes(of(UNREAD)),
        lambda: machine.check_processes(of()),
    ),
    storage.check_disk: (
        of_disk,
        lambda: of_disk(*UNREAD),
        lambda: of_disk("python", "t.py", "--lr", "1"),
        lambda: of_disk("bash", "-c", "torchrun t.py --output_dir $WHERE/out"),
        lambda: of_disk("bash", "-c", "OUT=$(mktemp -d)\ntorchrun t.py --output_dir $OUT"),
    ),
    storage.check_caches: (
        lambda: storage.check_caches(of(UNREAD, HOME="/")),
        lambda: storage.check_caches(of(SOURCED, HOME="/")),
    ),
    leftovers.check_leftovers: (lambda: leftovers.check_leftovers(of(), Path("/nonexistent/proc")),),
    leftovers.check_shm_files: (lambda: leftovers.check_shm_files(of(), "/nonexistent/shm"),),
    container_flags.check_container: (
        lambda: container_flags.check_container(
            of(["docker", "run", "-v", "/a:/b", "image", "swift", "sft", "--model", "m"])
        ),
    ),
    left_open.check_left_open: (lambda: left_open.check_left_open(of(UNREAD)),),
    network_checks.check_environment: (
        lambda: network_checks.check_environment(plan(UNREAD)),
        lambda: network_checks.check_environment(plan(SOURCED)),
    ),
    check_software: (
        lambda: check_software([], {}, loads=False),
        lambda: check_software(UNREAD, {}, loads=False),
        lambda: check_software(["docker", "run", "image", "swift", "sft"], {}, loads=False),
    ),
}
NEED_A_DEVICE = {gpus.check_gpus, gpus.check_npus, machine.check_stacks}  # tests of their own below


def test_every_check_has_a_world_in_which_it_knows_nothing() -> None:
    registered = {*CHECKS, *network.CHECKS, check_software}

    assert registered == {*WORLDS, *OF_NODES, *ALWAYS_KNOWN, *NEED_A_DEVICE}


@pytest.mark.parametrize(
    "world", [world for worlds in WORLDS.values() for world in worlds],
    ids=[f"{check.__name__}-{at}" for check, worlds in WORLDS.items() for at, _ in enumerate(worlds)],
)  # fmt: skip
def test_no_line_says_ok_of_what_is_not_known(world: Callable[[], Iterable[Line]]) -> None:
    assert [line for line in world() if line.status == "ok"] == []


@pytest.mark.parametrize(
    ("looked", "said"),
    [(no_nvml, "no NVML library"), (lambda: ((), None), "NVML shows no GPU")],
    ids=["no NVML", "no GPU"],
)
def test_gpus_that_nobody_sees(looked: object, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_look", looked)

    assert [(line.status, line.said) for line in gpus.check_gpus(of())] == [("not checked", said)]


def test_gpu_of_which_nothing_but_its_name_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_look", silent_gpu)

    lines = list(gpus.check_gpus(of()))

    assert [line.said for line in lines if line.status == "not checked"] == [
        "bad rows, NVLinks and ECC of GPU 0: not reported by NVML", "memory in use of GPU 0: not reported by NVML"]  # fmt: skip


@pytest.mark.parametrize("asked", [(None, ""), (None, "npu-smi did not answer within 5 s"), (0, "")])
def test_npus_that_nobody_sees(
    asked: tuple[int | None, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "davinci0").touch()
    monkeypatch.setattr(gpus, "_asked", lambda: asked)

    assert [line.status for line in gpus.check_npus(of(), tmp_path)] in (["not checked"], ["problem"])


def test_stacks_that_neither_reader_can_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class Blind:
        reason, remedy = "ptrace is not permitted", "--cap-add SYS_PTRACE"

        def dump(self, *_: object) -> dict[str, str]:
            return {"failed": "no"}

        def can_read(self, *_: object) -> Blind:
            return self

    monkeypatch.setattr(machine, "RemoteStacks", Blind)
    monkeypatch.setattr(machine, "PySpy", Blind)

    assert [line.status for line in machine.check_stacks(of())] == ["problem"]


def test_right_to_lock_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine.resource, "getrlimit", lambda _: (64 << 20, 64 << 20))
    (tmp_path / "devices").mkdir()
    (tmp_path / "kernel/mlx5_0").mkdir(parents=True)
    rights: dict[str, object] = {"cap_eff": None, "uid_map": None}
    monkeypatch.setattr(machine, "lock_rights", lambda _: rights)

    def status(devices: str, kernel: str) -> str:
        (line,) = machine.check_locked_memory(of(), tmp_path / devices, tmp_path / kernel)
        return line.status

    assert status("none", "no/kernel") == "not checked"  # sysfs is not there
    assert status("no/dev", "none") == "not checked"
    # the kernel has one, and this container does not (yet)
    assert status("devices", "kernel") == "not checked"
    (tmp_path / "devices/uverbs0").touch()
    assert status("devices", "kernel") == "not checked"  # the capabilities cannot be read
    assert status("none", "none") == "ok"  # there is none, and that is known


HIDDEN = """
import json, sys
from diag.preflight.checks import CHECKS
from diag.preflight.launch_facts import launch_facts
names, facts = sys.argv[1:], launch_facts(["python", "t.py"], {})
print(json.dumps([[line.what, line.status] for check in CHECKS if check.__name__ in names for line in check(facts)]))
"""


def test_nothing_that_proc_tells_is_ok_where_proc_is_hidden() -> None:
    names = ("check_host_memory", "check_processes", "check_leftovers")
    words = [sys.executable, "-c", HIDDEN, *names]
    hidden = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        'mount -t tmpfs none /proc && exec "$@"',
        "sh",
    ]
    if subprocess.run([*hidden, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no right to mount over /proc")

    done = subprocess.run([*hidden, *words], capture_output=True, text=True, check=True)
    open_ = subprocess.run(words, capture_output=True, text=True, check=True)

    assert '"ok"' not in done.stdout and done.stdout.count("not checked") == 3, done.stdout
    assert open_.stdout.count('"ok"') == 3, open_.stdout


@pytest.mark.parametrize(
    "changes",
    [
        [("megatron rlhf", "bash /opt/train.sh")],
        [("megatron rlhf", "source /opt/cluster.env\n          megatron rlhf")],
        [("megatron rlhf", "NNODES=$(wc -l < /etc/hosts) megatron rlhf")],
        [("megatron rlhf", "export MASTER_ADDR=$(getent hosts dpo-0.dpo)\n          megatron rlhf")],
        [("megatron rlhf", "mpirun -np 4 ./train")],
    ],
    ids=["script of the image", "another file", "computed nodes", "computed address", "opaque"],
)
def test_no_manifest_is_ok_of_which_something_is_not_known(changes: list[tuple[str, str]]) -> None:
    assert "ok" not in {line.status for line in lines_of(changed(*changes))}


def test_no_check_of_manifests_says_ok_by_itself() -> None:
    """Only the last line of a job does, where nothing else is said and nothing is unknown."""
    manifests = manifest.Manifests.of(read_text(RIGHT, "job.yaml")[0])

    assert [line for check in manifest.CHECKS for line in check(manifests) if line.status == "ok"] == []


def test_rdma_that_is_there_is_ok_only_where_all_of_it_was_looked_at(tmp_path: Path) -> None:
    two = replace(plan(["torchrun", "--nnodes", "2", "--master_addr", "127.0.0.1", "t.py"]), rdma=True)
    port = tmp_path / "mlx5_0/ports/1"
    port.mkdir(parents=True)
    for name, text in (("state", "4: ACTIVE"), ("link_layer", "InfiniBand"), ("rate", "400 Gb/sec (4X NDR)")):
        (port / name).write_text(text + "\n")
    (tmp_path / "dev").write_text("no directory")

    lines = list(rdma.check_rdma(two, tmp_path, tmp_path / "dev", None, tmp_path / "modules"))

    assert "ok" not in {line.status for line in lines}
