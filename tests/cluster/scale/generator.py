"""One process that plays the hubs of many nodes: each reports to the job hub as `diag.agent.cluster.member` does,
and answers dumps.

`python -m tests.cluster.scale.generator --nodes N --hub URL --port P`, commands by stdin (hang, stats, quit),
answers by stdout, each a line of JSON. Nodes have addresses of their own on loopback (127.1.x.y), since the
job hub goes by who speaks.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import json
import os
import random
import sys
import time
import zlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from diag.agent.cluster.jobhub import every_of, spread
from tests.cluster.scale.nodes import NodeTold, Play, packed

# As diag/agent/cluster/member.py has them.
_TIMEOUT_SECONDS, _AGAIN_SECONDS, _FIRST_SECONDS, _FAILURES, _BUSY_SECONDS = 4.0, 1.0, 2.0, 2, 5.0
_PACK_ABOVE = 1024
_TOLD_OF_HANG = ("ranks", "waiting_ranks", "summary", "since", "klass", "cause", "confidence", "severity")


@dataclass(slots=True)
class Node:
    told: NodeTold
    address: str
    every: float = 5.0
    detail_wanted: bool = False
    target: str = ""
    heard_from: str = ""
    failures: int = 0
    busy: bool = False
    roster: list[dict[str, Any]] = field(default_factory=list)
    roster_seen: list[Any] = field(default_factory=list)
    trip: float | None = None
    woken: asyncio.Event = field(default_factory=asyncio.Event)


class Generator:
    def __init__(self, count: int, hub: str, port: int, token: str, spread: float) -> None:
        self.hub, self.port, self.token, self.spread = hub, port, token, spread
        culprit = count // 2
        self.play = Play(count, culprit, time.time())
        self.nodes = [
            Node(NodeTold(number, f"fake-{number}", f"gpu-{number}", number == culprit), _address(number))
            for number in range(count)
        ]
        self.by_address = {node.address: node for node in self.nodes}
        self.counts: Counter[str] = Counter()
        self.trips: list[float] = []
        self.heard_from: Counter[str] = Counter()
        self.hang_seen_at: float | None = None
        self.hang: dict[str, Any] | None = None
        self.first_heard: dict[str, float] = {}
        self.hang_first = 0.0
        self.mute = count - 1 if count > 1 else -1  # never answers a dump
        self.slow = 1.0
        self.random = random.Random(1)
        self.timeout = max(_TIMEOUT_SECONDS, every_of(count + 2) / 2)

    # -- reporting ----------------------------------------------------------------------------------------

    async def live(self, node: Node) -> None:
        await asyncio.sleep(self.random.random() * self.spread)
        while True:
            pause = await self.report(node)
            with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
                await asyncio.wait_for(node.woken.wait(), pause * (1.0 + 0.2 * (self.random.random() - 0.5)))
            woken = node.woken.is_set()
            node.woken.clear()
            await asyncio.sleep(0.2 + (spread(node.every) * self.random.random() if woken else 0.0))

    async def report(self, node: Node) -> float:
        if node.target and await self.attempt(node, node.target):
            return _BUSY_SECONDS if node.busy else node.every
        if node.target:
            node.failures += 1
            if node.failures < _FAILURES:
                return _AGAIN_SECONDS
        for candidate in self.candidates(node):
            if candidate == node.target and node.failures:
                continue
            if await self.attempt(node, candidate):
                return _BUSY_SECONDS if node.busy else node.every
        node.target, node.failures, node.heard_from = "", 0, ""
        return _FIRST_SECONDS

    def candidates(self, node: Node) -> list[str]:
        """The real hubs: what a played one would do if it were asked is not played."""
        entries = sorted(
            (one for one in node.roster if not one.get("gone")), key=lambda one: one["node_rank"] or 0
        )
        real = [str(one["url"]) for one in entries if one["url"] and not one["run_id"].startswith("fake")]
        return list(dict.fromkeys([self.hub, *real]))

    async def attempt(self, node: Node, url: str) -> bool:
        if url != node.target:
            node.told.forget()
        detail = int(self.play.closer or node.detail_wanted)
        document = self.play.digest(node.told, node.every, detail)
        document |= {
            "wall": time.time(),
            "port": self.port,
            "scheme": "http",
            "roster_seen": node.roster_seen,
        }
        document["node"]["round_trip_seconds"] = node.trip
        data = packed(document)
        began = time.monotonic()
        try:
            status, body, up, down = await asyncio.wait_for(self.post(node, url, data), self.timeout)
            self.counts["up"] += up
            self.counts["down"] += down
            if status == 503:
                self.counts["busy"] += 1
                node.told.forget()
                node.target, node.failures, node.busy = url, 0, True
                return True
            if status != 200:
                raise OSError(f"status {status}")
            answer = json.loads(body)
        except (
            asyncio.TimeoutError,
            TimeoutError,
            OSError,
            ValueError,
            IndexError,
            asyncio.IncompleteReadError,
        ) as error:
            self.counts["failed"] += 1
            self.counts[f"failed {type(error).__name__} {str(error)[:40]}"] += 1
            node.told.forget()
            return False
        node.trip = round(time.monotonic() - began, 4)
        self.trips.append(node.trip)
        self.counts["ok"] += 1
        node.busy = False
        self.hear(node, url, answer)
        return True

    def hear(self, node: Node, url: str, answer: dict[str, Any]) -> None:
        if answer.get("want") or (answer["hub"] != node.heard_from and url == node.target):
            node.told.forget()
        if "roster" in answer:
            self.counts["rosters"] += 1
            hub = answer["hub"]
            node.roster = [
                {**one, "url": one["url"] or url} if one["run_id"] == hub else one for one in answer["roster"]
            ]
            node.roster_seen = [answer["hub"], answer["roster_version"]]
        self.heard_from[node.heard_from] -= 1
        self.heard_from[answer["hub"]] += 1
        self.first_heard.setdefault(node.told.run_id, time.time())
        node.target, node.heard_from, node.failures = url, answer["hub"], 0
        node.every = max(0.5, min(float(answer["every"]), 600.0))
        node.detail_wanted = bool(answer["detail"])
        for finding in answer["verdict"]["fact"].get("findings", ()):
            if finding["id"] in ("hang", "held-up"):
                if self.hang is None:
                    self.hang_seen_at = time.time()
                    self.hang_first = time.time()
                self.hang = finding

    async def post(self, node: Node, url: str, data: bytes) -> tuple[int, bytes, int, int]:
        """As http.client does it: one connection a request. Returns status, body, and bytes on the wire both
        ways."""
        head = f"POST /digests HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\nContent-Type: application/json\r\n"
        if len(data) > _PACK_ABOVE:
            data = gzip.compress(data, 1)
            head += "Content-Encoding: gzip\r\n"
        head += f"Authorization: Bearer {self.token}\r\nAccept-Encoding: gzip\r\nConnection: close\r\n"
        head += f"Content-Length: {len(data)}\r\n\r\n"
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(
            parts.hostname, parts.port, local_addr=(node.address, 0)
        )
        try:
            writer.write(head.encode() + data)
            answer = await reader.read()
        finally:
            writer.close()
        start, _, body = answer.partition(b"\r\n\r\n")
        if b"content-encoding: gzip" in start.lower():
            body = zlib.decompressobj(31).decompress(body)
        return int(start.split(b" ", 2)[1]), body, len(head) + len(data), len(answer)

    # -- dumps --------------------------------------------------------------------------------------------

    async def answer_dump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """GET /dump?scope=node of the node with this address; one of them never answers."""
        try:
            await reader.readuntil(b"\r\n\r\n")
            node = self.by_address[writer.get_extra_info("sockname")[0]]
            self.counts["dumps asked"] += 1
            if node.told.number == self.mute:
                await asyncio.sleep(120.0)
            await asyncio.sleep(self.slow * (0.2 + 0.3 * self.random.random()))
            body = gzip.compress(packed(self.play.dump(node.told)), 1)
            self.counts["dump bytes"] += len(body)
            head = (
                f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\nConnection: close\r\n"
                f"Content-Length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            await writer.drain()
        except (OSError, KeyError, asyncio.IncompleteReadError):
            pass  # a connection that was only tried
        finally:
            writer.close()

    # -- driving ------------------------------------------------------------------------------------------

    async def tick(self) -> None:
        was_closer = False
        while True:
            self.play.tick(time.time())
            if self.play.closer != was_closer:
                was_closer = self.play.closer
                for node in self.nodes:  # each hub sees within a second that nothing moves, and reports that
                    asyncio.get_running_loop().call_later(self.random.random(), node.woken.set)
            await asyncio.sleep(1.0 - time.time() % 1.0)

    def stats(self) -> dict[str, Any]:
        trips = sorted(self.trips)
        times = os.times()
        said = {
            "counts": dict(self.counts),
            "every": max(node.every for node in self.nodes),
            "cpu": times.user + times.system,
            "reached": len(self.first_heard),
            "heard_from": {hub: count for hub, count in self.heard_from.items() if hub and count},
            "trip_median": trips[len(trips) // 2] if trips else None,
            "trip_max": trips[-1] if trips else None,
            "last_moved": self.play.last_moved,
            "hang_seen_at": self.hang_seen_at,
            "now": time.time(),
            "hang": {name: self.hang[name] for name in _TOLD_OF_HANG if name in self.hang}
            if self.hang
            else None,
            "detailed": sum(node.detail_wanted for node in self.nodes),
        }
        self.trips.clear()
        return said

    async def run(self) -> None:
        server = await asyncio.start_server(self.answer_dump, "0.0.0.0", self.port, backlog=1024)
        loop = asyncio.get_running_loop()
        commands = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
        tasks = [loop.create_task(self.tick()), *(loop.create_task(self.live(node)) for node in self.nodes)]
        while (word := (await commands.readline()).decode().strip()) not in ("", "quit"):
            if word == "hang":
                self.play.hang()
            print(json.dumps(self.stats()), flush=True)
            failed = [task for task in tasks if task.done()]
            if failed:
                failed[0].result()
        server.close()
        os._exit(0)


def _address(number: int) -> str:
    return f"127.1.{number // 250}.{number % 250 + 1}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--hub", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--spread", type=float, default=5.0)
    parser.add_argument("--prompt", action="store_true", help="every node answers a dump, and at once")
    options = parser.parse_args()
    generator = Generator(options.nodes, options.hub, options.port, os.environ["DIAG_TOKEN"], options.spread)
    if options.prompt:
        generator.mute, generator.slow = -1, 0.0
    asyncio.run(generator.run())


if __name__ == "__main__":
    main()
