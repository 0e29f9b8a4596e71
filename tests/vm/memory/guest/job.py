"""A training job of two ranks: `python -m tests.vm.memory.guest.job SCENARIO`.

Its parent starts the ranks, each in its cgroup and with its limits, and ends both when one failed, as
torchrun does. A rank makes steps until it is told to save (files beside the job's terminal: see `Signs`), and
prints what ms-swift 4.6 prints.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from types import TracebackType

from tests.vm.guest.shell import until
from tests.vm.memory.guest import cgroups
from tests.vm.memory.guest.deeds import DEEDS
from tests.vm.memory.guest.megatron.trainers.base import save_checkpoint
from tests.vm.memory.scenarios import BY_NAME, MIB, Scenario

_WAIT_SECONDS = 600.0
_GRACE_SECONDS = 10.0  # torchrun has 30


class Signs:
    """Files by which the driver tells the ranks what to do next, and rank 1 that it has done it."""

    def __init__(self, scenario: Scenario) -> None:
        self.folder = Path("/tmp/signs", scenario.name)

    def give(self, name: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / name).touch()

    def given(self, name: str) -> bool:
        return (self.folder / name).exists()

    def wait(self, name: str) -> None:
        until(lambda: self.given(name), _WAIT_SECONDS, name)


def main(scenario: Scenario) -> int:
    ranks = []
    for number, leaf in enumerate(cgroups.leaves(scenario)):
        words = [] if scenario.diag_inside else cgroups.inside(leaf)
        if number == 1 and scenario.address_space:
            words += ["prlimit", f"--as={scenario.address_space}"]
        if number == 1 and scenario.shm:
            words += [
                "unshare",
                "--mount",
                "sh",
                "-c",
                f'mount -t tmpfs -o size={scenario.shm} shm /dev/shm && exec "$@"',
                "sh",
            ]
        env = {**os.environ, "RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
               "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}  # fmt: skip
        words += [sys.executable, "-u", "-m", "tests.vm.memory.guest.job", scenario.name, str(number)]
        ranks.append(subprocess.Popen(words, env=env, cwd="/diag"))
    signal.signal(signal.SIGTERM, lambda *_: [rank.terminate() for rank in ranks])
    while all(rank.poll() is None for rank in ranks):
        time.sleep(0.1)  # as torchrun's agent
    failed = next(((number, rank) for number, rank in enumerate(ranks) if rank.poll()), None)
    if failed is not None:
        number, rank = failed
        # torch 2.13, torch/distributed/elastic/multiprocessing/api.py, on stderr of the agent
        _say(f"E1121 20:00:00.000000 {os.getpid()} torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: "
             f"{rank.returncode}) local_rank: {number} (pid: {rank.pid}) of binary: {sys.executable}")  # fmt: skip
        for rank in ranks:
            rank.terminate()
    codes = [_wait(rank) for rank in ranks]
    return 1 if any(codes) else 0


def _wait(rank: subprocess.Popen[bytes]) -> int:
    try:
        return rank.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:  # the kernel holds it up
        rank.kill()
        return rank.wait()


def train(scenario: Scenario, number: int) -> int:
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    signs, saved = Signs(scenario), False
    held = b"x" * (8 * MIB)  # the model, as it were
    if number == 0:
        _say("[INFO:swift] The training of Epoch 0 starts...")
    sys.excepthook = _as_torch_does
    step = 0
    while not over.wait(0.5):
        step += 1
        if number == 1:  # the last rank prints them
            print(f"{{'loss': {0.69314718 / (1 + step / 100):.8f}, 'grad_norm': 1.10422194, 'learning_rate': 9.847e-05, "
                  f"'iteration': '{step}/1000000', "
                  f"'elapsed_time': '{step // 2}s', 'remaining_time': '7s', 'memory(GiB)': 0.0, 'train_speed(s/it)': 0.5}}",
                  flush=True)  # fmt: skip
        if not saved and signs.given("save"):
            saved = True
            save_checkpoint(lambda: _work(scenario, number, over))
            if number == 0 and not over.is_set():
                _say("[INFO:swift] Successfully saved Megatron model weights in `/output/checkpoint-4`.")
    return 0 if held else 1


# torch 2.13, torch/distributed/distributed_c10d.py, once init_process_group has come
def _as_torch_does(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    text = "".join(traceback.format_exception(kind, error, trace))
    _say(
        "".join(f"[rank{os.environ['RANK']}]: {line}" for line in text.splitlines(keepends=True)).rstrip("\n")
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _work(scenario: Scenario, number: int, over: threading.Event) -> None:
    """Of the save: rank 0 is done when rank 1 is."""
    signs = Signs(scenario)
    if number == 1:
        signs.wait("act")
        DEEDS[scenario.does]()
        signs.give("done")
    else:
        until(lambda: signs.given("done") or over.is_set(), _WAIT_SECONDS, "the other rank's part")


if __name__ == "__main__":
    chosen = BY_NAME[sys.argv[1]]
    sys.exit(main(chosen) if len(sys.argv) == 2 else train(chosen, int(sys.argv[2])))
