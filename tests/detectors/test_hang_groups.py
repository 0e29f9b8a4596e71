"""Process groups that not all ranks have made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from diag.model.observations import CollectiveEntry, CollectiveGroup, FlightRecorder
from tests.detectors.test_hang import steady
from tests.detectors.test_hang_program import read
from tests.detectors.test_hang_variables import held
from tests.facts import Story, pid_of
from tests.programs import line_of

REDUCE = "all_reduce torch/distributed/distributed_c10d.py:3173"
# torch 2.13, gloo: the innermost frame while all ranks of a group connect to each other
MAKES = (
    "new_group torch/distributed/distributed_c10d.py:5863",
    "_new_process_group_helper torch/distributed/distributed_c10d.py:2169",
)
TEXT = """
class Saver:
    def group(self):
        if self.made is None:
            self.made = dist.new_group(self.writers)
        return self.made

    def save(self):
        if self.rank not in self.writers:
            return
        self.group()


def main():
    every = dist.new_group()  # makes
    all_reduce(every)  # reduces


main()  # top
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TEXT)
    return tmp_path / "train.py"


def lines(path: Path, mark: str, *then: str) -> list[str]:
    return [f"<module> {path}:{line_of(TEXT, 'top')}", f"main {path}:{line_of(TEXT, mark)}", *then]


def recorded(story: Story, rank: int, group: str, op: str, *members: int) -> None:
    """A call of this group is pending; of the first group, one has been made."""
    pending = group != "0"
    known = CollectiveGroup("gloo", group, "undefined", members)
    call = CollectiveEntry(
        "gloo", group, "undefined", 3, 3, False, op, ((4,),), ((4,),), ("float",), "scheduled", not pending, pending, 3, 0.0
    )  # fmt: skip
    story.tell(FlightRecorder(rank, story.now, "2.10", ("gloo",), (known,), (call,), pid_of(rank)))


def story_of(
    path: Path,
    stacks: dict[int, Sequence[str]],
    numbers: dict[int, str],
    pending: dict[int, tuple[str, str, tuple[int, ...]]] | None = None,
) -> Story:
    story = steady(world=len(stacks))
    for _ in range(3):
        story.still(20.0, stacks)
        for rank, stacked in stacks.items():
            read(story, path, rank, stacked)
            made = (
                {"group_name": f"'{numbers[rank]}'", "group_size": str(len(stacks))}
                if rank in numbers
                else {}
            )
            held(story, rank, stacked, {"_new_process_group_helper": made})
        for rank, (group, op, members) in (pending or {}).items():
            recorded(story, rank, group, op, *members)
    story.still(20.0, stacks)
    return story


def test_rank_that_has_made_one_group_less_is_named_with_the_line_that_it_left_out(path: Path) -> None:
    stacks: dict[int, Sequence[str]] = {rank: lines(path, "makes", *MAKES) for rank in range(3)}
    hang = story_of(path, stacks, {0: "2", 1: "2", 2: "1"}).the("hang")

    assert (hang.klass, hang.cause, hang.ranks) == ("comm_init", "groups_made_by_some", (2,))
    assert "ranks 0-1 make their group number 2 in main" in hang.summary
    assert "rank 2 makes its group number 1" in hang.summary
    assert "a group is also made by `self.made = dist.new_group(self.writers)`" in hang.summary
    assert "past which `if self.rank not in self.writers:`" in hang.summary
    assert hang.severity.value == "critical"


def test_rank_that_took_the_new_group_for_an_older_one_is_named(path: Path) -> None:
    """It came through, by the addresses that the others left under that number, and waits in the group's first call."""
    stacks = {
        0: lines(path, "makes", *MAKES),
        1: lines(path, "makes", *MAKES),
        2: lines(path, "reduces", REDUCE),
    }
    pending = {
        0: ("0", "all_reduce", (0, 1, 2)),
        1: ("0", "all_reduce", (0, 1, 2)),
        2: ("1", "all_reduce", (0, 1, 2)),
    }
    hang = story_of(path, stacks, {0: "2", 1: "2"}, pending).hang()

    assert (hang.cause, hang.ranks) == ("groups_made_by_some", (2,))
    assert "rank 2 is in all_reduce of the one that it has as number 1" in hang.summary


def test_group_of_other_members_on_another_rank_is_told_from_the_recorders(path: Path) -> None:
    stacks = {rank: lines(path, "reduces", REDUCE) for rank in range(3)}
    pending = {
        0: ("1", "all_reduce", (0, 1)),
        1: ("1", "all_reduce", (0, 1)),
        2: ("1", "broadcast", (0, 1, 2)),
    }
    hang = story_of(path, stacks, {}, pending).hang()

    assert (hang.cause, hang.ranks) == ("groups_made_by_some", (2,))
    assert "group 1 is of ranks 0-1 to ranks 0-1" in hang.summary
    assert "group 1 is of ranks 0-2 to rank 2" in hang.summary


@pytest.mark.parametrize(
    ("pending", "blamed"),
    [
        # of rank 2 nothing is recorded, so the calls themselves explain nothing
        ({0: ("1", "all_reduce", (0, 1)), 1: ("1", "all_reduce", (0, 1, 2))}, 0),
        # the calls by themselves look like two groups in opposite order
        (
            {
                0: ("1", "all_reduce", (0, 1)),
                1: ("2", "all_reduce", (0, 1)),
                2: ("1", "all_reduce", (0, 1, 2)),
            },
            0,
        ),
    ],
)
def test_group_of_other_members_is_told_whatever_the_calls_look_like(
    path: Path, pending: dict[int, tuple[str, str, tuple[int, ...]]], blamed: int
) -> None:
    hang = story_of(path, {rank: lines(path, "reduces", REDUCE) for rank in range(3)}, {}, pending).hang()

    assert (hang.cause, hang.ranks) == ("groups_made_by_some", (blamed,))
    assert "group 1 is of ranks 0-1 to rank 0" in hang.summary


def test_one_number_on_all_ranks_is_no_difference(path: Path) -> None:
    """A slow one: all ranks make the same group."""
    stacks: dict[int, Sequence[str]] = {rank: lines(path, "makes", *MAKES) for rank in range(3)}
    story = story_of(path, stacks, {0: "2", 1: "2", 2: "2"})

    assert all(one.cause != "groups_made_by_some" for one in story.findings())


def test_rank_that_is_in_its_own_code_is_late_and_has_left_nothing_out(path: Path) -> None:
    stacks: dict[int, Sequence[str]] = {
        0: lines(path, "makes", *MAKES),
        1: lines(path, "makes", *MAKES),
        2: lines(path, "reduces"),
    }
    story = story_of(path, stacks, {0: "2", 1: "2"})

    assert story.hang().cause != "groups_made_by_some"
