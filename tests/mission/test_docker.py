"""Docker on two machines: `docker run -p 29500:29500` on each, MASTER_ADDR left as the guide had it, and a job that
waits."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from diag.preflight import Line, interfaces, left_open, machine, rendezvous
from diag.preflight.container_flags import check_container, corrected
from diag.preflight.launch_facts import launch_facts
from diag.preflight.plan import make_plan
from tests.mission.cases import Case

IMAGE = "hub.example/modelscope:ubuntu22.04-cuda12.6.3-py311-torch2.7.1-swift3.7.1"
INNER = "cd /app && swift sft --model /models/Qwen-72B --dataset /datasets/a.jsonl --output_dir /out"


def docker(*flags: str, inner: str = INNER, engine: str = "docker") -> list[str]:
    words = [word for text in flags for word in shlex.split(text)]
    return [engine, "run", "--rm", "-it", *words, IMAGE, "bash", "-c", inner]


def variables(**changes: str) -> str:
    env = {
        "NNODES": "2",
        "NODE_RANK": "0",
        "MASTER_ADDR": "192.0.2.10",
        "MASTER_PORT": "29500",
        "NPROC_PER_NODE": "8",
    }
    return " ".join(f"-e {name}={value}" for name, value in {**env, **changes}.items())


def judged(command: Sequence[str], folder: Path, root: Path | None = None) -> list[Line]:
    """What the checks say that go by docker's line; the machine has no docker of its own to ask."""
    facts = launch_facts(command, {}, folder=folder)
    plan = make_plan(command, {}, 0.0)
    return [
        *machine.check_shared_memory(facts),
        *machine.check_locked_memory(facts),
        *check_container(facts, folder, folder / "no-gpus", root or folder),
        *left_open.check_left_open(facts),
        *interfaces.check_nccl_interface(plan),
        *rendezvous.check_rendezvous(plan),
    ]


def problems(lines: Sequence[Line]) -> list[str]:
    return [line.said for line in lines if line.status == "problem"]


def whole_line(command: Sequence[str], lines: Sequence[Line]) -> str:
    container = launch_facts(command, {}).container
    assert container is not None
    return corrected(container, lines)


GUIDE = docker(
    "--gpus all -p 29500:29500 --shm-size=50G",
    "-v xxx/ms-swift:/app -v xxx/models:/models",
    variables(MASTER_ADDR="主节点宿主机IP"),
    inner="cd /app && /bin/bash examples/train/node1_moe.sh",
)
SECOND = docker(
    "--gpus all --shm-size=50G", variables(MASTER_ADDR="主节点宿主机IP", NODE_RANK="1"), inner=f"{INNER} ..."
)


def said(command: Sequence[str], folder: Path = Path("/nonexistent")) -> list[str]:
    lines = judged(command, folder)
    texts = [f"{line.status}: {line.said} -> {line.remedy}" for line in lines if line.status != "ok"]
    return [*texts, " ".join(whole_line(command, lines).split())]


