"""One HTTP server that answers as the hubs of a large job would, each at a path of its own: what a real
exposition holds for eight ranks, with the names and ranks of that node and numbers that change from scrape to
scrape.

    python -m tests.cluster.prometheus.targets NODES      prints its port, serves until it is ended
"""

from __future__ import annotations

import asyncio
import itertools
import re
import sys
import time
from collections.abc import Callable

from diag.model.observations import GpuHealth, Iteration, LimitsSeen, NvlinkSeen, RdmaAccess
from diag.outputs.prometheus.prometheus import METRICS, families
from diag.outputs.view.view import AgentProcess
from tests.outputs import conftest as kit

__all__ = ["RANKS", "Node", "real_series"]

RANKS = 8  # of a node
_VALUES = {  # of labels, for metrics that the told hub has no samples of
    "device": [f"mlx5_{index}" for index in range(8)], "port": ["1"], "transport": ["ib"], "net": ["IB"], "gdr": ["true"],
    "purpose": ["save", "tmp", "run_dir"], "direction": ["sent", "taken"], "result": ["ok", "failed"], "le": ["10", "+Inf"],
    "cause": ["ib_disabled"], "kind": ["straggler"], "severity": ["warning"], "xid": ["79"], "reason": ["timeout"],
    "rank": [str(rank) for rank in range(RANKS)],
}  # fmt: skip
# Troubles, which few nodes have.
_SELDOM = frozenset(
    {"diag_nccl_fallback", "diag_gpu_xid_total", "diag_job_finding_active", "diag_finding_active"}
)

_OF_JOB = {("diag_train_step_seconds", "rank"), ("diag_train_samples_per_second", "rank")}

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: %d\r\n\r\n"

Series = tuple[str, tuple[tuple[str, str], ...], float]


def real_series() -> list[Series]:
    """What a hub of eight ranks on GPUs exports: the real families of a told hub, and one of each that it was
    told nothing of."""
    hub = kit.FakeHub()
    kit.tell_job(hub, RANKS)
    hub.tell(1036.0, Iteration(None, 12, 100, "12/100"))
    for rank in range(RANKS):
        links = tuple(NvlinkSeen(link, True) for link in range(18))
        hub.tell(
            1036.0,
            LimitsSeen(rank, 750 + rank, (("Max locked memory", None),)),
            RdmaAccess(rank, 750 + rank, None, ("uverbs0",), None, None, None, None),
            GpuHealth(None, rank, f"GPU-{rank}", f"0000:{rank:02x}:00.0", ecc_corrected_volatile=0, ecc_uncorrected_volatile=0,
                      remap_pending=False, thermal_violation_seconds=0.0, power_violation_seconds=1.0, memory_celsius=60.0,
                      nvlinks=links),
        )  # fmt: skip
        hub.counters.processes[("sidecar", rank)] = AgentProcess(0.5, 20 * 2**20)
    for sampler in ("proc", "stack", "nvml", "cgroup", "shm", "infiniband", "kmsg", "checkpoint"):
        hub.counters.sampled(sampler, 0.01)
    found = [
        (sample.name, tuple(sample.labels.items()), sample.value)
        for family in families(hub)
        for sample in family.samples
    ]
    have = {re.sub("_(sum|count|bucket)$", "", name) for name, _, _ in found}
    for name, kind, labels in ((spec.name, spec.type, spec.labels) for spec in METRICS):
        if name not in have and name not in _SELDOM:
            for suffix, more in {"histogram": (("_sum", ()), ("_count", ()), ("_bucket", ("le",)))}.get(
                kind, (("", ()),)
            ):
                names = (*labels, *more)
                found += [
                    (name + suffix, tuple(zip(names, values, strict=True)), 1.0)
                    for values in itertools.product(
                        *([""] if (name, label) in _OF_JOB else _VALUES[label] for label in names)
                    )
                ]
    return found


class Node:
    """One target's text. A few nodes in a thousand have a trouble, one rank in five hundred hangs."""

    def __init__(self, number: int, nodes: int, series: list[Series]) -> None:
        self._lines: list[tuple[str, Callable[[float, int], float]]] = []
        troubles = (
            [("diag_nccl_fallback", (("rank", "0"), ("cause", "ib_disabled")), 1.0)]
            if number % 97 == 5
            else []
        )
        if number % 200 == 7:
            troubles.append(
                ("diag_finding_active", (("kind", "straggler"), ("severity", "warning"), ("rank", "0")), 1.0)
            )
        if number == 0:
            troubles.append(
                ("diag_job_finding_active", (("kind", "straggler"), ("severity", "warning")), 1.0)
            )
        for index, (name, labels, value) in enumerate([*series, *troubles]):
            own = ",".join(f'{key}="{self._label(key, text, number)}"' for key, text in labels)
            self._lines.append(
                (f"{name}{{{own}}} ", _changing(name, dict(labels), value, number, nodes, index))
            )

    @staticmethod
    def _label(key: str, text: str, number: int) -> str:
        if key == "rank" and text:
            return str(number * RANKS + int(text))
        return f"{text}-{number}" if key == "gpu_uuid" else text

    def text(self, now: float) -> bytes:
        tick = int(now)
        return "".join(f"{line}{value(now, tick):.10g}\n" for line, value in self._lines).encode()


def _changing(  # noqa: PLR0917
    name: str, labels: dict[str, str], value: float, number: int, nodes: int, index: int
) -> Callable[[float, int], float]:
    """How this number goes on: counters grow, gauges sway, states and limits stay."""
    began = time.time()
    if name == "diag_rank_state":
        hung = (number * RANKS + int(labels["rank"])) % 500 == 3
        state = float(labels["state"] == ("hung" if hung else "running"))
        return lambda now, tick: state
    if name.endswith("_timestamp_seconds"):
        return lambda now, tick: now - (tick + index) % 5
    if name in ("diag_nodes_expected", "diag_nodes_heard"):
        return lambda now, tick: float(nodes)
    if name == "diag_job_hub":
        return lambda now, tick: float(number == 0)
    if name.endswith(("_total", "_sum", "_count", "_bucket", "_iteration")):
        rate = (
            1e9
            if "bytes" in name
            else 0.02
            if "seconds" in name
            else 0.0
            if "errors" in name or "kills" in name
            else 1.0
        )
        return lambda now, tick: value + (now - began) * rate
    if (
        value
        and name.endswith(("_bytes", "_ratio", "_watts", "_celsius", "_hertz", "_seconds"))
        and "limit" not in name
    ):
        return lambda now, tick: value * (0.9 + 0.1 * ((tick * 7919 + index * 104729 + number) % 1000) / 1000)
    return lambda now, tick: value


async def serve(nodes: int) -> None:
    made = [Node(number, nodes, real_series_) for real_series_ in [real_series()] for number in range(nodes)]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                number = int(head.split(b" ", 2)[1].rpartition(b"/")[2])
                body = made[number].text(time.time())
                writer.write(_HEAD % len(body) + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, ValueError, IndexError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
