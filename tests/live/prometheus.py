"""A Prometheus, and an Alertmanager, of its own for a test: Debian's packages on free ports of loopback,
ended with the block."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

__all__ = [
    "ALERTMANAGER",
    "PROMETHEUS",
    "PROMTOOL",
    "Alertmanager",
    "Prometheus",
    "free_port",
    "needs_prometheus",
]

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
ALERTMANAGER = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
WITHIN_SECONDS = 60.0  # starts in 1 s here; slow machines may take longer

needs_prometheus = pytest.mark.skipif(
    not (PROMETHEUS and PROMTOOL), reason="no prometheus and promtool here: apt-get install prometheus"
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class _Server:
    """A process with an HTTP address. What it says goes to a file, which a failed test shows."""

    def __init__(self, folder: Path, name: str, words: list[str], ready: str) -> None:
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=log)
        self._ready = ready

    def __enter__(self) -> Any:
        until = time.monotonic() + WITHIN_SECONDS
        while True:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            try:
                with urllib.request.urlopen(self._ready, timeout=5):
                    return self
            except urllib.error.URLError:
                assert time.monotonic() < until, self.log.read_text()[-3000:]
                time.sleep(0.05)

    def __exit__(self, *error: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Prometheus(_Server):
    """`config` is prometheus.yml as JSON has it, which is YAML."""

    def __init__(self, folder: Path, config: dict[str, Any], *flags: str, retention: str = "100y") -> None:
        assert PROMETHEUS
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "prometheus.yml"
        path.write_text(json.dumps(config))
        self.address = f"127.0.0.1:{free_port()}"
        super().__init__(
            folder, "prometheus",
            [PROMETHEUS, f"--config.file={path}", f"--storage.tsdb.path={folder / 'data'}",
             f"--storage.tsdb.retention.time={retention}", f"--web.listen-address={self.address}", *flags],
            f"http://{self.address}/-/ready",
        )  # fmt: skip

    def get(self, path: str, timeout: float = 120.0, **parameters: Any) -> Any:
        url = f"http://{self.address}/api/v1/{path}?" + urllib.parse.urlencode(parameters, doseq=True)
        try:
            with urllib.request.urlopen(url, timeout=timeout) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()[:500]}") from None

    def query(self, expression: str, at: float | None = None) -> list[dict[str, Any]]:
        when = {} if at is None else {"time": f"{at:.3f}"}
        rows: list[dict[str, Any]] = self.get("query", query=expression, **when)["result"]
        return rows

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.get(
            "query_range", query=expression, start=start, end=end, step=step
        )["result"]
        return rows

    def wait_for(self, expression: str, within: float = WITHIN_SECONDS) -> list[dict[str, Any]]:
        """The answer once there is one."""
        until = time.monotonic() + within
        while time.monotonic() < until:
            rows = self.query(expression)
            if rows:
                return rows
            time.sleep(0.1)
        raise AssertionError(f"no answer to {expression} in {within} s: {self.log.read_text()[-2000:]}")


class Alertmanager(_Server):
    """Alone: no cluster with others on this machine."""

    def __init__(self, folder: Path, config: Path) -> None:
        assert ALERTMANAGER
        folder.mkdir(parents=True, exist_ok=True)
        self.address = f"127.0.0.1:{free_port()}"
        super().__init__(
            folder, "alertmanager",
            [ALERTMANAGER, f"--config.file={config}", f"--storage.path={folder / 'data'}",
             f"--web.listen-address={self.address}", "--cluster.listen-address="],
            f"http://{self.address}/-/ready",
        )  # fmt: skip

    def alerts(self) -> list[dict[str, Any]]:
        with urllib.request.urlopen(f"http://{self.address}/api/v2/alerts", timeout=10) as answer:
            rows: list[dict[str, Any]] = json.load(answer)
        return rows
