"""Pods by `podman kube play`, each gone with the test that made it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.pods import image

# runc: crun refuses hybrid cgroups. The limits: podman's own defaults may be above those of who runs the
# tests.
_CONF = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
# Podman sets up no network of its own: the pods have loopback only, and their own name in /etc/hosts.
_PLAY = ("kube", "play", "--network", "none")


class Podman:
    """With a storage of its own below build/pods."""

    def __init__(self) -> None:
        image.BUILD.mkdir(parents=True, exist_ok=True)
        (image.BUILD / "containers.conf").write_text(_CONF)
        self._env = {
            **os.environ,
            "CONTAINERS_CONF": str(image.BUILD / "containers.conf"),
            "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",
        }
        # The calls run in build/pods: podman's monitor leaves a file `oom` in its working directory.
        places = ("--root", str(image.BUILD / "storage"), "--runroot", str(image.BUILD / "run"))
        self._words = ["podman", "--runtime", "runc", *places]
        self.image = f"localhost/diag-pods:{image.name()}"

    def __call__(self, *words: str, check: bool = True, seconds: float = 60.0) -> str:
        """Its stdout and stderr together. Raises AssertionError with them."""
        done = subprocess.run(
            [*self._words, *words],
            cwd=image.BUILD,
            env=self._env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            errors="replace",
            timeout=seconds,
            check=False,
        )
        assert not check or done.returncode == 0, (
            f"podman {' '.join(words)}: {done.returncode}\n{done.stdout[-3000:]}"
        )
        return done.stdout

    def output(self, *words: str, seconds: float = 60.0) -> tuple[int, str]:
        """Exit code and stdout alone."""
        done = subprocess.run(
            [*self._words, *words],
            cwd=image.BUILD,
            env=self._env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=seconds,
            check=False,
        )
        return done.returncode, done.stdout

    def load(self) -> None:
        if (
            subprocess.run(
                [*self._words, "image", "exists", self.image], env=self._env, check=False
            ).returncode
            != 0
        ):
            self(
                "import",
                "--change",
                "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                str(image.tar()),
                self.image,
                seconds=300,
            )

    def clean(self) -> None:
        """What a killed run of the tests left."""
        self("pod", "rm", "--force", "--all", check=False)
        self("rm", "--force", "--all", check=False)


@dataclass
class Box:
    """One container of a pod. `python` are the words behind the interpreter's name."""

    name: str
    python: Sequence[str]
    user: int = 0
    add: Sequence[str] = ()
    memory: str = ""
    env: dict[str, str] = field(default_factory=dict)

    def manifest(self, image_name: str, out: Path) -> dict[str, Any]:
        places = [*image.mounts(), out]
        env = {
            "PYTHONPATH": str(image.REPOSITORY),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "NO_COLOR": "1",
            "LC_ALL": "C.UTF-8",
            **self.env,
        }
        return {
            "name": self.name,
            "image": image_name,
            "command": [sys.executable, *self.python],
            "env": [{"name": name, "value": value} for name, value in env.items()],
            "securityContext": {
                "runAsUser": self.user,
                **({"capabilities": {"add": list(self.add)}} if self.add else {}),
            },
            **({"resources": {"limits": {"memory": self.memory}}} if self.memory else {}),
            "volumeMounts": [
                {"name": f"place{number}", "mountPath": str(place), "readOnly": place != out}
                for number, place in enumerate(places)
            ],
        }


