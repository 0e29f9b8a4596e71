"""A node's real hub, and what tests ask of several."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from diag.agent.cluster.member import Member
from diag.agent.cluster.post import Sender
from diag.agent.hub import Hub
from diag.launch.launchers.nodes import JobNodes
from diag.model import Placement
from diag.outputs.http.server import Server, serve
from diag.settings import load
from diag.sources.host import run as run_source

TOKEN = "a token of the job"


class OneNode:
    """A node's real hub with its loop and its server, without a job: it is told of a rank."""

    def __init__(
        self, number: int, tmp_path: Path, *, token: str = TOKEN, tls: tuple[Path, Path] | None = None
    ) -> None:
        self.number = number
        self.said: list[str] = []
        settings = load(run_root=tmp_path, token=token)
        self.hub = Hub(settings, None, talk=self.said.append)
        self.hub.host, self.hub.run_id = f"node-{number}", f"run-{number}"
        self.hub.bound_beyond_loopback = True  # the token counts
        self.tls = tls
        self.server: Server | None = None
        self.port = 0
        self._ended = threading.Event()
        self._loop = threading.Thread(target=self.hub.loop, args=(self._ended.is_set,), daemon=True)
        place = Placement(number, 0, 3, self.hub.host, 1000 + number, 777, number, 1, "torchrun")
        self.hub.put(run_source.rank_found(place, "python train.py", {}))

    def start(self) -> OneNode:
        certificate, key = self.tls or (None, None)
        self.server = serve(self.hub, "127.0.0.1", self.port, certificate=certificate, key=key)
        self.port = self.server.port
        if not self._loop.is_alive():
            self._loop.start()
        return self

    def join(self, first: OneNode, count: int, ca: Path | None = None) -> None:
        self.join_as(JobNodes(count, self.number, "127.0.0.1", 29500), first.port, ca)

    def join_as(self, nodes: JobNodes, peer_port: int, ca: Path | None = None) -> None:
        assert self.hub.token is not None
        self.hub.cluster.member = Member(
            self.hub, nodes, self.port, Sender(self.hub.token, ca), self.hub.cluster.collector, self.said.append,
            scheme="https" if self.tls else "http", peer_port=peer_port,
        )  # fmt: skip
        self.hub.cluster.member.start()

    @property
    def member(self) -> Member:
        assert self.hub.cluster.member is not None
        return self.hub.cluster.member

    def judged_by(self) -> str:
        """The host of the job hub, as this node's engine has heard it."""
        with self.hub.lock:
            verdict = self.hub.engine.job.cluster.verdict
        return verdict.hub if verdict is not None else ""

    def stop_serving(self) -> None:
        if self.server is not None:
            self.server.stop(1.0)
            self.server = None

    def die(self) -> None:
        """As by SIGKILL: nothing is said any more."""
        self.stop_serving()
        if self.hub.cluster.member is not None:
            self.hub.cluster.member._ending.set()
            self.hub.cluster.member._wake.set()
            if self.hub.cluster.member.job_hub is not None:
                self.hub.cluster.member.job_hub.close()
        self._ended.set()


def until(true: Callable[[], object], *nodes: OneNode, seconds: float = 40.0) -> None:
    """Hubs report as if there were news all the time."""
    end = time.monotonic() + seconds
    while not true():
        for node in nodes:
            node.member.hurry()
        assert time.monotonic() < end, [(node.number, node.judged_by(), node.said) for node in nodes]
        time.sleep(0.1)


def judged(nodes: list[OneNode], by: int) -> Callable[[], bool]:
    return lambda: all(node.judged_by() == f"node-{by}" for node in nodes)


def ranks_at(node: OneNode) -> list[int]:
    assert node.member.job_hub is not None
    with node.member.job_hub.lock:
        return sorted(node.member.job_hub.engine.job.ranks)
