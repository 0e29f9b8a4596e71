"""A tree of processes of every stubborn kind, chosen by a seed. `python -m tests.act.trees SEED` becomes one; with
`--end` it is the carrier of one instead: starts it, ends it, prints what became of it as JSON."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NoReturn

from diag.launch import tree

KINDS = ("plain", "deaf", "session", "group", "daemon", "stopped", "forking", "masked")
_READY = "TREE_READY"  # a descriptor: each process writes a byte when it is as stubborn as it will be


def wait_for_ever() -> NoReturn:
    while True:
        signal.pause()


def _ready() -> None:
    os.write(int(os.environ[_READY]), b".")


def _child(then: Callable[[], None]) -> None:
    if os.fork() == 0:
        try:
            then()
        finally:
            os._exit(0)


def plain() -> None:
    _ready()
    wait_for_ever()


def deaf() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    plain()


def masked() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    plain()


def session() -> None:
    os.setsid()
    deaf()


def group() -> None:
    os.setpgid(0, 0)
    plain()


def daemon() -> None:
    """The double fork: its parent ends at once, and it is in a session of its own."""
    os.setsid()
    _child(deaf)
    os._exit(0)


def stopped() -> None:
    _ready()
    os.kill(os.getpid(), signal.SIGSTOP)
    wait_for_ever()


def forking() -> None:
    """Starts another as soon as one of its children has ended, until it is ended itself."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _ready()
    while True:
        pid = os.fork()
        if pid == 0:
            time.sleep(0.02)
            os._exit(0)
        os.waitpid(pid, 0)


def plan(seed: int) -> list[tuple[str, bool]]:
    """What kinds the tree has, and which of them have such a one as their child and do not hear themselves."""
    random_ = random.Random(seed)
    return [(random_.choice(KINDS), random_.random() < 0.3) for _ in range(random_.randint(2, 7))]


def grow(seed: int) -> None:
    for kind, deep in plan(seed):

        def run(kind: str = kind, deep: bool = deep) -> None:
            if deep:
                _child(globals()[kind])
                deaf()
            globals()[kind]()

        _child(run)


def end_one(seed: int, grace: float) -> dict[str, object]:
    """Start a tree below this process and end it."""
    read, write = os.pipe()
    os.set_inheritable(write, True)
    command = subprocess.Popen(
        [sys.executable, "-S", "-m", "tests.act.trees", str(seed)],
        env={**os.environ, _READY: str(write)},
        pass_fds=(write,),
    )
    os.close(write)
    expected, seen = sum(1 + deep for _, deep in plan(seed)), 0
    while seen < expected:
        data = os.read(read, 100)
        assert data, "the tree ended by itself"
        seen += len(data)
    os.close(read)
    me = os.getpid()

    def look() -> list[tree.Process]:
        return tree.members(tree.read_table(), me, spared=(), is_marked=lambda pid: True)

    grown = len(look())

    def reap() -> None:
        tree.reap_adopted({command.pid})
        command.poll()

    ending = tree.end_tree(look, grace, reap=reap)
    command.wait(5)
    reap()
    return {
        "seed": seed,
        "expected": expected,
        "grown": grown,
        "whole": ending.whole,
        "left": [str(one) for one in tree.read_table().values() if one.parent == me],
    }


if __name__ == "__main__":
    if sys.argv[1] == "--end":
        assert tree.become_subreaper()
        first, count, grace = int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
        for number in range(first, first + count):
            print(json.dumps(end_one(number, grace)), flush=True)
    else:
        grow(int(sys.argv[1]))
        wait_for_ever()
