"""Where a run's files go, what is said when they cannot, and which runs count as living."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from diag.launch import rundir
from diag.launch.rundir import RunDir, forget_old_bundles, roots
from diag.launch.runs import live_in, read_run
from diag.text.errors import DiagError

Usage = namedtuple("Usage", "total used free")
TICKS = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])


def live(root: Path) -> list[Path]:
    return [Path(path) for path, _ in live_in(map(str, rundir.roots(root)))]


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing outside of the test's folder is a place for runs."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    real = rundir.roots
    monkeypatch.setattr(
        rundir, "roots", lambda configured: [p for p in real(configured) if str(p).startswith(str(tmp_path))]
    )
    return tmp_path


def publish(run: RunDir, **facts: Any) -> None:
    run.publish({"pid": os.getpid(), "hub_start_ticks": TICKS, "ended": False, **facts})


def a_run(root: Path, **facts: Any) -> Path:
    run, _ = RunDir.create(root)
    publish(run, **facts)
    return run.path


# --- making
# ----------------------------------------------------------------------------------------------------


def test_first_place_that_takes_it_gets_the_run_and_only_its_owner_may_look(tmp_path: Path) -> None:
    run, problems = RunDir.create(tmp_path / "here")

    assert problems == []
    assert run.path.parent == tmp_path / "here"
    assert run.path.stat().st_mode & 0o777 == 0o700
    assert sorted(path.name for path in run.path.iterdir()) == ["dumps", "nccl", "stacks"]


def test_two_runs_of_one_second_have_two_directories(tmp_path: Path) -> None:
    assert RunDir.create(tmp_path)[0].path != RunDir.create(tmp_path)[0].path


def test_place_that_does_not_work_is_named_and_the_next_one_taken(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")

    run, problems = RunDir.create(tmp_path / "file" / "runs")

    assert run.path.parent == tmp_path / "state" / "diag" / "runs"
    assert problems == [f"{tmp_path / 'file' / 'runs'}: Not a directory"]


def test_no_place_that_works_names_each_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))

    with pytest.raises(DiagError) as error:
        RunDir.create(tmp_path / "file")

    assert f"{tmp_path / 'file'}: File exists" in str(error.value)
    assert f"{tmp_path / 'file' / 'diag' / 'runs'}: Not a directory" in str(error.value)
    assert "--run-root" in error.value.hint and "DIAG_RUN_ROOT" in error.value.hint


def test_disk_with_little_room_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = shutil.disk_usage
    full = str(tmp_path / "full")
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: Usage(1, 1, 5 << 20) if str(path).startswith(full) else real(path)
    )

    run, problems = RunDir.create(tmp_path / "full")

    assert problems == [f"{tmp_path / 'full'}: only 5 MiB free"]
    assert not run.path.is_relative_to(tmp_path / "full")


def test_place_is_absolute_whatever_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # ranks get it in their environment, and may work in another directory
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    assert roots(Path("runs"))[0] == tmp_path / "runs"
    assert roots(Path("~/runs"))[0] == tmp_path / "home" / "runs"
    assert all(root.is_absolute() for root in roots(None))


def test_user_without_a_home_gets_no_folder_called_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(os.path, "expanduser", str)

    assert not any("~" in str(root) for root in roots(None))


def test_working_directory_of_the_user_is_never_a_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", "relative")

    assert not any(root.is_relative_to(tmp_path) and root.parts[-1] == "relative" for root in roots(None))
    assert all(root.is_absolute() for root in roots(None))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make another user's directory")
def test_directory_that_another_user_made_in_a_shared_place_is_not_taken(tmp_path: Path) -> None:
    planted = tmp_path / "state" / "diag" / "runs"
    planted.mkdir(parents=True)
    os.chown(planted, 12345, 12345)

    # the configured place is taken as it is: who names it means it
    (tmp_path / "file").write_text("")
    with pytest.raises(DiagError, match="belongs to another user"):
        RunDir.create(tmp_path / "file")


def test_full_disk_when_publishing_is_not_the_jobs_problem(tmp_path: Path) -> None:
    run, _ = RunDir.create(tmp_path)
    shutil.rmtree(run.path)

    publish(run)


def test_what_is_published_is_never_seen_half_and_only_by_its_owner(tmp_path: Path) -> None:
    path = a_run(tmp_path, token="hunter2")

    assert (path / "run.json").stat().st_mode & 0o777 == 0o600
    assert read_run(str(path))["token"] == "hunter2"
    assert not (path / ".run.json").exists()


# --- reading
# ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"schema": "diag.run/1", "run_id": ', "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b'{"schema": "diag.run/7"}', "written by another version of diag"),
        (b"[]", "written by another version of diag"),
        (b"null", "written by another version of diag"),
    ],
)
def test_run_json_that_is_no_run_says_what_it_is_instead(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "run.json").write_bytes(content)

    with pytest.raises(DiagError, match=words):
        read_run(str(tmp_path))
    assert live(tmp_path.parent) == []


def test_directory_without_run_json_and_a_file_are_no_runs(tmp_path: Path) -> None:
    with pytest.raises(DiagError, match="not a run directory"):
        read_run(str(tmp_path))
    (tmp_path / "file").write_text("")
    with pytest.raises(DiagError):
        read_run(str(tmp_path / "file"))


# --- living
# ----------------------------------------------------------------------------------------------------


def edit(path: Path, **facts: Any) -> None:
    data = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**data, **facts}))


def test_run_whose_hub_lives_is_live(tmp_path: Path) -> None:
    path = a_run(tmp_path)

    assert live(tmp_path) == [path]


@pytest.mark.parametrize(
    "facts",
    [
        {"ended": True},
        {"hub_start_ticks": TICKS - 1},  # the hub's pid was used again
        {"hub_pid": 2**22 + 1},
        {"hub_pid": "x"},
        {"hub_pid": [1]},
        {"hub_pid": -1},
        {"hub_pid": float("inf")},
        {"host": "another-node"},  # a home directory that all nodes share
    ],
)
def test_run_that_is_over_or_elsewhere_or_nonsense_is_not_live(tmp_path: Path, facts: dict[str, Any]) -> None:
    edit(a_run(tmp_path), **facts)

    assert live(tmp_path) == []


def test_run_whose_hub_is_a_zombie_is_not_live(tmp_path: Path) -> None:
    path = a_run(tmp_path)
    zombie = subprocess.Popen(["true"])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    edit(path, hub_pid=zombie.pid, hub_start_ticks=0)

    assert live(tmp_path) == []
    zombie.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make another user's file")
def test_run_of_another_user_in_a_shared_place_is_not_ours(tmp_path: Path) -> None:
    path = a_run(tmp_path)
    os.chown(path / "run.json", 12345, 12345)

    assert live(tmp_path) == []


def test_newest_run_comes_first_whichever_place_it_is_in(tmp_path: Path) -> None:
    # given runs in the configured place and in the default one
    older, newest, oldest = (
        a_run(tmp_path / "a"),
        a_run(tmp_path / "state/diag/runs"),
        a_run(tmp_path / "a"),
    )
    older = older.rename(older.parent / "20260102-000000-a")
    newest = newest.rename(newest.parent / "20260103-000000-b")
    oldest = oldest.rename(oldest.parent / "20260101-000000-c")

    assert live(tmp_path / "a") == [newest, older, oldest]


# --- forgetting
# ------------------------------------------------------------------------------------------------


def many(root: Path, count: int, **facts: Any) -> list[Path]:
    made = []
    for number in range(count):
        path = root / f"20250101-0000{number:02d}-0a1b2c"
        path.mkdir(parents=True)
        data = {
            "schema": "diag.run/1",
            "hub_pid": 2**22 + 1,
            "pid": 2**22 + 1,
            "host": socket.gethostname(),
            "ended": True,
        }
        (path / "run.json").write_text(json.dumps({**data, **facts}))
        made.append(path)
    return made


def test_newest_twenty_of_the_runs_that_are_over_are_kept(tmp_path: Path) -> None:
    old = many(tmp_path, 25)

    RunDir.create(tmp_path)

    assert [path for path in old if path.exists()] == old[6:]  # nineteen, and the one that begins


def test_run_whose_hub_wrote_no_run_json_is_forgotten_once_nobody_writes_into_it(tmp_path: Path) -> None:
    old = many(tmp_path, 25)
    for path in old[:2]:
        (path / "run.json").unlink()
        (path / "output.log").write_text("begun")
        os.utime(path, (1, 1))
    with (old[1] / "output.log").open("a"):  # its job goes on
        RunDir.create(tmp_path)

        assert not old[0].exists() and (old[1] / "output.log").exists()
    (loading := tmp_path / "20240101-000000-0a1b2c").mkdir()
    RunDir.create(tmp_path)

    assert not old[1].exists() and loading.exists()


def test_pid_that_was_given_to_another_process_keeps_no_run(tmp_path: Path) -> None:
    old = many(tmp_path, 25, ended=False, pid=os.getpid(), pid_start_ticks=1)

    RunDir.create(tmp_path)

    assert [path for path in old if path.exists()] == old[6:]


@pytest.mark.parametrize(
    "facts",
    [
        {"ended": False, "hub_pid": os.getpid()},  # lives
        {"ended": False, "pid": os.getpid()},  # its hub was killed, the job goes on
        {"ended": False, "host": "another-node"},  # whether that lives cannot be seen from here
        {"schema": "diag.run/9"},
    ],
)
def test_run_that_may_still_be_used_is_never_forgotten(tmp_path: Path, facts: dict[str, Any]) -> None:
    old = many(tmp_path, 25, **facts)

    RunDir.create(tmp_path)

    assert all(path.exists() for path in old)


def test_folder_that_is_no_run_is_never_removed(tmp_path: Path) -> None:
    (tmp_path / "00000000-precious").mkdir()
    many(tmp_path, 25)

    RunDir.create(tmp_path)

    assert (tmp_path / "00000000-precious").exists()


# --- bundles
# ---------------------------------------------------------------------------------------------------


def bundles(folder: Path, *sizes: int) -> list[Path]:
    """Oldest first."""
    made = [folder / f"dump-20260101-00000{number}.tar.gz" for number in range(len(sizes))]
    for number, (path, size) in enumerate(zip(made, sizes, strict=True)):
        path.write_bytes(b"x" * size)
        os.utime(path, (number, number))
    return made


@pytest.mark.parametrize(
    "sizes, stay", [((1, 1, 1, 1), [2, 3, 4]), ((1, 60, 60, 1), [3, 4]), ((1, 1, 1, 1, 500), [5])]
)
def test_newest_bundles_stay_and_the_last_one_whatever_its_size(
    sizes: tuple[int, ...], stay: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rundir, "_KEEP_BUNDLES", 3)
    monkeypatch.setattr(rundir, "_KEEP_BUNDLE_BYTES", 100)
    (tmp_path / "notes.tar.gz").write_bytes(b"x" * 1000)
    made = bundles(tmp_path, *sizes)

    forget_old_bundles(made[-1])

    assert [number for number, path in enumerate(made, 1) if path.exists()] == stay
    assert (tmp_path / "notes.tar.gz").exists()  # not of ours


def test_bundle_that_was_just_written_stays_though_the_clock_went_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rundir, "_KEEP_BUNDLES", 1)
    made = bundles(tmp_path, 1, 1, 1)

    forget_old_bundles(made[0])

    assert [path.exists() for path in made] == [True, False, False]
