"""The index beside the run directories is a cache: whatever happens to it, the answer is that of the directories."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from diag.launch.past import index
from diag.launch.past.index import INDEX, all_runs
from tests.past.made import facts, finding, living, run_dir


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the runs whose directories were read."""
    read: list[str] = []
    real = index.read_past
    monkeypatch.setattr(index, "read_past", lambda path: (read.append(Path(path).name), real(path))[1])
    return read


def names(root: Path) -> list[str]:
    return [one.id for one in all_runs([str(root)])]


def test_runs_that_have_ended_are_read_once(tmp_path: Path, reads: list[str]) -> None:
    made = [run_dir(tmp_path, number, found=(finding(),), told=facts()) for number in range(5)]
    first = all_runs([str(tmp_path)])
    reads.clear()

    second = all_runs([str(tmp_path)])

    assert second == first and [one.id for one in second] == [path.name for path in reversed(made)]
    assert reads == []


def test_living_run_is_read_each_time(tmp_path: Path, reads: list[str]) -> None:
    run_dir(tmp_path, 1)
    path = living(tmp_path, 2)
    names(tmp_path)
    reads.clear()

    assert all_runs([str(tmp_path)])[0].state == "running"
    assert reads == [path.name]


def test_run_that_was_written_anew_is_read_anew(tmp_path: Path) -> None:
    path = run_dir(tmp_path, 1)
    names(tmp_path)
    shutil.rmtree(path)
    run_dir(tmp_path, 1, returncode=3)

    assert all_runs([str(tmp_path)])[0].returncode == 3


def test_run_that_is_gone_is_forgotten_also_in_the_index(tmp_path: Path) -> None:
    kept, gone = run_dir(tmp_path, 1), run_dir(tmp_path, 2, argv=["python", "forgotten.py"])
    names(tmp_path)
    shutil.rmtree(gone)

    assert names(tmp_path) == [kept.name]
    assert b"forgotten.py" not in (tmp_path / INDEX).read_bytes()


def test_last_run_takes_the_index_with_it(tmp_path: Path) -> None:
    path = run_dir(tmp_path, 1)
    names(tmp_path)
    shutil.rmtree(path)

    assert names(tmp_path) == [] and not (tmp_path / INDEX).exists()


@pytest.mark.parametrize("content", [b"", b"\0" * 8192, b"SQLite format 3\0" + b"x" * 5000, None])
def test_torn_index_is_made_again(tmp_path: Path, content: bytes | None) -> None:
    made = [run_dir(tmp_path, number) for number in range(30)]
    before = names(tmp_path)
    whole = (tmp_path / INDEX).read_bytes()
    (tmp_path / INDEX).write_bytes(whole[: len(whole) // 2] if content is None else content)

    assert names(tmp_path) == before == [path.name for path in reversed(made)]
    assert len((tmp_path / INDEX).read_bytes()) == len(whole)


def test_index_with_a_row_that_is_no_run_is_believed_in_the_others_only(tmp_path: Path) -> None:
    paths = [run_dir(tmp_path, number) for number in (1, 2)]
    names(tmp_path)
    with sqlite3.connect(tmp_path / INDEX) as made:
        made.execute("UPDATE runs SET run = '[1, 2' WHERE id = ?", (paths[0].name,))

    assert [one.state for one in all_runs([str(tmp_path)])] == ["finished", "finished"]


def test_index_of_another_version_is_made_again(tmp_path: Path, reads: list[str]) -> None:
    path = run_dir(tmp_path, 1)
    names(tmp_path)
    with sqlite3.connect(tmp_path / INDEX) as made:
        made.execute("PRAGMA user_version = 99")
    reads.clear()

    assert names(tmp_path) == [path.name] and reads == [path.name]
    reads.clear()
    assert names(tmp_path) == [path.name] and reads == []


def test_link_under_the_name_of_the_index_is_neither_read_nor_followed(tmp_path: Path) -> None:
    path = run_dir(tmp_path / "runs", 1)
    (other := tmp_path / "precious").write_text("precious")
    (tmp_path / "runs" / INDEX).symlink_to(other)

    assert names(tmp_path / "runs") == [path.name]
    assert other.read_text() == "precious" and not (tmp_path / "runs" / INDEX).is_symlink()


def test_place_where_others_can_write_gets_no_index(tmp_path: Path) -> None:
    path = run_dir(tmp_path / "shared", 1)
    (tmp_path / "shared").chmod(0o777)

    assert names(tmp_path / "shared") == [path.name]
    assert not (tmp_path / "shared" / INDEX).exists()


def test_place_that_cannot_be_written_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = run_dir(tmp_path, 1)
    real = os.open

    def full(path: str, flags: int, *rest: int) -> int:
        if INDEX in str(path):
            raise OSError(28, "No space left on device")
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", full)

    assert names(tmp_path) == [path.name] and not (tmp_path / INDEX).exists()


def test_what_a_killed_writer_left_is_removed_once_it_is_old(tmp_path: Path) -> None:
    run_dir(tmp_path, 1)
    old, young = tmp_path / f".{INDEX}.0123", tmp_path / f".{INDEX}.4567"
    old.write_text("")
    young.write_text("")
    os.utime(old, (1, 1))

    names(tmp_path)

    assert not old.exists() and young.exists()


def test_who_only_looks_writes_nothing(tmp_path: Path) -> None:
    path = run_dir(tmp_path, 1)

    assert [one.id for one in all_runs([str(tmp_path)], save=False)] == [path.name]
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_index_is_its_owners_alone(tmp_path: Path) -> None:
    run_dir(tmp_path, 1)
    names(tmp_path)

    assert (tmp_path / INDEX).stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir() if "sqlite" in path.name) == [INDEX]


_LOOP = """
import sys
from diag.launch.past.index import all_runs
print("ready", flush=True)
sys.stdin.readline()
for _ in range(30):
    assert len({one.id for one in all_runs([sys.argv[1]])}) >= 40
print("done", flush=True)
"""


def test_several_processes_at_once_read_and_write_while_runs_come_and_go(tmp_path: Path) -> None:
    for number in range(40):
        run_dir(tmp_path, number, told=facts())
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _LOOP, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for one in processes:
        assert one.stdout is not None and one.stdout.readline() == "ready\n"
    for one in processes:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    for number in range(100, 130):
        shutil.rmtree(run_dir(tmp_path, number))

    assert [one.communicate(timeout=60)[0] for one in processes] == ["done\n", "done\n"]
    assert len(names(tmp_path)) == 40


def test_a_thousand_runs_are_listed_in_a_moment(tmp_path: Path) -> None:
    """The bounds are ten times what an idle core takes (0.25 s and 0.05 s)."""
    for number in range(1000):
        run_dir(tmp_path, number, found=(finding(),), told=facts())
    began = time.process_time()
    first = all_runs([str(tmp_path)])
    between = time.process_time()

    assert all_runs([str(tmp_path)]) == first and len(first) == 1000
    assert between - began < 5.0 and time.process_time() - between < 1.0
