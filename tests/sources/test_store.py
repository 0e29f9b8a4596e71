"""The store at which a job meets, looked at from outside: real processes, real sockets, real torch."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from diag.agent.samplers.context import Connecting
from diag.agent.samplers.sampler import Reporter
from diag.agent.samplers.store import StoreSampler
from diag.model import Record
from diag.model.observations import StoreTried, StoreWaited
from diag.sources.collectives import store
from diag.sources.host.process_tree import Tree
from diag.sources.logs.line_facts import read_text

LOGS = Path(__file__).parents[1] / "captures" / "logs"


@pytest.fixture
def closed() -> Iterator[socket.socket]:
    """A port of this machine that is ours, and that nobody listens on yet."""
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        yield place


def test_own_connection_is_told_from_none_and_from_other_ports(closed: socket.socket) -> None:
    port = closed.getsockname()[1]
    before = store.connections(os.getpid(), port)
    closed.listen()

    with socket.create_connection(("127.0.0.1", port)):
        during, other = store.connections(os.getpid(), port), store.connections(os.getpid(), 1)

    assert before == other == store.Connections(established=False, pending=False)
    assert during == store.Connections(established=True, pending=False)


def test_of_a_process_that_is_gone_nothing_is_told() -> None:
    done = subprocess.Popen(["true"])
    done.wait()

    assert store.connections(done.pid, 29500) is None


def test_answer_that_is_waited_for_is_pending(tmp_path: Path) -> None:
    # Linux 6.18, a SYN that a firewall dropped
    (tmp_path / "41" / "fd").mkdir(parents=True)
    (tmp_path / "41" / "net").mkdir()
    (tmp_path / "41" / "fd" / "5").symlink_to("socket:[12345]")
    (tmp_path / "41" / "net" / "tcp").write_text(
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 0100020A:C350 0909090A:733C 02 00000000:00000001 01:000000FA 00000002     0        0 12345 2 0 200 0 0 10 -1\n"
    )

    assert store.connections(41, 29500, tmp_path) == store.Connections(established=False, pending=True)


@pytest.mark.parametrize(
    ("command", "place"),
    [
        (
            ("torchrun", "--nnodes", "2", "--node_rank", "1", "--master_addr", "10.9.9.9", "t.py"),
            ("10.9.9.9", 29500, 1),
        ),
        (
            ("torchrun", "--nnodes", "2", "--rdzv_backend", "c10d", "--rdzv_endpoint", "n0:29400", "t.py"),
            ("n0", 29400, None),
        ),
        (("torchrun", "--nnodes", "2", "--rdzv_backend", "etcd", "--rdzv_endpoint", "n0:2379", "t.py"), None),
        (("torchrun", "--nproc_per_node", "8", "t.py"), None),
    ],
)
def test_place_of_a_launcher_is_its_commands(command: tuple[str, ...], place: store.Place | None) -> None:
    assert store.place_of_launcher(command, {}) == place


@pytest.mark.parametrize(
    ("log", "why", "count"),
    [
        ("torch/host-unknown-c10d_2.13.0.log", "gai error: -2 - Name or service not known", 12),
        ("torch/rdzv-refused-c10d_2.13.0.log", "The client socket has timed out after 60000ms", 1),
        ("torch-2.7.1/host-unknown-env_2.7.1.log", "gai error: -2 - Name or service not known", 8),
    ],
)
def test_tries_in_real_logs_are_read(log: str, why: str, count: int) -> None:
    lines = (LOGS / log).read_text().splitlines()

    tried = [
        fact for line in lines for fact in read_text(line, "stderr", None) if isinstance(fact, StoreTried)
    ]

    assert len(tried) >= count and any(why in one.why for one in tried)
    assert len({(one.host, one.port) for one in tried}) == 1


def told(records: list[Record]) -> list[StoreWaited]:
    tries = [record for record in records if record.source == store.SOURCE]
    return [fact for record in tries for fact in store.parse(record) if isinstance(fact, StoreWaited)]


@pytest.mark.parametrize("launcher", [False, True], ids=["rank", "launcher"])
def test_real_torch_that_is_refused_is_seen_to_wait_until_somebody_listens(
    launcher: bool, closed: socket.socket, tmp_path: Path
) -> None:
    port = closed.getsockname()[1]
    environment = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    script = tmp_path / "train.py"
    script.write_text("import torch.distributed\ntorch.distributed.init_process_group('gloo')\n")
    words = [str(script)]
    if launcher:
        environment = {}
        words = ["-m", "torch.distributed.run", "--nnodes", "2", "--node_rank", "1", "--master_addr", "127.0.0.1",
                 "--master_port", str(port), str(script)]  # fmt: skip
    job = subprocess.Popen(
        [sys.executable, *words], env={**os.environ, **environment}, stderr=subprocess.DEVNULL
    )
    records: list[Record] = []
    ranks = [] if launcher else [Connecting(1, job.pid, 1, calls=True)]
    watch = StoreSampler(Reporter(records.append, "node-1"), lambda: ranks)
    watch._tree = Tree(job.pid)
    try:
        # when nobody listens
        look_until(watch, lambda: bool(told(records)), job)
        waits = told(records)[0]
        assert (waits.host, waits.port, waits.node, waits.over) == ("127.0.0.1", port, 1, False)
        assert waits.rank == (None if launcher else 1)

        # and when somebody does
        closed.listen()
        look_until(watch, lambda: told(records)[-1].over, job)
    finally:
        job.kill()
        job.wait()

    # what is gone is not told of
    count = len(told(records))
    watch.look()
    assert len(told(records)) == count


def look_until(watch: StoreSampler, done: object, job: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while not done():  # type: ignore[operator]
        assert time.monotonic() < end and job.poll() is None
        watch.look()
        time.sleep(0.1)
