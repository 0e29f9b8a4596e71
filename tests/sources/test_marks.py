"""Files that hold a process's number: which are read, what is kept of them, and what is said of the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from diag.sources.host.job_files import Files
from diag.sources.host.process_tree import read_process
from diag.sources.stacks import marks


def us() -> tuple[int, int]:
    process = read_process(os.getpid())
    assert process is not None
    return os.getpid(), process.ticks


def found(*paths: Path) -> list[dict[str, object]]:
    return marks.read(Files(), map(str, paths), us(), lambda text: text)


def test_process_that_has_ended_is_gone_and_one_that_runs_lives(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / "a.lock").write_text(f"{ended.pid}\n")
    (tmp_path / "b.lock").write_text(f"pid={os.getpid()}")

    rows = found(tmp_path / "a.lock", tmp_path / "b.lock", tmp_path / "none.lock")

    assert [(row["pid"], row["state"], row["older"]) for row in rows] == [
        (ended.pid, "gone", False),
        (os.getpid(), "lives", False),
    ]


def test_process_that_has_ended_and_is_not_waited_for_is_gone(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.read()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        (tmp_path / "a.lock").write_text(str(child.pid))
        assert [row["state"] for row in found(tmp_path / "a.lock")] == ["gone"]


def test_file_that_is_older_than_the_process_of_that_number_was_another_ones(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    path.write_text(str(os.getpid()))
    os.utime(path, (1e9, 1e9))

    assert [(row["state"], row["older"]) for row in found(path)] == [("replaced", True)]


@pytest.mark.parametrize(
    "text", ["", "gpu-7:812", "{'step': 812, 'loss': 2.5}", "812 of 4000", "x" * 5000 + " 812"]
)
def test_other_files_are_no_marks(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.txt").write_text(text)

    assert found(tmp_path / "state.txt", tmp_path) == []


def test_pipe_or_device_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")

    assert found(tmp_path / "fifo", Path("/dev/zero")) == []


def test_rank_with_process_numbers_of_its_own_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a.lock").write_text("812")
    proc = tmp_path / "proc"
    (proc / "7").mkdir(parents=True)
    (proc / "7" / "status").write_text("NSpid:\t7\t1\n")

    assert marks.read(Files(), [str(tmp_path / "a.lock")], (7, 0), str, proc) == []


def test_file_without_a_number_is_told_where_it_is_older_than_the_rank(tmp_path: Path) -> None:
    old, new, numbered = (tmp_path / name for name in ("old.lock", "new.lock", "numbered.lock"))
    old.write_text("gpu-7\n")
    new.write_text("gpu-7\n")
    numbered.write_text(str(os.getpid()))
    os.utime(old, (1e9, 1e9))

    rows = found(old, new, numbered)

    assert [(Path(str(row["path"])).name, row["pid"], row["state"]) for row in rows] == [
        ("numbered.lock", os.getpid(), "lives"),
        ("old.lock", 0, "unnumbered"),
    ]


def test_folder_is_listed_with_ages_and_none_that_is_large(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "done.0").write_text("")
    (tmp_path / "out" / "done.1").write_text("")
    os.utime(tmp_path / "out" / "done.1", (1e9, 1e9))
    (tmp_path / "large").mkdir()
    for number in range(65):
        (tmp_path / "large" / str(number)).write_text("")
    asked = [tmp_path / name for name in ("large", "none", "out", "out/done.0")]

    rows = marks.folders(Files(), map(str, asked), lambda text: text)
    (folder,) = marks.folders_of(rows)

    assert folder.path == str(tmp_path / "out")
    assert [name for name, _ in folder.names] == ["done.0", "done.1"]
    assert folder.names[0][1] < 60 and folder.names[1][1] > 1e7
