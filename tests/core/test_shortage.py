"""No more threads, processes, files or memory: said in a line, and only what needed one goes unwatched."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from diag.agent.samplers.context import NodeContext
from diag.agent.samplers.node_samplers import NodeSamplers
from diag.agent.samplers.sampler import Reporter
from diag.agent.sidecar_pool import SidecarPool
from diag.launch.failures import guarded, threads_report_to
from diag.model import Placement, Record
from diag.settings import load
from diag.sources.gpu.nvml import NvmlReader
from diag.text.errors import SourceUnavailable, shortage

ROOT = Path(__file__).parents[2]
NO_THREAD = RuntimeError("can't start new thread")  # Python 3.8 to 3.14


def raising(error: Exception) -> Any:
    def work(*args: object, **kwargs: object) -> None:
        raise error

    return work


NUMBERS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOSPC)


NO_ROOM = ImportError(
    "/site/re2/_re2.cpython-312-x86_64-linux-gnu.so: failed to map segment from shared object"
)


SHORT = [NO_THREAD, MemoryError(), NO_ROOM, *(OSError(number, os.strerror(number)) for number in NUMBERS)]


@pytest.mark.parametrize("error", SHORT)
def test_shortage_is_told_in_a_line_and_is_no_bug(error: Exception) -> None:
    said: list[str] = []

    guarded(said.append, "the hub cannot start", raising(error))

    assert said == [f"diag: the hub cannot start: out of {shortage(error)}; CMD is not touched"]


def test_another_error_is_a_bug_and_has_its_place() -> None:
    said: list[str] = []

    guarded(said.append, "the hub cannot start", raising(ValueError("no")))

    assert "Please report this" in said[0] and "test_shortage.py" in said[0]


@pytest.mark.parametrize(
    "error",
    [ImportError("cannot import name 'x' from 'diag.y'", name="diag.y"),
     FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(ROOT / "diag/state/gpufaults.py"))],
)  # fmt: skip
def test_diag_that_was_replaced_under_its_run_is_no_bug(error: Exception) -> None:
    said: list[str] = []

    guarded(said.append, "the watch ends here", raising(error))

    assert "removed or replaced while it ran" in said[0] and "report" not in said[0]


def test_thread_that_fails_prints_no_traceback_into_the_jobs_output(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)  # put back afterwards
    threads_report_to(said.append)

    for error in (NO_THREAD, KeyError("x")):
        thread = threading.Thread(target=raising(error), name="gpus")
        thread.start()
        thread.join()

    assert (
        said[0] == "diag: its part 'gpus' ends here: out of threads (ulimit -u, pids.max); CMD is not touched"
    )
    assert "Please report this" in said[1]
    assert capfd.readouterr() == ("", "")


def test_rank_whose_sidecar_cannot_be_listened_to_is_not_watched_and_the_sidecar_is_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    records: list[Record] = []
    started: list[subprocess.Popen[bytes]] = []
    pool = SidecarPool(load(), tmp_path, 0, Reporter(records.append))
    spawn = pool._spawn
    monkeypatch.setattr(pool, "_spawn", lambda place: started.append(spawn(place)) or started[-1])
    monkeypatch.setattr(threading.Thread, "start", raising(NO_THREAD))

    pool.watch(Placement(rank=3, local_rank=3, world_size=4, host="gpu1", pid=os.getpid()))

    assert [(record.payload["source"], record.payload["event"]) for record in records] == [
        ("sidecar", "failed")
    ]
    assert started[0].poll() is not None and pool.processes() == {}


def test_what_is_read_once_a_node_goes_on_without_the_part_that_gets_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records: list[Record] = []
    watches = NodeSamplers(
        NodeContext(Reporter(records.append, "gpu1"), cast("Any", None), threading.RLock(), load())
    )
    real = threading.Thread.start
    began: list[str] = []

    def start(thread: threading.Thread) -> None:
        if thread.name in ("gpus", "kernel-log"):
            raise NO_THREAD
        began.append(thread.name)
        if thread.name == "estimate":
            real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    watches.start([sys.executable], os.getpid())
    watches.stop()

    failed = {record.payload["source"] for record in records if record.payload.get("event") == "failed"}
    assert "gpu" in failed and {"networks", "checkpoints", "estimate"} <= set(began)


def test_helper_of_nvml_that_cannot_be_started_is_gpus_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        subprocess, "Popen", raising(BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"))
    )

    with pytest.raises(SourceUnavailable, match="cannot be started"):
        NvmlReader().latest()


@pytest.mark.live
@pytest.mark.parametrize("tasks", [2, 3, 5, 7, 8, 10])
def test_command_ends_as_alone_where_a_limit_leaves_room_for_it_and_not_for_diag(
    tasks: int, tmp_path: Path
) -> None:
    if os.getuid() or not (shutil.which("setpriv") and shutil.which("prlimit")):
        pytest.skip(
            "gives the command a user of its own, whose processes are counted alone: needs root, setpriv, prlimit"
        )
    tmp_path.chmod(0o777)
    caps = "+dac_override,+dac_read_search"  # of an interpreter in root's home; no limit is lifted by these
    uid = str(60_000 + os.getpid() % 4_000)
    words = [
        "setpriv",
        "--reuid",
        uid,
        "--regid",
        uid,
        "--clear-groups",
        f"--inh-caps=-all,{caps}",
        f"--ambient-caps={caps}",
        "--",
        "prlimit",
        f"--nproc={tasks}:{tasks}",
        sys.executable,
        "-m",
        "diag",
        "run",
        "--no-http",
        "--run-root",
        str(tmp_path / "runs"),
        "--",
        "sh",
        "-c",
        "echo out; exec sh -c 'exit 3'",
    ]

    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
        env={**os.environ, "HOME": str(tmp_path)},
    )

    assert (done.returncode, done.stdout.splitlines()[:1]) == (3, ["out"]), done.stderr
    assert "Traceback" not in done.stderr
