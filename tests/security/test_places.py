"""Names in /tmp that anybody can foresee, and places that others can write: what is put there must not lead
diag astray."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diag.launch import rundir, runs
from diag.launch.rundir import RunDir
from diag.text.errors import DiagError

as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can make what belongs to another user")
NOBODY = 65534
OURS = f"diag-{os.getuid()}"


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /tmp of the test's own. There is no other place: the user's state directory is a file."""
    place = tmp_path / "tmp"
    place.mkdir()
    place.chmod(0o1777)
    (tmp_path / "no-state").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "no-state"))
    monkeypatch.setenv("TMPDIR", str(place))
    real = rundir.roots
    monkeypatch.setattr(
        rundir, "roots", lambda configured: [p for p in real(configured) if str(p).startswith(str(tmp_path))]
    )
    return place


def theirs(path: Path, mode: int = 0o777) -> None:
    path.mkdir()
    path.chmod(mode)
    os.chown(path, NOBODY, NOBODY)


def folder_of_theirs(place: Path) -> None:
    theirs(place / OURS)


def folder_of_theirs_with_ours_inside(place: Path) -> None:
    theirs(place / OURS)
    (place / OURS / "runs").mkdir(mode=0o700)


def link_to_theirs(place: Path) -> None:
    theirs(place / "trap")
    (place / OURS).symlink_to(place / "trap")


def link_to_ours(place: Path) -> None:
    (place / "mine").mkdir(mode=0o700)
    (place / OURS).symlink_to(place / "mine")
    os.chown(place / OURS, NOBODY, NOBODY, follow_symlinks=False)


def link_to_nothing(place: Path) -> None:
    (place / OURS).symlink_to(place / "made-by-diag")


def file_instead(place: Path) -> None:
    (place / OURS).write_text("")


def ours_that_all_can_write(place: Path) -> None:
    (place / OURS).mkdir()
    (place / OURS).chmod(0o777)


@as_root
@pytest.mark.parametrize("trap, said", [
    (folder_of_theirs, "belongs to another user"), (folder_of_theirs_with_ours_inside, "belongs to another user"),
    (link_to_theirs, "it is a link"), (link_to_ours, "it is a link"),
    (link_to_nothing, "it is a link"), (file_instead, "it is a file"),
    (ours_that_all_can_write, "others can write there"),
])  # fmt: skip
def test_what_somebody_made_in_our_place_is_refused_and_named(
    shared: Path, trap: Callable[[Path], None], said: str
) -> None:
    trap(shared)
    before = sorted(shared.rglob("*"))

    with pytest.raises(DiagError) as error:
        RunDir.create(None)

    assert f"{shared / OURS}: {said}" in str(error.value) and "--run-root" in error.value.hint
    assert sorted(shared.rglob("*")) == before


@as_root
@pytest.mark.parametrize("link", [False, True])
def test_configured_place_in_tmp_that_somebody_foresaw_is_refused(shared: Path, link: bool) -> None:
    """DIAG_RUN_ROOT=/tmp/diag-JOBID-NODE, as deploy/slurm has it: ids of jobs are counted up."""
    root = shared / "diag-4711-gpu7"
    if link:
        (shared / "trap").mkdir()
        root.symlink_to(shared / "trap")
        os.chown(root, NOBODY, NOBODY, follow_symlinks=False)
    else:
        theirs(root)

    for place in (root, root / "below"):
        run, problems = RunDir.create(place)
        assert run.path.parent == shared / OURS / "runs"
        assert f"{root}: belongs to another user" in problems
    assert [path for path in root.rglob("*") if path.is_file()] == []


@as_root
def test_configured_place_of_a_group_is_taken(tmp_path: Path) -> None:
    theirs(tmp_path / "project", 0o2770)

    assert RunDir.create(tmp_path / "project")[0].path.parent == tmp_path / "project"


def test_place_that_is_free_or_was_made_by_diag_is_taken_whatever_the_umask(shared: Path) -> None:
    old = os.umask(0)
    try:
        first, _ = RunDir.create(None)
        second, _ = RunDir.create(None)
    finally:
        os.umask(old)

    assert [run.path.parent for run in (first, second)] == [shared / OURS / "runs"] * 2
    assert {
        path.stat().st_mode & 0o777
        for path in (shared / OURS, shared / OURS / "runs", first.path, second.path)
    } == {0o700}


@as_root
def test_run_json_that_is_swapped_between_the_look_and_the_reading_is_not_read(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With it an attacker would get DIAG_TOKEN: `diag dump` sends it to the address that run.json names."""
    trap = shared / OURS / "runs" / "20260101-000000-aaaaaa"
    trap.mkdir(parents=True)
    facts: dict[str, Any] = {
        "schema": runs.SCHEMA,
        "host": os.uname().nodename,
        "hub_pid": os.getpid(),
        "url": "http://127.0.0.1:1",
    }
    (trap / "run.json").write_text(json.dumps(facts))
    (trap / "theirs.json").write_text(json.dumps(facts))
    os.chown(trap / "theirs.json", NOBODY, NOBODY)
    assert [path for path, _ in runs.live_in([str(trap.parent)])] == [str(trap)]
    real = os.stat

    def swaps(path: Any, *args: Any, **options: Any) -> os.stat_result:
        found = real(path, *args, **options)
        if str(path).endswith("run.json"):
            (trap / "theirs.json").rename(trap / "run.json")
        return found

    monkeypatch.setattr(os, "stat", swaps)

    assert list(runs.live_in([str(trap.parent)])) == []


@as_root
def test_old_runs_of_other_users_in_a_shared_root_are_left_alone(tmp_path: Path) -> None:
    for number in range(25):
        path = tmp_path / f"20200101-0000{number:02}-aaaaaa"
        path.mkdir()
        (path / "run.json").write_text(
            json.dumps({"schema": runs.SCHEMA, "hub_pid": 1, "pid": 1, "ended": True})
        )
        if number < 5:
            os.chown(path / "run.json", NOBODY, NOBODY)

    RunDir.create(tmp_path)

    left = [path.name[9:15] for path in sorted(tmp_path.glob("2*"))]
    assert left[:5] == [f"0000{number:02}" for number in range(5)]
    assert len(left) == 5 + 20
