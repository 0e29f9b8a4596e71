"""Real processes: the driver of this folder around a real CMD, beside the same CMD alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode leaves a test's own folder out

from running import COUNTER, ROOT, Driven, driver_argv


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


@pytest.fixture
def drive(tmp_path: Path, run_dir: Path) -> Iterator[Callable[..., Driven]]:
    """Start the driver around CMD in a process group of its own, as a shell does."""
    started: list[subprocess.Popen[bytes]] = []

    def start(cmd: Sequence[str], *options: str, wrap: Sequence[str] = (), **kwargs: Any) -> Driven:
        argv = [
            *wrap,
            *driver_argv(cmd, "--dir", str(run_dir), "--events", str(tmp_path / "events"), *options),
        ]
        kwargs.setdefault("stdout", subprocess.PIPE)
        kwargs.setdefault("process_group", 0) if sys.version_info >= (3, 11) else kwargs.setdefault(
            "preexec_fn", os.setpgrp
        )
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **kwargs.pop("env", {})}
        process = subprocess.Popen(argv, env=environment, **kwargs)
        started.append(process)
        return Driven(process, tmp_path)

    yield start
    for process in started:
        if process.poll() is None:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                process.kill()
        process.communicate()


@pytest.fixture
def drive_counter(drive: Callable[..., Driven], tmp_path: Path) -> Callable[..., Driven]:
    """The driver around a CMD that counts the named signals, once it is ready."""

    def start(*names: str, options: Sequence[str] = (), **kwargs: Any) -> Driven:
        driven = drive([sys.executable, "-c", COUNTER, str(tmp_path / "got"), *names], *options, **kwargs)
        assert driven.process.stdout is not None
        assert driven.process.stdout.readline().startswith(b"ready")
        return driven

    return start


@pytest.fixture
def both(
    run_dir: Path,
) -> Callable[..., tuple[subprocess.CompletedProcess[bytes], subprocess.CompletedProcess[bytes]]]:
    """The same CMD alone and under the driver."""

    def run(
        cmd: Sequence[str], *options: str, **kwargs: Any
    ) -> tuple[subprocess.CompletedProcess[bytes], subprocess.CompletedProcess[bytes]]:
        kwargs.setdefault("stdout", subprocess.PIPE)
        kwargs.setdefault("stderr", subprocess.PIPE)
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        alone = subprocess.run(cmd, timeout=60, env=environment, check=False, **kwargs)
        folder = run_dir / str(len(list(run_dir.iterdir())))
        folder.mkdir()
        driven = subprocess.run(
            driver_argv(cmd, "--dir", str(folder), *options),
            timeout=60,
            env=environment,
            check=False,
            **kwargs,
        )
        return alone, driven

    return run
