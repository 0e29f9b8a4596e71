"""A loop that waits for a number of files: how many there are, and which of them no rank that runs now has made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from diag.model import Finding
from diag.model.observations import Folder, FrameVariables, Reached, Variable, VariablesRead
from diag.model.observations.waits import ProcessWaits, ThreadWait, Wait, WaitsRead
from tests.detectors.test_hang import steady
from tests.detectors.test_hang_program import read
from tests.facts import TRAIN, pid_of
from tests.programs import line_of

REDUCE = "all_reduce torch/distributed/distributed_c10d.py:3173"
TEXT = """
def export(out, world):
    while len(list(out.glob("done.*"))) != world:
        pause(1)  # exact
    while len(list(out.glob("done.*"))) < world:
        pause(1)  # least
    while not (out / "done").exists():
        pause(1)  # exists


def put(fd, blob, path):
    done = 0
    while done < len(blob):
        try:
            done += os.pwrite(fd, blob[done:], done)
        except OSError as e:
            pause(1)  # writes
    while True:
        try:
            return open(path)
        except OSError:
            pause(1)  # opens
    while True:
        try:
            return numpy.save(path, blob)
        except Exception:
            pause(1)  # saves
    while True:
        try:
            return open(path)
        except ValueError:
            pause(1)  # otherwise
"""
OLD = 1e6  # seconds
DONE = (("done.0", 3.0), ("done.1", 2.0), ("done.2", OLD), ("done.3", OLD), ("index", OLD))


def told(
    tmp_path: Path,
    mark: str,
    values: dict[str, str],
    *,
    folders: Sequence[Folder] = (),
    reached: Sequence[Reached] = (),
) -> Finding:
    path = tmp_path / "job.py"
    path.write_text(TEXT)
    function = "export" if mark in ("exact", "least", "exists") else "put"
    stacks = {0: [*TRAIN, REDUCE], 1: [*TRAIN, f"{function} {path}:{line_of(TEXT, mark)}"]}
    story = steady()
    story.still(30.0, stacks)
    read(story, path, 1, stacks[1])
    variables = tuple(Variable(*pair) for pair in values.items())
    frame = FrameVariables(pid_of(1), function, str(path), line_of(TEXT, mark), False, variables)
    story.tell(
        VariablesRead(1, pid_of(1), (frame,), time=story.now, reached=tuple(reached), folders=tuple(folders))
    )
    thread = ThreadWait(pid_of(1), "MainThread", "S", "hrtimer_nanosleep", Wait("sleep"), same=True)
    story.tell(WaitsRead(1, pid_of(1), story.now, (ProcessWaits(pid_of(1), 1, "python", (thread,)),)))
    story.still(30.0, stacks)
    return story.the("held-up")


def counted(tmp_path: Path, mark: str, names: Sequence[tuple[str, float]], world: str = "2") -> Finding:
    values = {"out": "PosixPath('/runs/out')", "world": world}
    return told(tmp_path, mark, values, folders=[Folder("/runs/out", tuple(names))])


def test_files_that_are_there_are_counted_and_those_of_an_earlier_run_named(tmp_path: Path) -> None:
    found = counted(tmp_path, "exact", DONE)

    assert (found.cause, found.ranks) == ("polls_for_number_of_files", (1,))
    assert "/runs/out/done.* was 4 files when read (done.0, done.1, done.2, done.3; 2 s to " in found.summary
    assert "of which done.2, done.3 are older than any rank that runs now" in found.summary
    assert found.advice.startswith("More are there than the loop asks for")


@pytest.mark.parametrize(
    ("mark", "names", "world"),
    [
        ("exact", DONE[:2], "4"),  # some are missing
        ("exact", DONE[1:3], "4"),  # an old one is not too many
        ("least", DONE, "8"),
        ("exact", DONE, "***"),  # not known what is asked for
    ],
)
def test_nothing_is_to_be_removed_where_there_are_not_too_many(
    tmp_path: Path, mark: str, names: Sequence[tuple[str, float]], world: str
) -> None:
    found = counted(tmp_path, mark, names, world)

    assert found.cause == "polls_for_number_of_files" and "when read (" in found.summary
    assert "remove them" not in found.advice


def test_loop_that_counts_nothing_is_told_of_no_folder(tmp_path: Path) -> None:
    found = counted(tmp_path, "exists", DONE)

    assert found.cause == "polls_for_file" and "done.2" not in found.summary


# -- limits


FULL = Reached("file_size", "/runs/out/masks.bin", 22, 6 << 20)
MANY = Reached("open_files", "", -1, 1024)
NO_ROOM = Reached("file_system", "/runs/out/masks.bin", 22, 1 << 40)


@pytest.mark.parametrize(
    ("mark", "reached", "said"),
    [
        ("writes", FULL, "/runs/out/masks.bin (fd 22) has 6 MiB, as much as the process may write to a file"),
        ("writes", NO_ROOM, "the file system of /runs/out/masks.bin (fd 22) has no room left for it"),
        ("opens", MANY, "it has 1024 descriptors open, as many as it may have (RLIMIT_NOFILE)"),
        ("saves", FULL, "/runs/out/masks.bin (fd 22) has 6 MiB"),  # by its path
    ],
)
def test_limit_by_which_what_is_tried_again_fails_is_named(
    tmp_path: Path, mark: str, reached: Reached, said: str
) -> None:
    values = {"fd": "22", "done": "97856", "path": "'/runs/out/masks.bin'"}
    found = told(tmp_path, mark, values, reached=[reached])

    assert found.cause == "limit_reached" and said in found.summary
    assert "it does not pass by waiting" in found.advice


@pytest.mark.parametrize(
    ("mark", "reached", "fd"),
    [
        ("writes", FULL, "7"),  # another file
        ("writes", MANY, "22"),  # opens none
        ("otherwise", MANY, "22"),  # catches no error of the system
        ("saves", NO_ROOM, "22"),  # another path
        ("opens", FULL, "22"),  # which that does not hinder
    ],
)
def test_limit_that_has_nothing_to_do_with_it_is_not_named(
    tmp_path: Path, mark: str, reached: Reached, fd: str
) -> None:
    found = told(tmp_path, mark, {"fd": fd, "path": "'/runs/a.txt'"}, reached=[reached])

    assert found.cause == "retries" and "RLIMIT" not in found.summary and "room left" not in found.summary
