"""The records that a hub takes of a busy node, for as long as one likes, in told time: the rates are those of
diag's defaults.

Payloads are those of a machine with GPUs (tests/captures/h200-live/healthy-saves), for eight ranks, with
counters that move on.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from diag.model import Record
from diag.sources.logs import output
from tests.labs.soak.recorded import Stack, recorded_stacks
from tests.labs.soak.words import NcclWords, TrainingWords

__all__ = ["Node"]

_JOURNAL = Path(__file__).parents[2] / "captures/h200-live/healthy-saves/journal-000001.jsonl.gz"
_HOST = "gpu-node-0"
_HZ = 100
_STACKS, _PROC, _NODE, _PEEK = 5.0, 2.0, 5.0, 10.0
_CHECKPOINT = 30.0
_SAVE_EVERY, _SAVE_SECONDS = 1200.0, 12.0
_EVALUATION_EVERY, _EPOCH_EVERY = 1500.0, 400.0
_NCCL_EVERY, _NCCL_SECONDS = 300.0, 30.0
_NCCL_LINES = 5  # of each rank a step
_DUMP_EVERY = 120.0  # stacks of children too
_RESTART_SECONDS = 4 * 3600.0
_RESTART_PAUSE = 5.0
_HICCUP_SECONDS = 600.0


class Node:
    """`records(began, seconds)` yields records in the order of their told times. `restarts` holds the told
    times at which rank 3 was killed and all ranks began anew: what is found then is no false alarm."""

    def __init__(
        self, ranks: int = 8, step_seconds: float = 0.2, addresses: int = 512, seed: int = 1
    ) -> None:
        self.ranks = ranks
        self.step_seconds = step_seconds
        self._addresses = addresses
        self.restarts: list[float] = []
        self._chance = random.Random(seed)
        self._templates = _templates()
        self._stacks = recorded_stacks()
        self._lines = output.LineAssembler("both")
        self._attempt = 0
        self._pid = 1000
        self._pids: list[int] = []
        self._workers: list[list[int]] = []
        self._nccl: list[NcclWords] = []
        self._nccl_left: list[list[str]] = []
        self._splits = 0
        self._step = 0
        self._saving_until = 0.0
        self._trained = 0.0
        self._saves: list[tuple[int, float]] = []  # step, when
        self._words = TrainingWords(10**7, "/data/out/v0-20261122-103142")

    # -- one of each source -------------------------------------------------------------------------------

    def _record(self, at: float, source: str, payload: Any, rank: int | None = None) -> Record:
        return Record(source, payload, rank=rank, host=_HOST, emitted=at - 0.001, at=at)

    def _begin(self, at: float) -> Iterator[Record]:
        self._pids = [self._new_pid() for _ in range(self.ranks)]
        self._nccl = [
            NcclWords(rank, pid, _HOST, addresses=self._addresses, attempt=self._attempt)
            for rank, pid in enumerate(self._pids)
        ]
        self._nccl_left = [words.start() for words in self._nccl]
        template = self._templates["run"]["payload"]
        for rank, pid in enumerate(self._pids):
            place = {
                **template["placement"],
                "rank": rank,
                "local_rank": rank,
                "world_size": self.ranks,
                "pid": pid,
                "local_world_size": self.ranks,
                "start_ticks": self._ticks(at),
            }
            env = {
                **template["env"],
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "TORCHELASTIC_RESTART_COUNT": str(self._attempt),
            }
            yield self._record(at, "run", {**template, "placement": place, "env": env}, rank)
            yield self._record(at, "proc", {**self._templates["limits"]["payload"], "pid": pid}, rank)
        yield from self._say(at, self._words.start())
        self._epoch()

    def _new_pid(self) -> int:
        self._pid = self._pid + 1 if self._pid < 4_000_000 else 1000
        return self._pid

    @staticmethod
    def _ticks(at: float) -> int:
        return int(at % 10_000_000 * _HZ)

    def _epoch(self) -> None:
        self._workers = [[self._new_pid() for _ in range(2)] for _ in range(self.ranks)]

    def _say(self, at: float, text: str) -> Iterator[Record]:
        payload = self._lines.feed(text.encode())
        if payload is not None:
            yield self._record(at, output.SOURCE, payload)

    def _stack(self, at: float, rank: int) -> Record:
        kinds = ("save",) if at < self._saving_until else ("work", "work", "wait", "data")
        main = self._chance.choice(self._stacks[self._chance.choice(kinds)])
        pid = self._pids[rank]
        threads = [(pid, "MainThread", main)]
        threads += [
            (5_000_000 + pid + number, f"Thread-{number}", stack)
            for number, stack in enumerate(self._stacks["thread"])
        ]
        return self._one_stack(at, rank, pid, threads)

    def _one_stack(
        self,
        at: float,
        rank: int,
        pid: int,
        named: list[tuple[int, str, Stack]],
        *,
        parent: int | None = None,
    ) -> Record:
        codes: dict[tuple[str, str], int] = {}

        def numbered(stack: Stack) -> list[int]:
            return [
                number
                for name, file, line in stack
                for number in (codes.setdefault((name, file), len(codes)), line)
            ]

        threads = [
            {"id": each, "name": name, "owns_gil": False, "frames": numbered(stack)}
            for each, name, stack in named
        ]
        payload = {"pid": pid, "codes": [list(code) for code in codes], "threads": threads}
        return self._record(
            at, "remote_stack", payload if parent is None else {**payload, "parent_pid": parent}, rank
        )

    def _proc(self, at: float, rank: int) -> Record:
        pid, ran = self._pids[rank], int(self._trained * _HZ)
        saving = (16 << 20) // 4096 if at < self._saving_until else 0
        rss = 600_000 + self._chance.randrange(2000) + saving

        def stat(pid: int, comm: str, parent: int, ticks: int, *, threads: int, pages: int) -> str:
            return (
                f"{pid} ({comm}) S {parent} 976 976 0 -1 4194560 900952 54101 108 0 {ticks} {ticks // 8} 47 15 20 0 "
                f"{threads} 0 5603 3347228545024 {pages}"
            )

        io = (
            f"rchar: {711567904 + ran * 9000}\nwchar: {9570935 + ran * 100}\nsyscr: {34921 + ran}\nsyscw: {2554 + ran}\n"
            f"read_bytes: {395915264 + ran * 4096}\nwrite_bytes: {12165120 + ran}\ncancelled_write_bytes: 0\n"
        )
        template = self._templates["proc"]["payload"]
        read = [
            stat(child, "pt_data_worker", pid, ran // 20, threads=5, pages=80_000)
            for child in self._workers[rank]
        ]
        return self._record(at, "proc", {
            **template, "pid": pid, "stat": stat(pid, "python3", 957, ran, threads=88, pages=rss), "io": io,
            "main_stat": stat(pid, "python3", 957, ran * 3 // 4, threads=88, pages=rss),
            "children": [{"stat": line} for line in read],
        }, rank)  # fmt: skip

    def _other(self, at: float, source: str, rank: int | None = None) -> Record:
        payload = self._templates[source]["payload"]
        if rank is not None and "pid" in payload:
            payload = {**payload, "pid": self._pids[rank]}
        if source == "nvml":
            first = payload["gpus"][0]
            gpus = [
                {
                    **first,
                    "index": index,
                    "uuid": f"GPU-{index:08x}-0000-0000-0000-000000000000",
                    "pci": f"00000000:00:{6 + index:02x}.0",
                    "util": self._chance.randrange(60, 100),
                    "pids": [pid],
                    "pid_mem": [[pid, 6945767424]],
                }
                for index, pid in enumerate(self._pids)
            ]
            payload = {**payload, "count": len(gpus), "gpus": gpus}
        return self._record(at, source, payload, rank)

    def _checkpoint(self, at: float) -> Record:
        payload = self._templates["checkpoint"]["payload"]
        first = payload["folders"][0]
        folders = []
        for step, saved in self._saves[-2:]:
            text = (
                json.dumps(first)
                .replace("checkpoint-10", f"checkpoint-{step}")
                .replace("iter_0000010", f"iter_{step:07d}")
            )
            heads = json.loads(text)
            heads["heads"]["latest_checkpointed_iteration.txt"] = {"text": str(step)}
            folders.append({**heads, "changed": saved})
        tracker = ["last-checkpoint", f"checkpoint-{self._saves[-1][0]}"]
        return self._record(at, "checkpoint", {**payload, "tracker": tracker, "folders": folders})

    # -- all of them, in order ----------------------------------------------------------------------------

    def records(self, began: float, seconds: float) -> Iterator[Record]:
        argv = ["torchrun", "--nproc_per_node", str(self.ranks), "train.py"]
        yield self._record(
            began, "run", {"event": "started", "argv": argv, "pid": 930, "world_size": self.ranks}
        )
        yield from self._begin(began + 1.0)
        next_restart, away_until = began + _RESTART_SECONDS, began + 2.0
        for tick in range(int(2 / self.step_seconds), int(seconds / self.step_seconds)):
            at = began + tick * self.step_seconds
            if at >= next_restart:
                next_restart += _RESTART_SECONDS
                away_until = at + _RESTART_PAUSE
                yield from self._restart(at)
            if at < away_until:
                continue
            if not self._pids:
                self._attempt += 1
                yield from self._begin(at)
            yield from self._sampled(tick, at)
            yield from self._trains(at)

    def _restart(self, at: float) -> Iterator[Record]:
        self.restarts.append(at)
        for rank, pid in enumerate(self._pids):
            yield self._record(
                at, "exits", {"pid": pid, "status": 9 if rank == 3 else 15, "how": "zombie"}, rank
            )
        self._pids = []

    def _sampled(self, tick: int, at: float) -> Iterator[Record]:
        def due(seconds: float, shift: int = 0) -> bool:
            return (tick + shift) % round(seconds / self.step_seconds) == 0

        for rank in range(self.ranks):
            if due(_STACKS, 3 * rank):
                yield self._stack(at, rank)
            if due(_PROC, rank):
                yield self._proc(at, rank)
            if due(_NODE, rank):
                yield self._other(at, "cgroup", rank)
                yield self._other(at, "shm", rank)
            if due(_HICCUP_SECONDS, 50 * rank):
                failed = {
                    "event": "failed",
                    "source": "cgroup",
                    "reason": "Interrupted system call",
                    "remedy": "",
                }
                yield self._record(at, "run", failed, rank)
                yield self._record(at, "run", {"event": "works", "source": "cgroup"}, rank)
            if due(_DUMP_EVERY):
                yield self._stack(at, rank)
                for number, child in enumerate(self._workers[rank]):
                    kind = "worker-reads" if number else "worker-waits"
                    stands = [(child, "MainThread", self._stacks[kind][0])]
                    yield self._one_stack(at, rank, child, stands, parent=self._pids[rank])
        if due(_NODE):
            yield self._other(at, "nvml")
        if due(_PEEK):
            for source in ("disk", "interfaces", "infiniband"):
                yield self._other(at, source)
        if due(_CHECKPOINT) and self._saves:
            yield self._checkpoint(at)

    def _each(self, seconds: float) -> int:
        """Steps since the last multiple of so many seconds of training."""
        return self._step % round(seconds / self.step_seconds)

    def _trains(self, at: float) -> Iterator[Record]:
        if at < self._saving_until:
            return
        if self._saving_until:
            self._saving_until = 0.0
            self._saves.append((self._step, at))
            yield from self._say(at, self._words.saved(self._step))
        self._step += 1
        self._trained += self.step_seconds
        text = self._words.step(self._step, self._trained)
        if self._each(_EVALUATION_EVERY) == 0:
            text += "".join(
                self._words.evaluated(self._step, self._trained, done, 6, 0.1 * done) for done in range(1, 7)
            )
        if self._each(_EPOCH_EVERY) == 0:
            self._epoch()
            text += "\n" + self._words.epoch(round(self._trained / _EPOCH_EVERY))
        yield from self._say(at, text)
        if self._each(_NCCL_EVERY) * self.step_seconds < _NCCL_SECONDS and not self._nccl_left[-1]:
            self._splits += 1
            self._nccl_left = [words.split(self._splits) for words in self._nccl]
        if self._nccl_left[-1]:
            some = [line for left in self._nccl_left for line in left[:_NCCL_LINES]]
            self._nccl_left = [left[_NCCL_LINES:] for left in self._nccl_left]
            yield from self._say(at, "\n" + "".join(some))
        if self._each(_SAVE_EVERY) == 0:
            self._saving_until = at + _SAVE_SECONDS
            yield from self._say(at, "\n" + self._words.saving(self._step))


def _templates() -> dict[str, Any]:
    """The last healthy record of each source."""
    found: dict[str, Any] = {}
    with gzip.open(_JOURNAL, "rt") as lines:
        for line in lines:
            told = json.loads(line)
            source = told.get("source")
            if source == "proc" and "limits" in told["payload"]:
                source = "limits"
            if source == "run" and told["payload"]["event"] != "rank":
                continue
            if source == "checkpoint" and told["payload"]["role"] != "save":
                continue
            if source:
                found[source] = told
    return found
