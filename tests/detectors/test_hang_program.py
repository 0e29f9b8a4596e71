"""What the program's own text adds: the loop a rank polls in, the handler it is in, and where ranks came apart."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from diag.detectors.hang.own_locks import lock_taken
from diag.model import Finding
from diag.model.observations import (
    CollectiveEntry,
    CollectiveGroup,
    FlightRecorder,
    Frame,
    ProgramPlace,
    ProgramRead,
)
from diag.model.observations.waits import ProcessWaits, ThreadWait, Wait, WaitsRead
from diag.sources.host.job_files import Files
from diag.sources.stacks import program
from tests.detectors.test_hang import steady
from tests.facts import Story, frames, pid_of, process, stack, tree
from tests.programs import line_of

REDUCE = "all_reduce torch/distributed/distributed_c10d.py:3173"
TEXT = """
def agree(loss, rank):
    if rank == 0:
        all_reduce(loss)  # agree


def wait_for(path):
    while not os.path.exists(path):
        pause()  # wait_for


def retry():
    while True:
        if ready():
            break
        time.sleep(1)  # retry


def pause():
    time.sleep(1)  # pause


def upload(path):
    for attempt in range(100):
        try:
            put(path)
        except OSError:
            time.sleep(5)  # upload


class Keeper:
    def update(self):
        with self.guard:
            self.save()  # Keeper.update

    def save(self):
        with self.guard:  # Keeper.save
            write(self.rows)


def search(low, high):
    while low < high:
        low = step(low)  # search


def sample(policy):
    while len(policy) < 99:
        all_gather(policy)  # sample
        if policy[-1] == 0:
            break


def train(loader, rank):
    sample([1])  # samples
    for batch in loader:
        if batch is None:
            continue
        loss = forward(batch)
        if rank == 0:
            all_reduce(loss)  # first
            log(loss)
        else:
            log(loss)  # other
        agree(loss, rank)  # calls
        wait_for("ready")  # waits
        upload("out")  # uploads
        retry()  # retries
        search(0, 9)  # searches
        keeper.update()  # updates
        barrier()  # barrier
        if loss < 1:
            break
    all_reduce(loss)  # after


train([], 0)  # top
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TEXT)
    return tmp_path / "train.py"


def lines(path: Path, *marks: str, then: str = "") -> list[str]:
    """A stack: in `train` at the line of the first mark; further ones are functions of their own; `then` in a library."""
    found = [f"<module> {path}:{line_of(TEXT, 'top')}", f"train {path}:{line_of(TEXT, marks[0])}"]
    found += [f"{mark} {path}:{line_of(TEXT, mark)}" for mark in marks[1:]]
    return [*found, *([then] if then else [])]


def read(story: Story, path: Path, rank: int, stacked: Sequence[str]) -> None:
    """As the sampler reads it."""
    wanted = {frame.line: frame.function for frame in frames(*stacked) if frame.file == str(path)}
    found = program.read(Files(), str(path), wanted, time.time() + 1)
    places = tuple(program._place_of(str(path), row) for row in found.get("places", ()))
    statements = tuple(program._statement_of(row) for row in found.get("statements", ()))
    story.tell(ProgramRead(rank, pid_of(rank), places, statements))


def told(path: Path, stacks: dict[int, list[str]], wait: str = "", seconds: float = 60.0) -> Finding:
    story = steady(world=len(stacks))
    story.still(seconds / 2, stacks)
    for rank, stacked in stacks.items():
        read(story, path, rank, stacked)
    if wait:
        thread = ThreadWait(pid_of(1), "MainThread", "S", "hrtimer_nanosleep", Wait(wait), same=True)
        story.tell(WaitsRead(1, pid_of(1), story.now, (ProcessWaits(pid_of(1), 1, "python", (thread,)),)))
    story.still(seconds / 2, stacks)
    return story.the("held-up")


def at(path: Path, mark: str) -> str:
    return f"{path}:{line_of(TEXT, mark)}"