CASES = {
    "the guide's line": Case(
        (6, 8), "two machines, `docker run -p 29500:29500` on each, MASTER_ADDR as the guide has it: node 0",
        "diag doctor -- docker run ...", lambda: said(GUIDE),
        (
            "docker's own bridge network, in which its address is known only on this host; -p 29500:29500 forwards single ports",
            "主节点宿主机IP (MASTER_ADDR) is a placeholder and no host's name: the 2 nodes cannot meet",
            "neither an absolute path nor a volume's name (xxx/ms-swift, xxx/models)",
            "docker run --rm -it --network=host --gpus all --shm-size=50G",
        ),
        unproven="two machines with a docker daemon each; two containers on two network namespaces are",
    ),
    "node 1, and dots": Case(
        (6, 12), "the second machine's line, which ends with the example's `...`",
        "diag doctor -- docker run ...", lambda: said(SECOND),
        ("`...` in CMD stands for what was left out of an example", "2 nodes, and docker run without --network=host"),
    ),
    "overlay": Case(
        (6,), "two machines in a swarm's overlay network", "diag doctor -- docker run ...",
        lambda: said(docker("--network=train", variables())), ("--attachable", "4789/udp", "not checked: "),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_person_is_told(name: str) -> None:
    CASES[name].check()


def test_corrected_line_of_the_guide_leaves_the_command_in_the_image_as_it_is(tmp_path: Path) -> None:
    lines = judged(GUIDE, tmp_path)

    assert len(problems(lines)) == 3
    whole = shlex.split(whole_line(GUIDE, lines).replace("\\\n", ""))
    assert "--network=host" in whole and "-p" not in whole[: whole.index(IMAGE)]
    assert whole[whole.index(IMAGE) :] == GUIDE[GUIDE.index(IMAGE) :]


def test_address_of_node_0_is_filled_in_on_node_0_alone(tmp_path: Path) -> None:
    first, second = (
        docker("--shm-size=50G", variables(MASTER_ADDR="<node0>", NODE_RANK=rank)) for rank in "01"
    )

    mine = interfaces.own_address(make_plan(first, {}, 0.0))

    assert mine and f"MASTER_ADDR={mine}" in whole_line(first, judged(first, tmp_path))
    assert "'MASTER_ADDR=<node0>'" in whole_line(second, judged(second, tmp_path))


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("192.168.1.x", True), ("xxx.xxx.xxx.xxx", True), ("主节点IP", True), ("your-master-ip", True), ("{MASTER}", True),
        ("192.168.1.10", False), ("gpu-x1", False), ("fd00::10", False), ("node0.example", False), ("xeon-3", False),
    ],
)  # fmt: skip
def test_placeholder_is_known_by_what_no_hosts_name_has(address: str, expected: bool) -> None:
    assert rendezvous.is_placeholder(address) is expected


def test_every_option_that_is_missing_comes_into_the_one_line(tmp_path: Path) -> None:
    (tmp_path / "no-gpus" / "0000:01:00.0").mkdir(parents=True)
    command = docker("--device=/dev/infiniband", variables())

    lines = judged(command, tmp_path)

    whole = whole_line(command, lines)
    for option in ("--network=host", "--gpus=all", "--shm-size=16g", "--ulimit=memlock=-1"):
        assert option in whole
    assert problems(judged(shlex.split(whole.replace("\\\n", "")), tmp_path)) == problems(
        [line for line in lines if not line.adds]
    )


def test_line_that_has_all_of_it_is_left_alone(tmp_path: Path) -> None:
    for name in ("models", "datasets", "ms-swift"):
        (tmp_path / name).mkdir()
    mine = interfaces.own_address(make_plan([], {}, 0.0))
    command = docker(
        "--gpus all --network=host --shm-size=50G --ulimit memlock=-1 --device=/dev/infiniband",
        f"-v {tmp_path}/ms-swift:/app -v {tmp_path}/models:/models -v {tmp_path}/datasets:/datasets -v {tmp_path}/new:/out",
        variables(MASTER_ADDR=mine or "192.0.2.10"),
    )

    lines = judged(command, tmp_path)

    assert problems(lines) == [] and whole_line(command, lines) == ""
    assert [line.status for line in lines if line.what == "container"] == ["note"]  # /out is made


@pytest.mark.parametrize(
    ("flags", "engine", "key"),
    [
        ("-v /path/to/models:/models", "docker", "docker makes an empty folder of it, and CMD finds nothing below /models"),
        ("-v ./models:/models", "docker", "docker makes an empty folder"),
        ("-v /path/to/models:/models", "podman", "podman does not start without it"),
        ("--mount type=bind,source=/path/to/models,target=/models", "docker", "docker does not start without it"),
        ("--env-file job.env", "docker", "--env-file job.env cannot be read here"),
        ("-v ~/models:/models", "docker", "neither an absolute path nor a volume's name"),
    ],
)  # fmt: skip
def test_folders_and_files_that_are_not_here(flags: str, engine: str, key: str, tmp_path: Path) -> None:
    command = docker(flags, "--shm-size=50G -e NNODES=1", engine=engine)

    (said,) = problems(judged(command, tmp_path))

    assert key in said


@pytest.mark.parametrize("flags", ["-v models:/models", "-v /models", "-v $PWD/models:/models"])
def test_volumes_and_what_the_shell_fills_in_are_left_alone(flags: str, tmp_path: Path) -> None:
    facts = launch_facts(docker(flags), {})

    assert list(check_container(facts, tmp_path, tmp_path / "gpus", tmp_path)) == []


