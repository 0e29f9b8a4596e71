"""The bundled Megatron DPO job by torchrun over the nodes of a lab, `diag run` on each, one rank a node."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any

import psutil

from tests.liverun import DIAG, WatchedRun
from tests.netlab import Lab, Node

__all__ = ["TOKEN", "ClusterJob", "NodeRun", "run_job"]

TOKEN = "a-token-of-the-lab"
PORT = 9095  # of the hubs
MASTER_PORT = 29517
START_SECONDS = 240.0  # of 4 torchruns, 4 ranks and 4 diags on two busy cores
END_SECONDS = 240.0
_STEP = re.compile(r"'iteration': '(\d+)/")
_NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class NodeRun(WatchedRun):
    """`diag run -- torchrun ...` on one node."""

    def __init__(
        self, node: Node, command: Sequence[str], options: Sequence[str], env: Mapping[str, str]
    ) -> None:
        super().__init__(
            node.folder / "home" / ".local" / "state" / "diag" / "runs",
            node.folder / "terminal.txt",
        )
        self.node = node
        self._file: IO[bytes] = open(self.out, "wb")  # noqa: SIM115 - closed by close()
        self.process = node.start(
            *DIAG, "run", *options, "--", *command, env=env,
            stdin=subprocess.DEVNULL, stdout=self._file, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def close(self) -> None:
        self._file.close()

    # -- its processes ------------------------------------------------------------------------------------

    @property
    def hub(self) -> psutil.Process | None:
        """`diag run` itself, which holds the hub."""
        return next(iter(self.node.find("diag", "run")), None)

    @property
    def launcher(self) -> psutil.Process | None:
        return next(
            (
                process
                for process in self.node.find("torch.distributed.run")
                if "run" not in process.cmdline()[:4]
            ),
            None,
        )

    @property
    def rank(self) -> psutil.Process | None:
        """Not its DataLoader workers, which have its command line and environment."""
        for process in self.node.find("diag_job", RANK=str(self.node.rank)):
            with contextlib.suppress(psutil.Error):
                parent = process.parent()
                if parent is not None and "torch.distributed.run" in parent.cmdline():
                    return process
        return None

    # -- its hub ------------------------------------------------------------------------------------------

    def ask(
        self, path: str, *, of: Node | None = None, token: str | None = None, seconds: float = 30.0
    ) -> Any:
        """GET from this hub, as a process on node `of` would (default: its own, over loopback), with its
        token or another."""
        token = token or self.run_json()["token"]
        where = f"http://{(of and self.node.address) or '127.0.0.1'}:{self.port}{path}"
        request = urllib.request.Request(where, headers={"Authorization": f"Bearer {token}"} if token else {})

        def read() -> bytes:
            with _NO_PROXY.open(request, timeout=seconds) as answer:
                return bytes(answer.read())

        text = (of or self.node).within(read)
        return json.loads(text) if text[:1] in (b"{", b"[") else text.decode()

    @property
    def port(self) -> int:
        return int(self.run_json()["url"].rpartition(":")[2])

    def findings(self, *, warnings: bool = True) -> list[dict[str, Any]]:
        """The last state of each finding that this hub told of."""
        last = {(f := change["finding"])["id"] + f["subject"]: f for change in self.changes()}
        return [f for f in last.values() if not warnings or f["severity"] != "info"]

    def dump(
        self, *words: str, env: Mapping[str, str] | None = None, seconds: float = 60.0
    ) -> dict[str, Any]:
        """`diag dump --all-ranks --json` in a shell on this node."""
        return dump_on(self.node, *words, env=env, seconds=seconds)


def dump_on(
    node: Node, *words: str, env: Mapping[str, str] | None = None, seconds: float = 60.0
) -> dict[str, Any]:
    with node.start(*DIAG, "dump", "--all-ranks", "--json", *words, env=env) as process:
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no dump on {node.name} within {seconds:g} s") from None
    assert process.returncode in (0, 10), f"exit {process.returncode}: {err}{out}"
    document: dict[str, Any] = json.loads(out)
    return document


class ClusterJob:
    """One run on each node that was started."""

    def __init__(self, lab: Lab, command: Callable[[int], Sequence[str]], options: Sequence[str],
                 env: Callable[[int], Mapping[str, str]]) -> None:  # fmt: skip
        self.lab = lab
        self._command, self._options, self._env = command, options, env
        self.runs: dict[int, NodeRun] = {}

    def __getitem__(self, rank: int) -> NodeRun:
        return self.runs[rank]

    def start(self, *ranks: int) -> None:
        for rank in ranks:
            self.runs[rank] = NodeRun(self.lab[rank], self._command(rank), self._options, self._env(rank))

    @property
    def text(self) -> str:
        """All terminals, for messages of assertions."""
        return "\n".join(
            f"=== {run.node.name} (exit {run.process.poll()}):\n{run.text[-6000:]}"
            for run in self.runs.values()
        )

    def until(self, condition: Callable[[], Any], seconds: float, what: str = "") -> Any:
        """Wait for a condition on any of the runs; AssertionError with all terminals when it does not come."""
        end = time.monotonic() + seconds
        while not (value := condition()):
            if time.monotonic() > end:
                raise AssertionError(
                    f"{what or 'the condition'} did not come within {seconds:g} s\n{self.text}"
                )
            time.sleep(0.2)
        return value

    @property
    def iteration(self) -> int:
        """The newest that the last rank has printed."""
        found = [int(step) for run in self.runs.values() for step in _STEP.findall(run.text)]
        return max(found, default=0)

    def await_step(self, number: int, seconds: float = START_SECONDS) -> None:
        self.until(lambda: self.iteration >= number, seconds, f"iteration {number}")

    def await_end(self, *ranks: int, seconds: float = END_SECONDS) -> dict[int, int]:
        """The exit code of each."""
        wanted = ranks or tuple(self.runs)
        self.until(
            lambda: all(self[rank].process.poll() is not None for rank in wanted),
            seconds,
            f"the end on {wanted}",
        )
        return {rank: int(self[rank].process.returncode) for rank in wanted}

    def struck(self) -> bool:
        return any(run.struck_at() is not None for run in self.runs.values())

    # -- what is done to it -------------------------------------------------------------------------------

    def kill_rank(self, rank: int, number: int = signal.SIGKILL) -> None:
        process = self[rank].rank
        assert process is not None, f"rank {rank} is not there\n{self.text}"
        process.send_signal(number)

    def kill_hub(self, rank: int) -> None:
        """Only diag: what it started goes on."""
        process = self[rank].hub
        assert process is not None, f"no diag on node {rank}\n{self.text}"
        process.kill()


@contextlib.contextmanager
def run_job(
    lab: Lab,
    *arguments: str,
    fault: str = "",
    joined: bool = True,
    nodes: Sequence[int] | None = None,
    options: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    of_node: Mapping[int, Mapping[str, str]] | None = None,
    numbers: Mapping[int, int] | None = None,
) -> Iterator[ClusterJob]:
    """Started on all nodes, or on these. `of_node` is more environment, `numbers` a wrong --node_rank, by
    node.

    Nothing of it runs afterwards.
    """
    size = len(lab.nodes)
    faults = lab.folder / "faults"
    faults.mkdir(exist_ok=True)

    def command(rank: int) -> list[str]:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(size)]
        launcher += ["--node_rank", str((numbers or {}).get(rank, rank))]
        where = ["--nproc_per_node", "1", "--master_addr", lab[0].address, "--master_port", str(MASTER_PORT)]
        return [*launcher, *where, "-m", "diag_job", f"--output-dir={lab.folder / 'out'}", *arguments]

    def environment(rank: int) -> dict[str, str]:
        common = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0", "DIAG_FAULT_DIR": str(faults)}
        if fault:
            common["DIAG_FAULT"] = fault
        if joined:
            common["DIAG_TOKEN"] = TOKEN
        return {**common, **(env or {}), **((of_node or {}).get(rank, {}))}

    job = ClusterJob(lab, command, options, environment)
    try:
        job.start(*(range(size) if nodes is None else nodes))
        yield job
    finally:
        for node in lab.nodes:
            node.kill_all()
        for run in job.runs.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.process.wait(30)
            run.close()