def test_ranks_in_different_calls_are_told_apart_though_nobody_is_to_blame(path: Path) -> None:
    stacks = {0: lines(path, "first", then=REDUCE), 1: lines(path, "barrier", then=REDUCE)}
    found = told(path, stacks, seconds=180.0)

    assert (found.ranks, found.cause) == ((), "ways_differ")
    assert "rank 0 is under `if rank == 0:`" in found.summary and "where rank 1 is not" in found.summary
    assert "let all ranks decide alike there" in found.advice and "network" not in found.advice


def test_rank_under_a_condition_of_its_own_is_shown_there(path: Path) -> None:
    """It may have come there as the others did before it: nothing is said of different ways."""
    found = told(path, {0: lines(path, "first", then=REDUCE), 1: lines(path, "other")})

    assert (found.cause, found.klass, found.ranks) == ("not_in_collective", "peer_not_joined", (1,))
    assert "rank 1 is under the else of `if rank == 0:` (" in found.summary
    assert "where rank 0 is not" not in found.summary
    assert "different ways" not in found.advice


def test_condition_in_a_function_that_the_other_has_come_through_is_named(path: Path) -> None:
    stacks = {0: lines(path, "calls", "agree", then=REDUCE), 1: lines(path, "barrier", then=REDUCE)}
    found = told(path, stacks, seconds=180.0)

    head = f"`if rank == 0:` ({path}:{line_of(TEXT, 'agree') - 1})"
    assert f"rank 0 is under {head}, which rank 1 has passed by" in found.summary


def test_rank_that_left_the_loop_of_the_others_is_shown_with_the_ways_out(path: Path) -> None:
    found = told(path, {0: lines(path, "first", then=REDUCE), 1: lines(path, "after")})

    assert "rank 1 has left the loop `for batch in loader:`" in found.summary
    assert "`if loss < 1:`" in found.summary and "breaks it off" in found.summary


def called(path: Path, stacks: dict[int, list[str]]) -> Finding:
    """Two readings of the recorder: the ranks made different calls."""
    story = steady(world=len(stacks))
    for _ in range(2):
        story.still(20.0, stacks)
        for rank, stacked in stacks.items():
            read(story, path, rank, stacked)
            recorded(story, rank, 7, "all_gather" if rank == 0 else "all_reduce", len(stacks))
    story.still(20.0, stacks)
    return story.the("hang")


def recorded(story: Story, rank: int, seq: int, op: str, world: int) -> None:
    group = CollectiveGroup("gloo", "0", "default_pg", tuple(range(world)))
    call = CollectiveEntry(
        "gloo", "0", "default_pg", seq, seq, False, op, ((4,),), ((4,),), ("float",), "scheduled", False, True,
        seq, 0.0,
    )  # fmt: skip
    story.tell(FlightRecorder(rank, story.now, "2.10", ("gloo",), (group,), (call,), pid_of(rank)))


@pytest.mark.parametrize("world", [2, 4])
def test_calls_that_differ_are_blamed_on_the_rank_that_went_its_own_way(path: Path, world: int) -> None:
    stacks = {rank: lines(path, "barrier", then=REDUCE) for rank in range(1, world)}
    found = called(path, {0: lines(path, "first", then=REDUCE), **stacks})

    assert (found.cause, found.ranks) == ("call_of_some_ranks", (0,))
    assert found.waiting_ranks == tuple(range(1, world))
    assert "rank 0 is under `if rank == 0:`" in found.summary
    assert "let all ranks run that code" in found.advice


def test_loop_that_one_went_round_once_less_is_named_and_nobody_is_blamed_alone(path: Path) -> None:
    found = called(
        path, {0: lines(path, "samples", "sample", then=REDUCE), 1: lines(path, "barrier", then=REDUCE)}
    )

    assert (found.cause, found.ranks) == ("calls_differ", (0, 1))
    assert "rank 1 has left the loop `while len(policy) < 99:`" in found.summary
    assert "`if policy[-1] == 0:`" in found.summary and "breaks it off" in found.summary
    assert "the same number of steps" in found.advice


def test_calls_that_differ_without_the_text_are_blamed_on_nobody_of_two(path: Path) -> None:
    stacks = {0: lines(path, "first", then=REDUCE), 1: lines(path, "barrier", then=REDUCE)}
    path.unlink()
    found = called(path, stacks)

    assert (found.cause, found.ranks) == ("calls_differ", (0, 1))
    assert "look for a branch" in found.advice


