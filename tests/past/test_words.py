"""Which run a word of the command line means."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from diag.cli.chosen import run_word
from diag.cli.main import make_parser
from diag.launch.past.folders import meant
from diag.text.errors import DiagError
from tests.past.made import living, run_dir


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DIAG_RUN_ROOT", str(tmp_path / "runs"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def test_minus_one_is_the_newest_run_whether_it_lives_or_has_ended(root: Path) -> None:
    first = run_dir(root, 1)
    last = living(root, 2)

    assert (meant("-1", [str(root)]), meant("-2", [str(root)])) == (str(last), str(first))


def test_runs_of_several_places_are_counted_together(root: Path, tmp_path: Path) -> None:
    old, new = run_dir(root, 1), run_dir(tmp_path / "state/diag/runs", 2)

    assert (run_word("-1"), run_word("-2")) == (str(new), str(old))


def test_in_a_place_of_several_hosts_this_ones_runs_are_counted(root: Path) -> None:
    mine = run_dir(root, 1)
    theirs = run_dir(root, 2, host="elsewhere")

    assert run_word("-1") == str(mine)
    with pytest.raises(DiagError, match="diag remembers 1 here"):
        run_word("-2")
    assert run_word(theirs.name) == str(theirs)


def test_host_without_runs_of_its_own_counts_those_of_others(root: Path) -> None:
    old, new = (run_dir(root, number, host="elsewhere") for number in (1, 2))

    assert (run_word("-1"), run_word("-2")) == (str(new), str(old))


def test_run_whose_evidence_was_removed_is_still_one(root: Path) -> None:
    gone, kept = run_dir(root / "past", 1), run_dir(root, 2)

    assert (run_word("-1"), run_word("-2")) == (str(kept), str(gone))


def test_id_its_beginning_and_its_end_mean_the_run(root: Path) -> None:
    path = run_dir(root, 12)

    assert [run_word(word) for word in (path.name, path.name[:15], "0a1b2c")] == [str(path)] * 3


def test_part_of_several_ids_is_refused_and_they_are_named(root: Path) -> None:
    names = sorted(run_dir(root, number).name for number in (1, 2))

    with pytest.raises(DiagError, match="2 runs have 0a1b2c in their id") as error:
        run_word("0a1b2c")
    assert all(name in str(error.value) for name in names)


def test_what_exists_at_that_path_comes_before_an_id(root: Path, tmp_path: Path) -> None:
    run_dir(root, 12)
    (tmp_path / "0a1b2c").mkdir()

    assert run_word("0a1b2c") == "0a1b2c"


@pytest.mark.parametrize("word", ["-", "train.log", "./-1", "/tmp", "abcd1234", "-0", "-1x", "--1"])
def test_any_other_word_stays_as_it_is(word: str, root: Path) -> None:
    run_dir(root, 1)

    assert run_word(word) == word


def test_more_than_there_are_is_an_error_that_says_how_many(root: Path) -> None:
    run_dir(root, 1)

    with pytest.raises(DiagError, match="there is no run -2; diag remembers 1 here") as error:
        run_word("-2")
    assert error.value.exit_code == 2


def test_what_is_no_run_of_this_user_is_not_counted(root: Path, tmp_path: Path) -> None:
    """A link, a file and a folder of a run's name, one of another version, one that is still loading."""
    mine = run_dir(root, 1)
    elsewhere = run_dir(tmp_path / "elsewhere", 9)
    (root / "20260109-000000-aaaaaa").symlink_to(elsewhere)
    (root / "20260109-000001-aaaaaa").write_text("")
    (root / "20260109-000002-aaaaaa").mkdir()
    run_dir(root, 3, schema="diag.run/9")
    (run_dir(root, 4) / "run.json").write_text("{torn")
    fifo = run_dir(root, 5) / "run.json"
    fifo.unlink()
    os.mkfifo(fifo)

    assert run_word("-1") == str(mine)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["replay", "-1"], "paths"),
        (["top", "-1"], "paths"),
        (["top", "--run-dir", "-1"], "run_dir"),
        (["dump", "-1"], "run"),
        (["dump", "--run-dir", "-1"], "run_dir"),
        (["flame", "0", "--from", "-1"], "source"),
        (["flame", "0", "--run-dir", "-1"], "run_dir"),
        (["watch", "--run-dir", "-1"], "run_dir"),
        (["diff", "-2", "-1"], "runs"),
        (["runs", "rm", "-1"], "runs"),
    ],
)
def test_every_command_that_takes_a_run_takes_minus_one(words: list[str], name: str, root: Path) -> None:
    path, _ = run_dir(root, 2), run_dir(root, 1)

    given = getattr(make_parser(words[0]).parse_args(words), name)

    assert str(path) in map(str, given if isinstance(given, list) else [given])


@pytest.mark.parametrize(
    "work",
    [
        "from diag.cli.main import make_parser; make_parser('').format_help()",
        "from diag.cli.main import make_parser; make_parser().format_help()",
        "import diag.cli.dump; import diag.cli.client.endpoint",
        "from diag.launch.rundir import RunDir",
    ],
)
def test_nothing_but_the_list_of_runs_loads_sqlite(work: str) -> None:
    check = f"import sys; {work}; assert 'sqlite3' not in sys.modules"

    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
