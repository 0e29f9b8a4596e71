"""A launcher and its ranks without torch that need host memory, for tests: `python memory_ranks.py MODE...`,
one rank a mode.

Each rank joins the cgroups named by MEMORY_CGROUP and PIDS_CGROUP and makes steps. When the file GO is there,
it does what its mode says, makes STEPS more steps, and ends. Modes that eat memory end in the kernel's
SIGKILL or in the error that a job would see.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MIB = 1 << 20
_KEPT: list[Any] = []
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15


def announce(what: str) -> None:
    os.write(
        2,
        f"[diag.fault] rank {os.environ['RANK']}: {what} (pid {os.getpid()}) at={time.time():.3f}\n".encode(),
    )


def eat(megabytes_a_second: float = 60.0) -> None:
    while True:
        _KEPT.append(bytearray(b"x") * (2 * MIB))
        time.sleep(2 / megabytes_a_second)


def saves() -> None:
    """Rank 0 says so, and waits for the others."""
    print("saving checkpoint at iteration     100 to /out in torch_dist format", flush=True)
    time.sleep(60)


def saves_and_eats() -> None:
    announce("eats")
    eat()


def worker(work: Callable[[], None], name: bytes = b"pt_data_worker") -> int:
    child = os.fork()
    if child == 0:
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_NAME, name, 0, 0, 0)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        work()
        os._exit(0)
    return child


def worker_eats() -> None:
    announce("worker")
    child = worker(eat)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        raise RuntimeError(f"DataLoader worker (pid {child}) is killed by signal: Killed. ")


def saves_with_limited_addresses() -> None:
    announce("rlimit")
    while True:
        _KEPT.append(bytearray(64 * MIB))


def maps_more_than_there_is() -> None:
    announce("mmap")
    mmap.mmap(-1, 1 << 45)


def forks() -> None:
    announce("forks")
    while True:
        worker(lambda: time.sleep(60), b"python")


# -- benign
# ---------------------------------------------------------------------------------------------------------


def writes_page_cache() -> None:
    """Twice the limit through the page cache: the cgroup is full of it."""
    with open(os.environ["SCRATCH"], "wb") as file:
        for _ in range(96):
            file.write(b"x" * MIB)
    with open(os.environ["SCRATCH"], "rb") as file:
        while file.read(MIB):
            pass


def writes_dirty() -> None:
    with open(os.environ["SCRATCH"], "wb", buffering=0) as file:
        for _ in range(40):
            file.write(os.urandom(MIB))
            time.sleep(0.02)


def grows_and_frees() -> None:
    for _ in range(3):
        held = [bytearray(b"x") * MIB for _ in range(30)]
        time.sleep(0.3)
        held.clear()


def maps_a_big_file() -> None:
    with open(os.environ["SCRATCH"], "wb") as file:
        file.truncate(512 * MIB)
    with (
        open(os.environ["SCRATCH"], "rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped,
    ):
        for at in range(0, 80 * MIB, 4096):
            mapped[at]


def shares_memory() -> None:
    path = Path("/dev/shm", f"diag-test-{os.getpid()}")
    try:
        with open(path, "wb") as file:
            for _ in range(25):  # half of the limit
                file.write(b"x" * MIB)
        time.sleep(1.5)
    finally:
        path.unlink()


def workers_come_and_go() -> None:
    for _ in range(20):
        children = [worker(lambda: _KEPT.append(bytearray(b"x") * 2 * MIB)) for _ in range(4)]
        for child in children:
            os.waitpid(child, 0)


def survives_a_refusal() -> None:
    try:
        bytearray(1 << 45)
    except MemoryError:
        print("MemoryError", file=sys.stderr, flush=True)


def forks_and_shares() -> None:
    _KEPT.append(bytearray(b"x") * 20 * MIB)
    children = [worker(lambda: time.sleep(2.0)) for _ in range(8)]  # 8 times 20 MiB resident, 20 MiB in all
    for child in children:
        os.waitpid(child, 0)


def grows_by_huge_pages() -> None:
    memory = mmap.mmap(-1, 28 * MIB)
    with contextlib.suppress(OSError, AttributeError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    for at in range(0, len(memory), 4096):
        memory[at] = 1
    _KEPT.append(memory)


def is_killed_by_hand() -> None:
    announce("by hand")
    os.kill(os.getpid(), signal.SIGKILL)


MODES: dict[str, Callable[[], None]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        saves,
        saves_and_eats,
        worker_eats,
        saves_with_limited_addresses,
        maps_more_than_there_is,
        forks,
        writes_page_cache,
        writes_dirty,
        grows_and_frees,
        maps_a_big_file,
        shares_memory,
        workers_come_and_go,
        survives_a_refusal,
        forks_and_shares,
        grows_by_huge_pages,
        is_killed_by_hand,
    )
}


def rank_main(mode: str) -> None:
    rank = int(os.environ["RANK"])
    for name in ("MEMORY_CGROUP", "PIDS_CGROUP"):
        if name in os.environ:
            Path(os.environ[name], "cgroup.procs").write_text(str(os.getpid()))
    if mode == "saves-with-limited-addresses":
        resource.setrlimit(resource.RLIMIT_AS, (512 * MIB, 512 * MIB))
    number, left = 0, int(os.environ.get("STEPS", "60"))
    while left:
        number += 1
        end = time.monotonic() + 0.02
        while time.monotonic() < end:
            sum(range(1000))
        time.sleep(0.03)
        if rank == 0:
            print(
                f" iteration {number:8d}/{100000:8d} | loss: {1 / number:.6f} | grad norm: 2.0 |", flush=True
            )
        if Path(os.environ["GO"]).exists():
            if mode in MODES:
                MODES.pop(mode)()
            left -= 1


def main() -> int:
    modes = sys.argv[1:]
    children = []
    for rank, mode in enumerate(modes):
        env = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(len(modes)),
            "MODE": mode,
        }
        children.append(subprocess.Popen([sys.executable, "-u", __file__, *modes], env=env))
    for _ in children:  # whoever ends first; not reaped yet, as torchrun looks ten times a second
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        time.sleep(0.5)
        child = next(child for child in children if child.pid == ended.si_pid)
        if child.wait() != 0:
            for other in children:  # as torchrun ends the others
                other.terminate()
            for other in children:
                other.wait()
            return 1
    return 0


if __name__ == "__main__":
    if "MODE" in os.environ:
        rank_main(os.environ.pop("MODE"))
    else:
        sys.exit(main())