def test_rank_that_is_only_behind_took_no_other_branch(path: Path) -> None:
    found = told(path, {0: lines(path, "barrier", then=REDUCE), 1: lines(path, "calls")})

    assert found.cause == "not_in_collective"
    assert "its line is `agree(loss, rank)`" in found.summary
    assert any(one.kind == "program" and "agree(loss, rank)" in one.excerpt for one in found.evidence)


def test_sleep_in_a_loop_is_polling_and_its_condition_is_named(path: Path) -> None:
    stacks = {0: lines(path, "barrier", then=REDUCE), 1: lines(path, "waits", "wait_for", "pause")}
    found = told(path, stacks, wait="sleep")

    assert found.cause == "polls_for_file"
    assert (
        f"in the loop `while not os.path.exists(path):` ({path}:{line_of(TEXT, 'wait_for') - 1})"
        in found.summary
    )
    assert "whether both mean the same path" in found.advice


def test_loop_without_a_condition_is_shown_with_the_ways_out(path: Path) -> None:
    stacks = {0: lines(path, "barrier", then=REDUCE), 1: lines(path, "retries", "retry")}
    found = told(path, stacks, wait="sleep")

    assert found.cause == "polls"
    assert f"`while True:` ({path}:{line_of(TEXT, 'retry') - 3}) (`if ready():` (" in found.summary


def test_zombie_of_a_rank_that_polls_is_named(path: Path) -> None:
    stacks = {0: lines(path, "barrier", then=REDUCE), 1: lines(path, "waits", "wait_for", "pause")}
    story = steady()
    story.still(30.0, stacks)
    read(story, path, 1, stacks[1])
    thread = ThreadWait(pid_of(1), "MainThread", "S", "hrtimer_nanosleep", Wait("sleep"), same=True)
    for second in range(30):
        if second == 5:
            story.tell(WaitsRead(1, pid_of(1), story.now, (ProcessWaits(pid_of(1), 1, "python", (thread,)),)))
        story.tell(
            *(stack(rank, story.now, stacked) for rank, stacked in stacks.items()),
            tree(0, story.now),
            tree(1, story.now, process(4321, state="Z")),
        )
        story.wait(1.0)

    assert (
        "its child process 4321 has ended and is not waited for (a zombie: its pid still exists)"
        in story.the("held-up").summary
    )


def test_holder_of_a_lock_that_is_taken_twice_is_not_said_to_be_unknown(path: Path) -> None:
    stacks = {
        0: lines(path, "barrier", then=REDUCE),
        1: lines(path, "updates", "Keeper.update", "Keeper.save"),
    }
    story = steady()
    story.still(30.0, stacks)
    read(story, path, 1, stacks[1])
    lock = ThreadWait(pid_of(1), "MainThread", "S", "futex_do_wait", Wait("condition", "futex"), same=True)
    for _ in range(30):
        story.tell(*(stack(rank, story.now, stacked) for rank, stacked in stacks.items()))
        story.tell(tree(0, story.now), tree(1, story.now, wchan="futex_do_wait"))
        story.tell(WaitsRead(1, pid_of(1), story.now, (ProcessWaits(pid_of(1), 1, "python", (lock,)),)))
        story.wait(1.0)

    found = story.hang()
    assert found.cause == "lock_taken_twice" and "not known which" not in found.summary
    assert [one.excerpt for one in found.evidence if one.kind == "waits"] == [
        f"pid {pid_of(1)}: the main thread waits on a lock or condition"
    ]


@pytest.mark.parametrize("wchan", ["futex_do_wait", "pipe_read"])
def test_lock_that_the_thread_holds_further_out_was_taken_twice(path: Path, wchan: str) -> None:
    stacks = {
        0: lines(path, "barrier", then=REDUCE),
        1: lines(path, "updates", "Keeper.update", "Keeper.save"),
    }
    story = steady()
    story.still(30.0, stacks)
    read(story, path, 1, stacks[1])
    for _ in range(30):
        story.tell(*(stack(rank, story.now, stacked) for rank, stacked in stacks.items()))
        story.tell(tree(0, story.now), tree(1, story.now, wchan=wchan))
        story.wait(1.0)

    found = story.the("held-up")
    assert (found.cause == "lock_taken_twice") is (wchan == "futex_do_wait")
    if wchan == "futex_do_wait":
        assert "inside of `with self.guard:` already, in Keeper.update" in found.summary
        assert "Let a handler only set a flag" in found.advice


