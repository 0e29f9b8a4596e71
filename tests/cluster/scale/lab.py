"""Real hubs (`diag run` of a command that only waits) and the generator, started, watched and ended; phases
measured."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.cluster.scale.nodes import RANKS

__all__ = ["TOKEN", "Lab", "Phase"]

TOKEN = "scale-token"
_ROOT = Path(__file__).resolve().parents[3]


@dataclass(slots=True)
class Phase:
    """What one stretch of time cost."""

    name: str
    seconds: float
    core: float  # share of one core that the job hub took
    rss: int
    posts: int
    failed: int
    up: float  # bytes a rank and second
    down: float
    trip_median: float
    trip_max: float
    generator_core: float
    more: dict[str, Any] = field(default_factory=dict)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Hub:
    """`diag run -- torchrun ...`, where torchrun only sleeps: the node has no ranks of its own."""

    def __init__(self, folder: Path, number: int, nodes: int, port: int) -> None:
        home = folder / f"hub-{number}"
        home.mkdir()
        waits = home / "torchrun"
        waits.write_text("#!/bin/sh\nexec sleep 100000\n")
        waits.chmod(0o755)
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("DIAG_")},
            "PYTHONPATH": f"{_ROOT}:{os.environ.get('PYTHONPATH', '')}",
            "DIAG_TOKEN": TOKEN,
            "DIAG_PORT": str(port),
            "DIAG_RUN_ROOT": str(home),
            "DIAG_LONE_PROCESS_SECONDS": "1000000",
        }
        self.home = home
        self.log = open(home / "log", "wb")  # noqa: SIM115 - for as long as the hub lives
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "diag",
                "run",
                "--",
                str(waits),
                f"--nnodes={nodes}",
                f"--node_rank={number}",
                "--master_addr=127.0.0.1",
                "--master_port=29500",
                "train.py",
            ],
            cwd=home,
            env=environment,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.port = 0

    def find(self) -> psutil.Process:
        """The process that is the hub."""
        return psutil.Process(self.process.pid)

    def end(self) -> None:
        with contextlib.suppress(psutil.Error):
            family = [self.find(), *self.find().children(recursive=True)]
            for one in family:
                with contextlib.suppress(psutil.Error):
                    one.kill()
        self.process.wait(10)
        self.log.close()


class Lab:
    def __init__(self, folder: Path, nodes: int, *, spread: float = 5.0) -> None:
        self.nodes = nodes
        self.port, self.dump_port = _free_port(), _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.hubs = [Hub(folder, 0, nodes + 2, self.port)]
        self.wait(self.answers, 60.0, "the hub answers")
        self.hubs.append(Hub(folder, 1, nodes + 2, self.port))
        self.spread = spread
        self.generator: subprocess.Popen[str] | None = None
        self._last: dict[str, Any] = {}
        self._last_cpu = 0.0
        self._last_at = 0.0

    @staticmethod
    def wait(true: Callable[[], object], seconds: float, what: str) -> float:
        began = time.monotonic()
        while not true():
            if time.monotonic() - began > seconds:
                raise AssertionError(f"not within {seconds:.0f} s: {what}")
            time.sleep(0.1)
        return time.monotonic() - began

    def answers(self) -> bool:
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(f"{self.url}/healthz", timeout=2.0).status == 200
        return False

    def get(self, path: str, seconds: float = 30.0, hub: int = 0) -> tuple[Any, int]:
        url = self.url if hub == 0 else self.url_of(hub)
        request = urllib.request.Request(f"{url}{path}", headers={"Authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            body = answer.read()
        return json.loads(body), len(body)

    def url_of(self, hub: int) -> str:
        """Its port is any free one: the first hub has the one that is looked for."""
        [run] = self.hubs[hub].home.glob("*/run.json")
        return str(json.loads(run.read_text())["url"])

    def joined(self, hubs: int) -> bool:
        """So many hubs are nodes of the job."""
        with contextlib.suppress(OSError):
            return len(self.get("/nodes")[0]["nodes"]) >= hubs
        return False  # it closes its port for a moment, to open it to other nodes

    # -- the generator ------------------------------------------------------------------------------------

    def play(self, *, prompt: bool = False) -> None:
        """Start the other nodes' hubs. `prompt`: all of them answer dumps, and at once."""
        self.generator = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.cluster.scale.generator",
                "--nodes",
                str(self.nodes),
                "--hub",
                self.url,
                "--port",
                str(self.dump_port),
                "--spread",
                str(self.spread),
                *(["--prompt"] if prompt else []),
            ],
            cwd=_ROOT,
            env={**os.environ, "DIAG_TOKEN": TOKEN},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.begin()

    def say(self, word: str) -> dict[str, Any]:
        assert (
            self.generator is not None
            and self.generator.stdin is not None
            and self.generator.stdout is not None
        )
        self.generator.stdin.write(f"{word}\n")
        self.generator.stdin.flush()
        said: dict[str, Any] = json.loads(self.generator.stdout.readline())
        return said

    # -- measuring ----------------------------------------------------------------------------------------

    def cpu(self, hub: int = 0) -> float:
        process = self.hubs[hub].find()
        times = process.cpu_times()
        return float(times.user + times.system)

    def rss(self, hub: int = 0) -> int:
        return int(self.hubs[hub].find().memory_info().rss)

    def begin(self, hub: int = 0) -> None:
        self._last = self.say("stats")
        self._last_cpu, self._last_at = self.cpu(hub), time.monotonic()

    def phase(self, name: str, hub: int = 0, **more: Any) -> Phase:
        """What was spent since the last one."""
        now, said = time.monotonic(), self.say("stats")
        cpu, before = self.cpu(hub), self._last
        seconds = now - self._last_at
        ranks = self.nodes * RANKS

        def grew(word: str) -> int:
            return int(said["counts"].get(word, 0) - before["counts"].get(word, 0))

        found = Phase(
            name,
            seconds,
            (cpu - self._last_cpu) / seconds,
            self.rss(hub),
            grew("ok"),
            grew("failed"),
            grew("up") / ranks / seconds,
            grew("down") / ranks / seconds,
            said["trip_median"] or 0.0,
            said["trip_max"] or 0.0,
            (said["cpu"] - before["cpu"]) / seconds,
            {**more, "every": said["every"]},
        )
        self._last, self._last_cpu, self._last_at = said, cpu, now
        return found

    def close(self) -> None:
        if self.generator is not None:
            self.generator.kill()
            self.generator.wait(10)
        for hub in self.hubs:
            hub.end()
