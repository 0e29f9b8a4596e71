"""What `diag runs rm` removes, and what it never does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from diag.cli.main import main
from diag.launch.past.removal import removal, remove
from diag.launch.rundir import RunDir
from tests.past.made import GONE, facts, finding, living, run_dir


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DIAG_RUN_ROOT", str(tmp_path / "runs"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path / "runs"


def rm(*words: str) -> int:
    return main(["runs", "rm", *words])


def test_run_that_has_ended_is_removed_with_all_in_it(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, other = run_dir(root, 1), run_dir(root, 2)
    (path / "nccl").mkdir()
    (path / "nccl/x.log").write_text("x" * 5000)

    assert rm("-2", "--yes") == 0

    assert not path.exists() and other.exists()
    assert capsys.readouterr().out == "removed 1 run\n"


def test_older_removes_by_the_end_and_leaves_the_younger(root: Path) -> None:
    old = run_dir(root, 1, told=facts())
    young = run_dir(root, 2)

    assert rm("--older", "7d", "--yes") == 0

    assert not old.exists() and young.exists()


def test_without_a_terminal_it_needs_yes(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run_dir(root, 1)

    assert rm("-1") == 2

    assert path.exists() and "add --yes" in capsys.readouterr().err


@pytest.mark.parametrize(("answer", "stays"), [("y\n", False), ("\n", True), ("n\n", True), ("\x04", True)])
def test_on_a_terminal_it_asks_and_anything_but_yes_is_no(
    root: Path, monkeypatch: pytest.MonkeyPatch, answer: str, stays: bool
) -> None:
    path = run_dir(root, 1)
    terminal, other = os.openpty()
    os.write(terminal, answer.encode())  # Ctrl-D is the last
    with open(other) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert rm("-1") == int(stays)
    os.close(terminal)
    assert path.exists() is stays


@pytest.mark.parametrize(
    "given",
    [
        {"ended": False, "hub_pid": os.getpid()},
        {"ended": False, "pid": os.getpid()},
        {"ended": False, "host": "another-node"},
        {"schema": "diag.run/9"},
        {"ended": False, "hub_pid": "x"},
    ],
)
def test_run_that_may_live_stays_and_is_named(
    root: Path, capsys: pytest.CaptureFixture[str], given: dict
) -> None:
    path = run_dir(root, 1, **given)

    assert rm(str(path), "--yes") == 1

    assert path.exists() and f"{path} stays: its job may still run" in capsys.readouterr().err


def test_living_run_is_not_among_the_older(root: Path) -> None:
    path = living(root, 1)

    assert rm("--older", "1s", "--yes") == 0
    assert path.exists()


def test_what_is_no_run_directory_stays(root: Path, tmp_path: Path) -> None:
    """A folder of another name, though it has a run.json; a run's name without one; a file; a link."""
    run = run_dir(root, 1)
    copy = run.rename(tmp_path / "kept-for-the-bug-report")
    named = tmp_path / "20260101-000001-0a1b2c"
    named.mkdir()
    (named / "thesis.tex").write_text("")
    file = tmp_path / "20260101-000002-0a1b2c"
    file.write_text("")
    real = run_dir(root, 3)
    link = tmp_path / real.name
    link.symlink_to(real)

    for path, why in (
        (copy, "it is not a run directory"),
        (named, "it is not a run directory"),
        (file, "it is no directory"),
        (link, "it is a link"),
        (tmp_path / "none", "No such file or directory"),
    ):
        assert removal(path).why_not == why
        assert rm(str(path), "--yes") == 1
    assert (
        copy.exists() and (named / "thesis.tex").exists() and file.exists() and (real / "run.json").exists()
    )


def test_links_in_a_run_are_removed_and_not_what_they_lead_to(root: Path, tmp_path: Path) -> None:
    path = run_dir(root, 1)
    (data := tmp_path / "data").mkdir()
    (data / "precious").write_text("x")
    (path / "folder").symlink_to(data)
    (path / "file").symlink_to(data / "precious")

    assert rm("-1", "--yes") == 0

    assert not path.exists() and (data / "precious").read_text() == "x"


def test_run_that_began_to_live_while_a_person_thought_stays(root: Path) -> None:
    path = run_dir(root, 1)
    asked = removal(path)
    path.rename(root / "aside")
    living(root, 1)

    assert remove(asked) == "its job may still run" and path.exists()


def test_without_runs_and_without_an_age_nothing_is_removed(capsys: pytest.CaptureFixture[str]) -> None:
    assert rm("--yes") == 2
    assert "which runs?" in capsys.readouterr().err


# --- making room


def test_of_runs_that_make_room_their_story_is_kept(root: Path) -> None:
    made = [run_dir(root, number, told=facts(), found=(finding(),)) for number in range(22)]
    for path in made:
        (path / "journal-000001.jsonl.gz").write_text("x" * 1000)
        (path / "nccl").mkdir()
        (path / "link").symlink_to(root)

    RunDir.create(root)

    assert [path.exists() for path in made] == [False] * 3 + [True] * 19
    kept = root / "past" / made[0].name
    assert sorted(path.name for path in kept.iterdir()) == ["facts.json", "findings.jsonl", "run.json"]


def test_story_of_a_run_is_listed_and_can_be_removed(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run_dir(root / "past", 1, told=facts(), found=(finding(),))
    assert main(["runs"]) == 0
    assert path.name in capsys.readouterr().out

    assert rm("-1", "--yes") == 0

    assert not path.exists() and not (root / "past").exists()


def test_replay_says_why_there_is_no_evidence_any_more(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir(root / "past", 1, told=facts())

    assert main(["replay", "-1"]) == 2
    assert "its journal was removed to make room" in capsys.readouterr().err


def test_only_so_many_stories_are_kept(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diag.launch.rundir._KEEP_PAST", 3)
    for number in range(22):
        run_dir(root / "past" if number < 5 else root, number)
    for number in range(22, 26):
        run_dir(root, number)

    RunDir.create(root)

    assert len(list((root / "past").iterdir())) == 3


def test_folder_of_another_users_or_a_link_is_no_place_for_stories(root: Path, tmp_path: Path) -> None:
    made = [run_dir(root, number, pid=GONE) for number in range(21)]
    (tmp_path / "elsewhere").mkdir()
    (root / "past").symlink_to(tmp_path / "elsewhere")

    RunDir.create(root)

    assert not made[0].exists() and not list((tmp_path / "elsewhere").iterdir())