def test_lock_is_taken_by_a_block_of_one_line_too() -> None:
    frame = Frame("store", "/app/a.py", 3)
    for text, lock in (
        ("with lock: pass", "lock"),
        ("with self.lock:", "self.lock"),
        ("with open(path) as a:", ""),
    ):
        assert lock_taken(frame, ProgramPlace("/app/a.py", 3, "store", text)) == lock


def test_worker_that_takes_a_lock_is_not_sent_to_its_files(path: Path) -> None:
    worker = [
        "_worker_loop torch/utils/data/_utils/worker.py:349",
        f"Keeper.save {path}:{line_of(TEXT, 'Keeper.save')}",
    ]
    data = lines(path, "uploads", then="__next__ torch/utils/data/dataloader.py:741")
    stacks = {0: lines(path, "barrier", then=REDUCE), 1: data}
    story = steady()
    lock = Wait("condition", others=())
    thread = ThreadWait(4321, "MainThread", "S", "futex_do_wait", lock, same=True)
    for second in range(60):
        story.tell(*(stack(rank, story.now, stacked) for rank, stacked in stacks.items()))
        story.tell(tree(0, story.now), tree(1, story.now, process(4321, comm="pt_data_worker")))
        story.tell(stack(1, story.now, worker, pid=4321))
        if second == 20:
            read(story, path, 1, [*data, worker[1]])
            story.tell(WaitsRead(1, pid_of(1), story.now, (ProcessWaits(4321, 1, "python", (thread,)),)))
        story.wait(1.0)

    found = story.the("held-up")
    assert (found.cause, found.klass) == ("worker_waits_for_lock", "data_loading")
    assert "it waits for the lock of `with self.guard:`" in found.summary and "forked" in found.advice


def test_sleep_after_an_exception_names_its_handler(path: Path) -> None:
    stacks = {0: lines(path, "barrier", then=REDUCE), 1: lines(path, "uploads", "upload")}
    found = told(path, stacks, wait="sleep")

    assert found.cause == "retries"
    assert "it has caught an exception at `except OSError:`" in found.summary
    assert "of `put(path)`" in found.summary and "print the exception" in found.advice


def test_loop_of_a_rank_that_computes_is_named(path: Path) -> None:
    story = steady()
    stacks = {0: lines(path, "barrier", then=REDUCE), 1: lines(path, "searches", "search")}
    for second in range(60):
        story.tell(stack(0, story.now, stacks[0]), stack(1, story.now, stacks[1]))
        for rank in (0, 1):
            story.tell(tree(rank, story.now, cpu=rank * story.now, state="R" if rank else "S"))
        if second == 20:
            read(story, path, 1, stacks[1])
        story.wait(1.0)

    found = story.the("held-up")
    assert found.cause == "loops"
    assert "it goes round in the loop `while low < high:`" in found.summary
    assert "whose condition changes by `low = step(low)" in found.summary


def test_text_that_was_not_read_changes_nothing(path: Path) -> None:
    stacks = {0: lines(path, "first", then=REDUCE), 1: lines(path, "other")}
    path.unlink()
    found = told(path, stacks)

    assert found.cause == "not_in_collective"
    assert not [one for one in found.evidence if one.kind == "program"]


@pytest.mark.parametrize("second", ["waits", "retries"])
def test_ranks_that_all_wait_at_one_line_are_not_to_blame(path: Path, second: str) -> None:
    """What they wait for is; of ranks at different lines either may be what the other one waits for."""
    there = {"waits": ("wait_for", "pause"), "retries": ("retry",)}
    found = told(path, {0: lines(path, "waits", "wait_for", "pause"), 1: lines(path, second, *there[second])})

    alike = second == "waits"
    assert (found.ranks, found.waiting_ranks) == (((), (0, 1)) if alike else ((0, 1), ()))
    assert f"ranks 0-1 have {'been in' if alike else 'not moved: rank 0 in'}" in found.summary
