"""Real Python processes for the tests of the hook and of the stack sources. They say "ready" on a pipe,
nobody sleeps."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
INJECT = ROOT / "diag" / "launch" / "inject"
SIGNAL = 50
OURS = re.compile(r"^(PYTHON|DIAG_|SLURM_|OMPI_|PMI|MV2_)|^(LOCAL_)?RANK$")

# Holds the GIL in C for good; a signal ends sleep(3) early, so again and again.
HOLD_GIL = """
import ctypes
libc = ctypes.PyDLL(None)
def hold_gil():
    print('ready', flush=True)
    while True: libc.sleep(1000)
hold_gil()
"""
WAIT = """
import sys
def wait_here():
    print('ready', flush=True)
    sys.stdin.read()
wait_here()
"""


def plain_env(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not OURS.search(name)} | more


def hooked_env(run_dir: Path, rank: int | None = 0, *behind: Path, **more: str) -> dict[str, str]:
    """As `diag run` sets it: our folder first, then what the user had."""
    path = os.pathsep.join(map(str, (INJECT, *behind)))
    ours = {"PYTHONPATH": path, "DIAG_RUN_DIR": str(run_dir), "DIAG_STACK_SIGNAL": str(SIGNAL)}
    return plain_env(**ours, **({} if rank is None else {"RANK": str(rank)}), **more)


def run_python(code: str, env: dict[str, str], *flags: str, python: str = sys.executable, **how: Any) -> Any:
    return subprocess.run(
        [python, *flags, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False, **how
    )


class Target:
    """A process that runs `code` until the end of the block. `said` is what stood behind "ready"."""

    def __init__(
        self, code: str, env: dict[str, str], argv: Sequence[str] = (), python: str = sys.executable
    ) -> None:
        self.process = subprocess.Popen(
            [python, "-c", code, *argv], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Target:
        self.said = self.read_line().split()[1:]
        return self

    def __exit__(self, *error: object) -> None:
        """Its children too: a DataLoader worker outlives its parent by seconds, and for ever where it does
        not look."""
        family = []
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(self.process.pid).children(recursive=True)
        for process in (*family, self.process):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()

    @property
    def pid(self) -> int:
        return self.process.pid

    def read_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(20)

    def hook(self, run_dir: Path) -> dict[str, Any]:
        data: dict[str, Any] = json.loads((run_dir / f"hook.{self.pid}.json").read_text())
        return data


def without_ptrace() -> list[str]:
    """A prefix that takes CAP_SYS_PTRACE from what it starts; nothing to take where we are not root."""
    if os.geteuid() != 0:
        return []
    return [shutil.which("setpriv") or "setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]


# Denies ptrace to all without CAP_SYS_PTRACE, as Yama or a container without it does.
UNDUMPABLE = "import ctypes\nassert ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) == 0\n"


@functools.cache
def other_pythons() -> tuple[str, ...]:
    """Interpreters of other versions on this machine, as a job may have."""
    found = {}
    for minor in range(8, 15):
        path = shutil.which(f"python3.{minor}")
        if path and sys.version_info[1] != minor:
            shown = subprocess.run(
                [path, "-c", "import sys; print(sys.executable)"], capture_output=True, text=True, check=False
            )
            if shown.returncode == 0:
                found[minor] = shown.stdout.strip()
    return tuple(found.values())