@pytest.mark.parametrize("how", ["DOCKER_HOST", "container", "--context=gpu7"])
def test_folders_of_another_machine_are_not_looked_for_here(how: str, tmp_path: Path) -> None:
    env = {"DOCKER_HOST": "tcp://gpu7:2375"} if how == "DOCKER_HOST" else {}
    if how == "container":
        (tmp_path / ".dockerenv").touch()
    command = docker("-v /path/to/m:/models")
    command[1:1] = [how] if how.startswith("--") else []

    lines = list(check_container(launch_facts(command, env), tmp_path, tmp_path, tmp_path))

    assert [line.status for line in lines] == ["not checked"]


def test_what_the_daemon_gives_by_itself_is_read(tmp_path: Path) -> None:
    (tmp_path / "etc/docker").mkdir(parents=True)
    (tmp_path / "gpus/0000:01:00.0").mkdir(parents=True)
    settings = {
        "default-runtime": "nvidia",
        "default-shm-size": "32G",
        "default-ulimits": {"memlock": {"Name": "memlock", "Soft": -1, "Hard": -1}},
    }
    (tmp_path / "etc/docker/daemon.json").write_text(json.dumps(settings))
    facts = launch_facts(docker("--device=/dev/infiniband"), {})
    assert facts.container is not None

    from diag.preflight.container import limit_line, shm_lines

    assert list(check_container(facts, tmp_path, tmp_path / "gpus", tmp_path)) == []
    assert [line.status for line in shm_lines(facts.container, tmp_path)] == ["ok"]
    assert limit_line(facts.container, "memlock", tmp_path).status == "ok"
    assert limit_line(facts.container, "memlock", tmp_path / "elsewhere").status == "problem"


def test_dots_and_paths_of_an_example_are_named(tmp_path: Path) -> None:
    command = ["swift", "sft", "--model", "/path/to/Qwen-72B", "--train_type", "lora", "..."]

    dots, path = (line.said for line in left_open.check_left_open(launch_facts(command, {})))

    assert "`...` in CMD stands for what was left out" in dots
    assert path.startswith("/path/to/Qwen-72B is the path of an example")
    (tmp_path / "xxx").mkdir()
    here = ["swift", "sft", "--model", str(tmp_path / "xxx"), "--system", "Use <image> ... or not"]
    assert list(left_open.check_left_open(launch_facts(here, {}))) == []


@pytest.mark.parametrize(
    ("flags", "address", "said"),
    [
        ("--network=host", "172.17.0.2", "docker's default bridge (172.17.0.0/16)"),
        ("--network=host", "192.0.2.10", ""),
    ],
)
def test_address_of_dockers_bridge_is_no_place_to_meet(
    flags: str, address: str, said: str, tmp_path: Path
) -> None:
    plan = make_plan(docker(flags, variables(MASTER_ADDR=address, NODE_RANK="1")), {}, 0.0)

    found = interfaces.bridge_of(plan, (address,))

    assert found == said or (said and found.startswith("docker0"))


def test_overlay_of_a_swarm_is_not_checked_and_told_what_it_takes(tmp_path: Path) -> None:
    plan = make_plan(docker("--network=train", variables()), {}, 0.0)

    (line,) = interfaces.check_nccl_interface(plan)

    assert line.status == "not checked"
    assert "--attachable" in line.said and "4789/udp" in line.said and "NCCL_SOCKET_IFNAME" in line.remedy


COMPOSE = """
services:
  trainer:
    image: my/swift:3.7.1
    ports: ["29500:29500"]
    environment: {NNODES: 2, NODE_RANK: "${RANK_OF_NODE:-1}", MASTER_ADDR: 192.0.2.10, NPROC_PER_NODE: 8}
    ulimits: {nofile: {soft: 65536, hard: 65536}}
    deploy: {resources: {reservations: {devices: [{driver: nvidia, device_ids: ["0", "1"], capabilities: [gpu]}]}}}
    command: bash -c "cd /app && swift sft --model /models/Qwen"
  cache: {image: redis}
"""


