"""Which children of a rank wait for work: proven by whom the kernel says they wait for, else guessed by frames."""

from __future__ import annotations

import pytest

from diag.model.observations.waits import Party, ProcessWaits, ThreadWait, Wait, WaitsRead
from diag.state.idle import is_idle_child
from tests.facts import ALL_REDUCE, DATA, WORKER, Story, pid_of, process, stack, tree

CHILD, DECODER = 5001, 5002
GET = (
    "_worker_loop torch/utils/data/_utils/worker.py:293",
    "get python3.12/multiprocessing/queues.py:113",
    "poll python3.12/multiprocessing/connection.py:257",
)
OWN_LOOP = (
    "<module> /app/serve.py:3",
    "serve /app/serve.py:30",
    "recv python3.12/multiprocessing/connection.py:250",
)
LIBRARY = "/usr/lib/python3.12"
POLLS = (f"get {LIBRARY}/multiprocessing/queues.py:113", f"select {LIBRARY}/selectors.py:415")
REBUILDS = (f"get {LIBRARY}/multiprocessing/queues.py:122", "__setstate__ /app/shards.py:8")
# A function in C has no frame of its own; one of the standard library's Python has.
IN_C = (f"_process_worker {LIBRARY}/concurrent/futures/process.py:263",)
COPIES = (*IN_C, f"copyfileobj {LIBRARY}/shutil.py:200")
IN_A_TASK = (
    "_process_worker python3.12/concurrent/futures/process.py:263",
    "convert /app/convert.py:12",
)


def reads_from(*pids: int) -> Wait:
    return Wait("pipe_read", "read", 7, "pipe:[4]", others=tuple(Party(pid) for pid in pids))


@pytest.mark.parametrize(
    ("lines", "wait", "idle"),
    [
        (GET, reads_from(pid_of(1)), True),
        (GET, reads_from(pid_of(1), 5003, 5004), True),  # a pipe of all workers
        (OWN_LOOP, reads_from(pid_of(1)), True),  # no library's loop
        (WORKER, reads_from(DECODER), False),
        (GET, reads_from(DECODER), False),
        (GET, Wait("pipe_read", "read", 7, "pipe:[4]", dead_end="only_self"), False),
        (GET, Wait("file_io", "read", 7, "/nfs/shard"), False),
        (GET, Wait("semaphore", "futex"), True),  # the kernel knows no owner: by its frames
        (WORKER, Wait("condition", "futex"), False),
        (GET, None, True),
        (OWN_LOOP, None, False),
        (IN_A_TASK, None, False),
        (IN_C, None, False),
        (COPIES, None, False),
        (POLLS, None, True),
        (REBUILDS, None, False),
        ((), None, True),  # not known: shown, and not blamed
    ],
)  # fmt: skip
def test_child_is_idle_where_it_waits_for_its_rank(
    lines: tuple[str, ...], wait: Wait | None, idle: bool
) -> None:
    story = Story()
    story.tell(tree(1, story.now, process(CHILD, ppid=pid_of(1))), stack(1, story.now, lines, pid=CHILD))
    if wait is not None:
        thread = ThreadWait(CHILD, "python", "S", "", wait, same=True)
        story.tell(WaitsRead(1, pid_of(1), 0.5, (ProcessWaits(CHILD, pid_of(1), "python", (thread,)),)))
    rank = story.engine.job.ranks[1]

    assert is_idle_child(rank, rank.child_stacks[CHILD][1]) is idle


def test_reading_of_long_ago_says_nothing_of_the_stack_of_now() -> None:
    story = Story()
    thread = ThreadWait(CHILD, "python", "S", "", reads_from(pid_of(1)), same=True)
    story.tell(WaitsRead(1, pid_of(1), 0.5, (ProcessWaits(CHILD, pid_of(1), "python", (thread,)),)))
    story.wait(120.0)
    story.tell(stack(1, story.now, WORKER, pid=CHILD))
    rank = story.engine.job.ranks[1]

    assert not is_idle_child(rank, rank.child_stacks[CHILD][1])


def test_worker_that_waits_for_its_rank_is_not_what_the_rank_waits_for() -> None:
    story = Story()
    thread = ThreadWait(CHILD, "python", "S", "", reads_from(pid_of(1)), same=True)
    read = WaitsRead(1, pid_of(1), 0.5, (ProcessWaits(CHILD, pid_of(1), "python", (thread,)),))
    for _ in range(40):
        story.tell(
            tree(1, story.now, process(CHILD, ppid=pid_of(1))),
            stack(1, story.now, DATA),
            stack(1, story.now, OWN_LOOP, pid=CHILD),
            read,
        )
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
        story.wait(2.0)

    hang = story.hang()
    assert hang.cause == "dataloader_main_process"
    assert str(CHILD) not in hang.summary