class Pod:
    """A pod that was started. Its containers are called NAME-CONTAINER."""

    def __init__(self, podman: Podman, name: str, boxes: Sequence[Box], folder: Path) -> None:
        self.podman, self.name, self.out = podman, name, make_out(folder)
        places = [*image.mounts(), self.out]
        self._file = folder / f"{name}.yaml"
        self._file.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {"name": name},
                    "spec": {
                        "restartPolicy": "Never",
                        "shareProcessNamespace": True,
                        "containers": [box.manifest(podman.image, self.out) for box in boxes],
                        "volumes": [
                            {"name": f"place{number}", "hostPath": {"path": str(place)}}
                            for number, place in enumerate(places)
                        ],
                    },
                }
            )
        )
        podman(*_PLAY, str(self._file))

    def logs(self, box: str) -> str:
        return self.podman("logs", f"{self.name}-{box}", check=False)

    def printed(self, box: str) -> str:
        """stdout alone."""
        return self.podman.output("logs", f"{self.name}-{box}")[1]

    def facts(self, box: str) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads(self.podman("inspect", f"{self.name}-{box}"))[0]["State"]
        return facts

    def ended(self, box: str) -> int | None:
        """Its exit code, None while it runs."""
        facts = self.facts(box)
        return None if facts["Running"] else int(facts["ExitCode"])

    def until(self, condition: Callable[[], Any], seconds: float, box: str = "diag") -> Any:
        """Wait for a condition (0 is an exit code); AssertionError with the end of the container's log when
        it does not come."""
        return until(condition, seconds, lambda: f"{box} says:\n{self.logs(box)[-4000:]}")

    def run_dir(self) -> Path:
        """Of `diag watch`, as it is called in there and here."""
        return next(self.out.glob("runs/*/run.json")).parent

    def dump(self, ranks: int = 2) -> dict[str, Any]:
        """`diag dump` in the container of diag, as soon as it has `ranks` and misses nothing of them."""
        return dump(self.podman, f"{self.name}-diag", self.run_dir(), ranks, self.until)

    def end(self) -> None:
        self.podman("pod", "rm", "--force", "--time", "0", self.name, check=False)


class Container:
    """One without a pod."""

    def __init__(self, podman: Podman, name: str) -> None:
        self.podman, self.name = podman, name

    def logs(self) -> str:
        return self.podman("logs", self.name, check=False)

    def printed(self) -> str:
        return self.podman.output("logs", self.name)[1]

    def ended(self) -> int | None:
        facts = json.loads(self.podman("inspect", self.name))[0]["State"]
        return None if facts["Running"] else int(facts["ExitCode"])

    def dump(self, out: Path, ranks: int = 2) -> dict[str, Any]:
        return dump(self.podman, self.name, next(out.glob("runs/*/run.json")).parent, ranks, self.until)

    def until(self, condition: Callable[[], Any], seconds: float) -> Any:
        return until(condition, seconds, lambda: f"{self.name} says:\n{self.logs()[-4000:]}")


@contextlib.contextmanager
def container(podman: Podman, name: str, box: Box, out: Path, *options: str) -> Iterator[Container]:
    """`podman run` of what a Box says, but for its capabilities and limits: those are `options`."""
    manifest = box.manifest(podman.image, out)
    words = ["--name", name, "--network", "none", "--user", str(box.user), *options]
    words += [
        word
        for place in manifest["volumeMounts"]
        for word in ("-v", f"{place['mountPath']}:{place['mountPath']}{':ro' if place['readOnly'] else ''}")
    ]
    words += [
        word for variable in manifest["env"] for word in ("-e", f"{variable['name']}={variable['value']}")
    ]
    podman("rm", "--force", "--time", "0", name, check=False)
    podman("run", "--detach", *words, podman.image, *manifest["command"])
    try:
        yield Container(podman, name)
    finally:
        podman("rm", "--force", "--time", "0", name, check=False)


def dump(
    podman: Podman, name: str, run_dir: Path, ranks: int, wait: Callable[[Callable[[], Any], float], Any]
) -> dict[str, Any]:
    def whole() -> dict[str, Any] | None:
        words = [sys.executable, "-m", "diag", "dump", "--all-ranks", "--json", "--run-dir", str(run_dir)]
        said = podman.output("exec", name, *words)[1]
        document: dict[str, Any] = json.loads(said) if said.startswith("{") else {}
        return (
            document
            if document and document["job"]["ranks_seen"] == ranks and not document["dump"]["missing"]
            else None
        )

    found: dict[str, Any] = wait(whole, 30)
    return found


def make_out(folder: Path) -> Path:
    """A folder that every user of a container may write to. (pytest makes its own for their owner alone.)"""
    out = folder / "out"
    out.mkdir()
    out.chmod(0o777)
    return out


def until(condition: Callable[[], Any], seconds: float, told: Callable[[], str]) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value or (value == 0 and value is not False):
            return value
        time.sleep(0.3)
    raise AssertionError(f"not within {seconds:g} s; {told()}")


@contextlib.contextmanager
def pod(podman: Podman, name: str, boxes: Sequence[Box], folder: Path) -> Iterator[Pod]:
    started = None
    try:
        started = Pod(podman, name, boxes, folder)
        yield started
    finally:
        if started is not None:
            started.end()
        else:
            podman("pod", "rm", "--force", "--time", "0", name, check=False)