@pytest.mark.parametrize(
    "words", ["docker compose up -d", "docker-compose -f compose.yaml up trainer", "sudo docker compose up"]
)
def test_service_of_a_compose_file_is_judged_as_the_line_that_it_amounts_to(
    words: str, tmp_path: Path
) -> None:
    (tmp_path / "compose.yaml").write_text(COMPOSE)
    facts = launch_facts(words.split(), {}, tuple(f"GPU-{at}" for at in range(8)), folder=tmp_path)
    container = facts.container
    assert container is not None and facts.launch is not None

    network = interfaces.network_line(container, facts.nodes, facts.unsure)
    lines = [network, *machine.check_shared_memory(facts)]

    assert (facts.nodes, facts.meeting.node_rank, facts.launch.processes) == (2, 1, 8)
    assert facts.gpus == ("GPU-0", "GPU-1") and dict(container.ulimits or {})["nofile"] == "65536:65536"
    assert network.status == "problem" and "-p 29500:29500" in network.said
    assert corrected(container, lines) == "services:\n  trainer:\n    network_mode: host\n    shm_size: 16g"


def test_compose_file_of_several_trainings_has_to_be_told_which(tmp_path: Path) -> None:
    two = "services: {a: {image: i, command: torchrun --nnodes 2 t.py}, b: {image: i, command: torchrun --nnodes 2 t.py}}"
    (tmp_path / "docker-compose.yml").write_text(two)

    unknown = launch_facts(["docker", "compose", "up"], {}, folder=tmp_path)
    one = launch_facts(["docker", "compose", "up", "b"], {}, folder=tmp_path)
    gone = launch_facts(["docker", "compose", "-f", "other.yaml", "up"], {}, folder=tmp_path)

    assert "which service trains is not known (there are: a, b)" in unknown.unread
    assert one.nodes == 2 and one.container is not None
    assert (
        interfaces.network_line(one.container, 2, "").status == "not checked"
    )  # they meet in its own network
    assert "cannot read other.yaml" in gone.unread


@pytest.mark.parametrize(
    "text",
    [
        "services: [1]",
        "a: b",
        "- x",
        "services: {a: {command: [1], networks: 3, ulimits: 4, deploy: 5}}",
        "{",
    ],
)
def test_compose_file_of_any_kind_is_read_without_an_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text(text)

    facts = launch_facts(["docker", "compose", "up", "a"], {}, folder=tmp_path)

    assert facts.unread or (facts.container is not None and facts.nodes is None)


def test_name_in_the_containers_own_network_is_not_looked_up_here() -> None:
    plan = make_plan(docker("--network=train", variables(MASTER_ADDR="trainer0", NODE_RANK="1")), {}, 0.0)

    (line,) = rendezvous.check_rendezvous(plan)

    assert line.status == "not checked" and "only docker resolves" in line.said


def test_script_that_cannot_be_read_leaves_the_number_of_nodes_to_docker(tmp_path: Path) -> None:
    several = launch_facts(docker("-v code:/app", variables(), inner="cd /app && bash run.sh"), {})
    one = launch_facts(docker(variables(NNODES="1"), inner="bash run.sh"), {})

    assert several.nodes == 2 and "what `-v code:/app` mounts" in several.unread
    assert one.nodes is None  # the script may say otherwise, and one node would be called ok


def doctor(*words: str) -> str:
    line = [sys.executable, "-m", "diag", "doctor", "--no-load", *words]
    return subprocess.run(line, capture_output=True, text=True, check=False).stdout


def test_report_as_a_person_sees_it() -> None:
    command = docker("--gpus all -p 29500:29500", variables())

    rows = doctor("--", *command).splitlines()
    document = json.loads(doctor("--json", "--", *command))

    fine = [check["what"] for check in document["checks"] if check["status"] == "ok"]
    assert [row for row in rows if row.startswith("ok ")] == [
        f"ok          {len(fine)} checks: {', '.join(dict.fromkeys(fine))} (-v shows what each looked at)"
    ]
    assert rows[0].startswith("problem ") and rows[-1].split(":")[0].endswith("problems")
    whole = rows[rows.index("All of it in one piece:") + 1 : -2]
    assert "\n".join(whole) == document["corrected"] and whole[0].startswith("docker run --rm -it")
