"""Files that ranks write to: NCCL's own, where the user named it, is followed from when NCCL makes it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from diag.agent.rank_logs import RankFiles

LINE = "node-0:{pid}:{pid} [0] NCCL INFO Using network Socket\n"


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a folder of its own that lives until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, cwd=tmp_path
    )
    yield process
    process.communicate()


class Told:
    def __init__(self) -> None:
        self.lines: list[tuple[str, int | None]] = []

    def put(self, payload: dict[str, Any] | None, rank: int | None) -> None:
        for text, _ in payload["lines"] if payload else ():
            self.lines.append((text, rank))


def lost(path: Path, error: OSError) -> None:
    raise AssertionError(f"{path}: {error}")


def followed(
    rank: subprocess.Popen[bytes], named: str, before: Callable[[], None] = lambda: None
) -> tuple[RankFiles, Told]:
    told = Told()
    files = RankFiles(told.put, lost)
    before()
    files.await_nccl(named, rank.pid, 3, host="node-0.cluster.local")
    files.read_new(None)
    return files, told


def test_file_of_a_pattern_is_followed_once_nccl_made_it(
    rank: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    files, told = followed(rank, "%h.%p.log")
    before = list(told.lines)

    (tmp_path / f"node-0.{rank.pid}.log").write_text(LINE.format(pid=rank.pid))
    files.read_new(None)

    assert before == []
    assert told.lines == [(LINE.format(pid=rank.pid).strip(), 3)]


def test_file_of_an_earlier_run_is_not_read_until_nccl_begins_it_anew(
    rank: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    path = tmp_path / "nccl.log"

    def earlier() -> None:
        path.write_text(LINE.format(pid=1))
        os.utime(path, (time.time() - 3600, time.time() - 3600))

    files, told = followed(rank, str(path), earlier)
    before = list(told.lines)
    path.write_text(LINE.format(pid=2))
    files.read_new(None)

    assert (before, [text for text, _ in told.lines]) == ([], [LINE.format(pid=2).strip()])


@pytest.mark.parametrize("named", ["/dev/stderr", "/dev/null", "fifo", "no/such/folder/%p"])
def test_what_is_no_file_is_never_opened(rank: subprocess.Popen[bytes], tmp_path: Path, named: str) -> None:
    os.mkfifo(tmp_path / "fifo")

    files, told = followed(rank, named)  # opening a FIFO that nobody writes to would never return
    files.read_rest()

    assert told.lines == []


def test_rank_that_is_gone_is_no_error() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()

    _, told = followed(gone, "%p.log")

    assert told.lines == []


def test_file_of_another_container_that_two_ranks_print_to_is_read_once_and_nobodys(tmp_path: Path) -> None:
    # given one file, seen through the roots of two processes
    log = tmp_path / "train.log"
    log.write_text("")
    others = [subprocess.Popen(["sleep", "1000"]) for _ in range(2)]
    told: list[tuple[str, int | None]] = []
    files = RankFiles(
        lambda payload, rank: told.extend((line[0], rank) for line in (payload or {"lines": ()})["lines"]),
        lambda path, error: None,
    )
    try:
        for rank, other in enumerate(others):
            files.follow(Path(f"/proc/{other.pid}/root{log}"), "stdout:train.log", rank)

        # when something is printed, and again after both have ended
        log.write_text("step 1\n")
        files.read_new(None)
        for other in others:
            other.kill()
            other.wait()
        log.write_text("step 1\nstep 2\n")
        files.read_rest()
    finally:
        for other in others:
            other.kill()
            other.wait()

    # then each line came once, from no rank in particular
    assert [(line, rank) for line, rank in told if line] == [("step 1", None), ("step 2", None)]


def test_files_of_attempts_long_ago_are_read_to_their_ends_and_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diag.agent.rank_logs._MOST_FILES", 3)
    monkeypatch.setattr("diag.agent.rank_logs._OLD_SECONDS", 0.0)
    told, home = Told(), tmp_path / "run"
    (home / "nccl").mkdir(parents=True)
    files = RankFiles(told.put, lost)
    before = len(os.listdir("/proc/self/fd"))

    for attempt in range(10):
        (home / "nccl" / f"{attempt}.log").write_text(f"attempt {attempt}\nno end of line {attempt}")
        files.read_new(home)
    files.read_new(home)

    assert len(os.listdir("/proc/self/fd")) - before == 3
    assert [text for text, _ in told.lines if text.startswith("attempt")] == [
        f"attempt {attempt}" for attempt in range(10)
    ]
    assert ("no end of line 0", None) in told.lines  # the last words of one that was killed
