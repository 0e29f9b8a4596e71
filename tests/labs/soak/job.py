"""A busy node without torch: a launcher and ranks that stand in recorded stacks, step together, print, save
and evaluate.

`python -m tests.labs.soak.job FOLDER --ranks 8 --seconds 3600`: ranks have torchrun's variables, threads and
DataLoader workers that come and go with each epoch. What happens when follows from the number of the step
alone. Standard library only: ranks are light.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

from tests.labs.soak.words import NcclWords, TrainingWords

STEP_SECONDS = 0.2
_FIRST_SECONDS = 2.0
_KEPT_CHECKPOINTS = 2
_SHARD_BYTES = 1 << 20
_SAVE_BYTES = 24 << 20  # what a rank holds more while it saves
_NCCL_LINES_A_STEP = 5  # of each of eight ranks: 200 lines a second

Leaf = Callable[[], Any]


class Plan:
    """When something else than a step happens, in steps."""

    def __init__(self, dense: bool) -> None:
        self.save_every = 60 if dense else 1200
        self.save_seconds = 1.0 if dense else 6.0
        self.evaluate_every = 45 if dense else 1500
        self.epoch_every = 40 if dense else 400
        self.burst_every, self.burst_steps = (25, 5) if dense else (100, 25)
        self.straggle_every, self.straggle_steps, self.straggle_seconds = (
            (50, 3, 0.2) if dense else (900, 15, 0.3)
        )


# --- stacks
# ----------------------------------------------------------------------------------------------------


def _link(chain: Sequence[Any], at: int) -> Any:
    return chain[at](chain, at + 1)


def _end(chain: Sequence[Any], at: int) -> Any:
    return chain[at]()


@functools.lru_cache(maxsize=4096)
def _frame(function: str, file: str, line: int, innermost: bool) -> FunctionType:
    """A function that shows as this frame; the innermost one calls something of C, which shows as none."""
    name = function.rpartition(".")[2]
    code = (_end if innermost else _link).__code__.replace(
        co_name=name, co_filename=file, co_firstlineno=max(1, line - 1)
    )
    if sys.version_info >= (3, 11):
        code = code.replace(co_qualname=function)
    return FunctionType(code, {}, name)


def chain(stack: Sequence[Sequence[Any]]) -> Callable[[Leaf], Any]:
    """Calls a builtin in this stack."""
    links = [
        _frame(function, file, line, at == len(stack) - 1) for at, (function, file, line) in enumerate(stack)
    ]

    def stand(leaf: Leaf) -> Any:
        return links[0]([*links, leaf], 1)

    return stand


# --- a rank
# ----------------------------------------------------------------------------------------------------


class Rank:
    def __init__(self, folder: Path, end: socket.socket, dense: bool, steps: int) -> None:
        self.rank = int(os.environ["RANK"])
        self.folder = folder
        self.end = end
        self.plan = Plan(dense)
        stacks = json.loads((folder / "stacks.json").read_text())
        self.stacks = {kind: [chain(stack) for stack in found] for kind, found in stacks.items()}
        self.words = TrainingWords(steps, str(folder / "out"), seed=3)
        self.nccl = NcclWords(self.rank, os.getpid(), socket.gethostname())
        self.nccl_left: list[str] = []
        self.splits = 0
        self.chance = random.Random(self.rank)
        self.workers: list[int] = []
        self.workers_pipe = -1
        named = os.environ.get("NCCL_DEBUG_FILE", "")
        named = named.replace("%h", socket.gethostname()).replace("%p", str(os.getpid()))
        self.nccl_file = (
            os.open(named, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) if named and self.rank % 2 else 1
        )
        self.began = 0.0

    # -- together -----------------------------------------------------------------------------------------

    def together(self, kind: str = "wait", at: int = 0) -> bool:
        """Stand in a collective until all ranks have come; whether the job goes on."""
        self.end.send(b".")
        read, _, _ = select.select([self.end], [], [], 0)
        if read:
            return self.end.recv(1) == b"g"
        stands = self.stacks[kind]
        return bool(stands[at % len(stands)](functools.partial(self.end.recv, 1)) == b"g")

    def say(self, text: str, to: int = 1) -> None:
        data = text.encode()
        for begin in range(0, len(data), 4096):  # what a pipe takes in one piece: ranks share it
            os.write(to, data[begin : begin + 4096])

    # -- beside the main thread ---------------------------------------------------------------------------

    def start_threads(self) -> None:
        for stack in self.stacks["thread"]:
            held = threading.Lock()
            held.acquire()
            threading.Thread(target=stack, args=(held.acquire,), daemon=True).start()

    def start_workers(self) -> None:
        self.end_workers()
        read, self.workers_pipe = os.pipe()
        for number in range(2):
            pid = os.fork()
            if pid == 0:
                os.close(self.workers_pipe)
                self._worker(read, number)
            self.workers.append(pid)
        os.close(read)

    def _worker(self, pipe: int, number: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        Path("/proc/self/comm").write_text("pt_data_worker")
        waits = self.stacks["worker-waits"][number % 2]
        reads = self.stacks["worker-reads"][0]
        # readable: the rank has closed it, or died
        while not waits(functools.partial(select.select, [pipe], [], [], 0.5))[0]:
            reads(functools.partial(time.sleep, 0.005))
        os._exit(0)

    def end_workers(self) -> None:
        if self.workers_pipe >= 0:
            os.close(self.workers_pipe)
            self.workers_pipe = -1
        for pid in self.workers:
            os.waitpid(pid, 0)
        self.workers.clear()

    # -- what a step is -----------------------------------------------------------------------------------

    def train(self, steps: int) -> None:
        self.start_threads()
        self.nccl_left = self.nccl.start()
        time.sleep(_FIRST_SECONDS)
        if self.rank == 0:
            self.say(self.words.start())
        self.start_workers()
        self.began = time.monotonic()
        for number in range(1, steps + 1):
            if not self.step(number):
                break
        self.end_workers()
        if self.rank == 0:
            self.say("\n[INFO:swift] End time of running main: 2026-11-22 10:31:55.589628\n")

    def step(self, number: int) -> bool:
        plan, began = self.plan, time.monotonic()
        if number % plan.epoch_every == 0:
            if self.rank == 0:
                self.say("\n" + self.words.epoch(number // plan.epoch_every))
            self.start_workers()
        self.stacks["data"][0](functools.partial(time.sleep, 0.01))
        works = self.stacks["work"]
        for _ in range(3):
            self.chance.choice(works)(functools.partial(sum, range(20_000)))
            self.chance.choice(works)(functools.partial(time.sleep, self.chance.uniform(0.02, 0.04)))
        turn, since = divmod(number, plan.straggle_every)
        if since < plan.straggle_steps and self.rank == turn % 8 and turn:
            self.chance.choice(works)(functools.partial(time.sleep, plan.straggle_seconds))
        self.say_nccl(number)
        if not self.together("wait", number):
            return False
        left = STEP_SECONDS - (time.monotonic() - began) - 0.01
        if left > 0:
            self.chance.choice(works)(functools.partial(time.sleep, left))
        if self.rank == 0:
            self.say(self.words.step(number, time.monotonic() - self.began))
        if number % plan.evaluate_every == 0 and not self.evaluate(number):
            return False
        return number % plan.save_every != 0 or self.save(number)

    def say_nccl(self, number: int) -> None:
        if number % self.plan.burst_every < self.plan.burst_steps and not self.nccl_left:
            self.splits += 1
            self.nccl_left = self.nccl.split(self.splits)
        if self.nccl_left:
            some, self.nccl_left = self.nccl_left[:_NCCL_LINES_A_STEP], self.nccl_left[_NCCL_LINES_A_STEP:]
            self.say("".join(some), self.nccl_file)

    def evaluate(self, number: int) -> bool:
        began, batches = time.monotonic(), 6
        for batch in range(batches):
            self.chance.choice(self.stacks["work"])(functools.partial(time.sleep, 0.15))
            if not self.together("wait", batch):
                return False
            if self.rank == 0:
                now = time.monotonic()
                self.say(self.words.evaluated(number, now - self.began, batch + 1, batches, now - began))
        return True

    def save(self, number: int) -> bool:
        saves, root = self.stacks["save"], self.folder / "out" / f"checkpoint-{number}"
        folder = root / f"iter_{number:07d}"
        held = bytearray(_SAVE_BYTES)  # gone with the save
        if self.rank == 0:
            self.say("\n" + self.words.saving(number))
            folder.mkdir(parents=True)
        if not self.together("wait", 1):
            return False
        for part, stand in enumerate(saves):
            stand(functools.partial(time.sleep, self.plan.save_seconds / len(saves)))
            if part == 1:
                with (
                    open(folder / f"__{self.rank}_0.distcp", "wb", buffering=0) as raw,
                    zipfile.ZipFile(raw, "w") as archive,
                ):
                    archive.writestr("data", bytes(held[:_SHARD_BYTES]))
        if not self.together("save", 3):
            return False
        if self.rank == 0:
            self._finish_save(folder, number)
        return self.together("wait", 1)

    def _finish_save(self, folder: Path, number: int) -> None:
        ranks = int(os.environ["WORLD_SIZE"])
        with zipfile.ZipFile(folder / "common.pt", "w") as archive:
            archive.writestr("data", b"0" * 1000)
        (folder / ".metadata").write_bytes(
            b"\x80\x04" + b"\x94".join(b"__%d_0.distcp" % rank for rank in range(ranks)) + b"."
        )
        (folder / "metadata.json").write_text(
            '{"sharded_backend": "torch_dist", "sharded_backend_version": 1}'
        )
        (folder.parent / "latest_checkpointed_iteration.txt").write_text(str(number))
        self.say(self.words.saved(number))
        for old in range(number - _KEPT_CHECKPOINTS * self.plan.save_every, 0, -self.plan.save_every):
            shutil.rmtree(self.folder / "out" / f"checkpoint-{old}", ignore_errors=True)


# --- the launcher
# ----------------------------------------------------------------------------------------------


def launch(folder: Path, ranks: int, seconds: float, dense: bool) -> int:
    ends, children = [], []
    for rank in range(ranks):
        ours, theirs = socket.socketpair()
        given = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "GROUP_RANK": 0,
            "ROLE_RANK": rank,
            "WORLD_SIZE": ranks,
            "LOCAL_WORLD_SIZE": ranks,
            "GROUP_WORLD_SIZE": 1,
            "ROLE_WORLD_SIZE": ranks,
            "ROLE_NAME": "default",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": 29500,
            "TORCHELASTIC_RESTART_COUNT": 0,
            "TORCHELASTIC_MAX_RESTARTS": 0,
            "TORCHELASTIC_RUN_ID": "none",
            "SOAK_END": theirs.fileno(),
        }
        env = {**os.environ, **{name: str(value) for name, value in given.items()}}
        children.append(
            subprocess.Popen(
                [sys.executable, "-m", "tests.labs.soak.job", *sys.argv[1:]],
                env=env,
                pass_fds=[theirs.fileno()],
            )
        )
        theirs.close()
        ends.append(ours)
    over = time.monotonic() + seconds
    while all(end.recv(1) for end in ends):  # an empty answer: that rank has ended
        word = b"g" if time.monotonic() < over else b"x"
        for end in ends:
            end.send(word)
        if word == b"x":
            break
    return max(abs(child.wait()) for child in children)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument(
        "--dense", action="store_true", help="saves, evaluations and epochs some seconds apart"
    )
    options = parser.parse_args()
    if "SOAK_END" not in os.environ:
        return launch(options.folder, options.ranks, options.seconds, options.dense)
    end = socket.socket(fileno=int(os.environ.pop("SOAK_END")))
    steps = int(options.seconds / STEP_SECONDS * 1.3)  # more than there is time for
    Rank(options.folder, end, options.dense, steps).train(steps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
