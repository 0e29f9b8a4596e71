"""A dump of a job of a thousand nodes: gathering their answers against a raw asyncio client, and the whole
command."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from diag.agent.cluster.jobdump import Gathering
from diag.agent.cluster.post import Sender
from tests.cluster.scale.lab import TOKEN, Lab
from tests.cluster.scale.nodes import RANKS, NodeTold, Play, packed
from tests.liverun import DIAG

from .machine import bench_env
from .runs import NotReady, until
from .stats import interval, judge
from .table import Row

__all__ = ["answers", "command_rows", "gather_rows"]

_GATHER_GOAL, _COMMAND_GOAL = 2.0, 0.15
_AT_ONCE = 256
_LIMIT = 8.0  # as `diag dump` has
_MUTE = "127.2.0.1"  # nobody answers there; node N has 127.1.x.y, as in tests/cluster/scale
_LOOP_RANK = 0.013  # seconds of a shell loop for a rank, where it was not measured in this run


def answers(count: int) -> list[bytes]:
    """What so many nodes answer to a dump in a job that hangs, packed as a hub packs it."""
    play = Play(count, count // 2, time.time())
    play.tick(time.time())
    play.hang()
    play.tick(time.time())
    return [
        gzip.compress(
            packed(play.dump(NodeTold(number, f"fake-{number}", f"gpu-{number}", number == count // 2))), 1
        )
        for number in range(count)
    ]


def gather_rows(count: int, rounds: int, say: Callable[[str], None]) -> list[Row]:
    say(f"gathering {count} nodes' answers, {rounds} times each way")
    with tempfile.TemporaryDirectory(prefix="diag-bench-") as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
        free.close()
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.labs.bench.hubs", str(count), str(port)],
            env=bench_env(),
            cwd=folder,
        )
        try:
            until(lambda: _listens(port), 120, "the played nodes listen", process.poll)
            urls = [f"http://{_address(number)}:{port}" for number in range(count)]
            _gathered(urls, _LIMIT)  # both warm up
            asyncio.run(_raw(port, urls))
            ours, raw = [], []
            for _ in range(rounds):
                ours.append(_timed(lambda: _gathered(urls, 30.0)))
                raw.append(_timed(lambda: asyncio.run(_raw(port, urls))))
            began = time.perf_counter()
            got = _gather([*urls[1:], f"http://{_MUTE}:{port}"], _LIMIT)
            dead = time.perf_counter() - began
        finally:
            process.kill()
            process.wait()
    (mine, mine_cpu), (peer, peer_cpu) = (
        (interval([one[0] for one in side]), statistics.median(one[1] for one in side))
        for side in (ours, raw)
    )
    ratio = interval([a[0] / b[0] for a, b in zip(ours, raw, strict=True)])
    return [
        Row(f"gathering the answers of {count:,} nodes of {RANKS} ranks (unpacked, read as JSON)",
            f"{1000 * mine.mid:.0f} ms [{1000 * mine.low:.0f}, {1000 * mine.high:.0f}], {1000 * mine_cpu:.0f} ms of CPU",
            f"raw asyncio streams: {1000 * peer.mid:.0f} ms, {1000 * peer_cpu:.0f} ms of CPU",
            f"{ratio.mid:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]", f"< {_GATHER_GOAL:g} x", judge(ratio, _GATHER_GOAL),
            {"diag": mine.mid, "peer": peer.mid, "cpu": mine_cpu, "peer_cpu": peer_cpu, "ratio": ratio.mid}, "P9"),
        Row(f"gathering, where one of {count:,} nodes never answers (a limit of {_LIMIT:g} s)", f"{dead:.1f} s, {got} answers",
            goal=f"< {_LIMIT + 0.5:g} s, all others there",
            verdict="met" if dead < _LIMIT + 0.5 and got == count - 1 else "missed", values={"diag": dead, "answers": got},
            key="P9 dead node"),
    ]  # fmt: skip


def command_rows(
    nodes: int, times_each: int, rank_seconds: float | None, say: Callable[[str], None]
) -> list[Row]:
    """`diag dump` at a real job hub whose other nodes are played by one process on the same cores.

    `rank_seconds`: of a shell loop for each rank, as measured in this run."""
    with tempfile.TemporaryDirectory(prefix="diag-bench-") as folder:
        say(f"a job hub and {nodes} played nodes start")
        lab = Lab(Path(folder), nodes)
        try:
            lab.wait(lambda: lab.joined(2), 60.0, "the second hub joins")
            lab.play(prompt=True)
            lab.wait(lambda: lab.say("stats")["reached"] >= nodes, 180.0, "every node was answered")
            time.sleep(10.0)  # the rhythm settles
            say(f"diag dump --all-ranks of {nodes} nodes, {times_each} times")
            command = [
                *DIAG,
                "dump",
                "--all-ranks",
                "--json",
                "--endpoint",
                lab.url,
                "--token",
                TOKEN,
                "--seconds",
                "60",
            ]
            walls = []
            for _ in range(times_each):
                began = time.perf_counter()
                done = subprocess.run(
                    command, env=bench_env(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False
                )
                walls.append(time.perf_counter() - began)
                if done.returncode not in (0, 10):
                    raise NotReady(f"diag dump of {nodes} nodes ended with code {done.returncode}")
            document = json.loads(done.stdout)["dump"]
        finally:
            lab.close()
    ranks, mine = len(document["ranks"]), interval(walls)
    loop = (rank_seconds or _LOOP_RANK) * nodes * RANKS
    ratio = mine.scaled(1 / loop)
    return [
        Row(
            f"wall time of `diag dump --all-ranks`, {nodes:,} nodes of {RANKS} ranks (played beside the hub, on the same cores)",
            f"{mine.mid:.1f} s [{mine.low:.1f}, {mine.high:.1f}], {ranks:,} ranks",
            f"serial shell loop, computed: {loop:.0f} s ({1000 * loop / nodes / RANKS:.1f} ms a rank"
            f"{', as measured' if rank_seconds else ''})",
            f"{ratio.mid:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]",
            f"< {_COMMAND_GOAL:g} x",
            judge(ratio, _COMMAND_GOAL) if ranks == nodes * RANKS else "missed",
            {"diag": mine.mid, "peer": loop, "ranks": ranks, "ratio": ratio.mid},
            "P7 1000 nodes",
        )
    ]


def _timed(work: Callable[[], int]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def _gathered(urls: Sequence[str], limit: float) -> int:
    got = _gather(urls, limit)
    if got != len(urls):
        raise NotReady(f"{got} of {len(urls)} nodes' answers came")
    return got


def _gather(urls: Sequence[str], limit: float) -> int:
    """Answers that came by diag's own way."""
    entries: list[dict[str, Any]] = [
        {"run_id": url, "url": url, "host": url, "node_rank": number, "ranks": []}
        for number, url in enumerate(urls)
    ]
    gathering = Gathering(Sender(TOKEN), entries, time.monotonic() + limit)
    gathering.start()
    return sum(answer.document is not None for answer in gathering.wait())


async def _raw(port: int, urls: Sequence[str]) -> int:
    """The same by the least that asks, unpacks and reads."""
    room = asyncio.Semaphore(_AT_ONCE)

    async def ask(host: str) -> int:
        async with room:
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(f"GET /dump HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            answer = await reader.read()
            writer.close()
        return len(json.loads(zlib.decompress(answer.partition(b"\r\n\r\n")[2], 31)))

    return len(await asyncio.gather(*(ask(url.split("/")[2].partition(":")[0]) for url in urls)))


def _listens(port: int) -> bool:
    try:
        socket.create_connection((_address(0), port), 1.0).close()
    except OSError:
        return False
    return True


def _address(number: int) -> str:
    return f"127.1.{number // 250}.{number % 250 + 1}"


async def _serve(bodies: Sequence[bytes], port: int) -> None:
    places = {_address(number): number for number in range(len(bodies))}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            address = writer.get_extra_info("sockname")[0]
            if address == _MUTE:
                await asyncio.sleep(3600)
            body = bodies[places[address]]
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

    server = await asyncio.start_server(answer, "0.0.0.0", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(answers(int(sys.argv[1])), int(sys.argv[2])))
