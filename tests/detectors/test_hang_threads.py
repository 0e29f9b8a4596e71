"""Trainings that run in another thread than the main one: that thread is judged, and named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from diag.agent.dump import described
from diag.model.observations import ThreadStack
from diag.model.observations.waits import Party, ProcessWaits, ThreadWait, Wait, WaitsRead
from diag.outputs.view.view import stacks_json
from tests.detectors.test_hang import started, steady
from tests.facts import ALL_REDUCE, SLEEP, TRAIN, Story, frames, pid_of, stack, tree

BEGIN = ("_bootstrap python3.12/threading.py:1032", "run python3.12/threading.py:1012")
JOIN = (
    "<module> /app/serve.py:40",
    "join python3.12/threading.py:1149",
    "_wait_for_tstate_lock python3.12/threading.py:1169",
)
SERVE = (
    "<module> /app/serve.py:40",
    "serve_forever python3.12/socketserver.py:235",
    "select python3.12/selectors.py:415",
)
LOOP = (*BEGIN, "train /app/train.py:200")
IN_THREAD = (*BEGIN, *ALL_REDUCE[2:])
STUCK = (*LOOP, "shuffle_shards /app/train.py:88")
TRAINER = 7001


def thread(lines: Sequence[str], name: str = "trainer", tid: int = TRAINER) -> ThreadStack:
    return ThreadStack(tid, name, frames(*lines))


def go_on(
    story: Story,
    main: Sequence[str],
    seconds: float,
    rank_1: Sequence[str],
    *more: ThreadStack,
    cpu: float = 0.0,
) -> None:
    """Rank 0's thread is in all_reduce, rank 1's in `rank_1`, the main thread of both in `main`."""
    for _ in range(int(seconds / 2)):
        for rank, lines in ((0, IN_THREAD), (1, rank_1)):
            story.tell(tree(rank, story.now, cpu=cpu), stack(rank, story.now, main, thread(lines), *more))
        story.wait(2.0)


def test_rank_whose_thread_does_not_come_is_named_with_that_thread_whatever_its_main_thread_does() -> None:
    for main in (JOIN, SERVE, ("<module> /app/serve.py:41",)):
        story = started()
        go_on(story, main, 10.0, IN_THREAD)

        go_on(story, main, 60.0, STUCK)

        hang = story.hang()
        assert (hang.klass, hang.ranks, hang.waiting_ranks) == ("peer_not_joined", (1,), (0,))
        assert "in shuffle_shards (/app/train.py:88) of its thread trainer" in hang.summary
        shown = [item.excerpt for item in hang.evidence if item.rank == 1]
        assert any(text.startswith("thread trainer: shuffle_shards") for text in shown)
        assert any(text.startswith("its main thread: ") for text in shown)


def test_main_thread_that_was_seen_importing_torch_has_made_no_step() -> None:
    """torch's optimizers stand in its stack then."""
    story = started()
    imports = (
        "<module> /app/serve.py:1", "_find_and_load <frozen importlib._bootstrap>:1176",
        "Optimizer torch/optim/optimizer.py:340",
    )  # fmt: skip
    story.tell(*(stack(rank, story.now, imports) for rank in range(2)))
    story.wait(2.0)

    go_on(story, ("<module> /app/serve.py:41",), 60.0, STUCK)

    assert "of its thread trainer" in story.hang().summary


def test_thread_that_trains_is_not_left_for_a_sample_in_which_it_is_elsewhere() -> None:
    story = started()
    go_on(story, JOIN, 10.0, IN_THREAD)

    for lines in (STUCK, IN_THREAD, STUCK):
        go_on(story, JOIN, 4.0, lines)

        assert story.engine.job.ranks[1].thread == TRAINER


def test_training_in_a_thread_that_goes_on_is_silent() -> None:
    story = started()
    for number in range(60):
        go_on(story, JOIN, 2.0, (*LOOP, f"forward /app/model.py:{number}"), cpu=0.1 * number)

    assert story.findings() == []


def test_thread_that_computes_at_one_line_is_busy_and_no_hang() -> None:
    """The main thread uses no CPU: it is the thread's that counts."""
    story = started()
    go_on(story, JOIN, 10.0, IN_THREAD)
    busy = 0.0
    for _ in range(30):
        busy += 2.0
        process = tree(1, story.now, cpu=busy)
        story.tell(tree(0, story.now), stack(0, story.now, JOIN, thread(IN_THREAD)))
        story.tell(replace(process, main_thread_cpu_seconds=0.0), stack(1, story.now, JOIN, thread(STUCK)))
        story.wait(2.0)

    assert [(one.id, one.cause, one.ranks) for one in story.findings()] == [("held-up", "busy", (1,))]


def test_main_thread_that_waits_for_a_save_of_other_threads_in_a_collective_is_no_culprit() -> None:
    """It trained before; now its checkpoint thread waits for rank 1's, which stands elsewhere."""
    story = steady()
    wait = (*TRAIN, "result concurrent/futures/_base.py:451", "wait python3.12/threading.py:355")
    saver = (*BEGIN, "save /app/async_save.py:8", "gather_object torch/distributed/distributed_c10d.py:2800")
    for _ in range(20):
        story.tell(tree(0, story.now), stack(0, story.now, wait, thread(saver, "saver", 7002)))
        story.tell(tree(1, story.now), stack(1, story.now, SLEEP))
        story.wait(2.0)

    hang = story.hang()
    assert (hang.klass, hang.ranks, hang.waiting_ranks) == ("peer_not_joined", (1,), (0,))


def test_thread_that_listens_in_a_collective_all_the_time_is_not_what_the_main_thread_waits_for() -> None:
    story = started()
    listens = thread((*BEGIN, "listen /app/rpc.py:8", *ALL_REDUCE[-1:]), "listener", 7003)
    for number in range(1, 6):
        for rank in range(2):
            lines = (*ALL_REDUCE[:-1], f"all_reduce torch/distributed/distributed_c10d.py:{number}")
            story.tell(tree(rank, story.now), stack(rank, story.now, lines, listens))
        story.wait(2.0)
    queue = (*TRAIN, "get python3.12/queue.py:171", "wait python3.12/threading.py:355")
    for _ in range(20):
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE, listens))
        story.tell(tree(1, story.now), stack(1, story.now, queue, listens))
        story.wait(2.0)

    hang = story.hang()
    assert (hang.klass, hang.ranks) == ("lock_deadlock", (1,))


def test_threads_of_a_job_whose_main_thread_trains_are_never_judged() -> None:
    story = steady()
    monitor = thread((*BEGIN, "run /tqdm/_monitor.py:60", "wait python3.12/threading.py:355"), "tqdm", 7004)
    pins = thread((*BEGIN, "_pin_memory_loop torch/utils/data/_utils/pin_memory.py:54"), "pin", 7005)
    for _ in range(20):
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE, monitor, pins))
        story.tell(tree(1, story.now), stack(1, story.now, SLEEP, monitor, pins))
        story.wait(2.0)

    hang = story.hang()
    assert (hang.klass, hang.ranks) == ("peer_not_joined", (1,))
    assert "thread" not in hang.summary


def test_thread_that_the_kernel_says_is_joined_is_followed_on() -> None:
    pid = pid_of(1)
    remote = Wait("tcp_receive", "recvfrom", 5, peer="10.0.0.5:443", silent_seconds=92.0)
    join = Wait("join", "futex", others=(Party(pid, TRAINER),))
    threads = (
        ThreadWait(pid, "MainThread", "S", "", join, same=True),
        ThreadWait(TRAINER, "trainer", "S", "", remote, same=True),
    )
    read = WaitsRead(1, pid, 0.5, (ProcessWaits(pid, 1, "python serve.py", threads),))
    story = started()
    go_on(story, JOIN, 10.0, IN_THREAD)
    for _ in range(20):
        story.tell(read)
        go_on(story, JOIN, 2.0, STUCK)

    hang = story.hang()
    assert hang.cause == "peer_is_silent"
    assert "its thread trainer waits for data from 10.0.0.5:443" in hang.summary


def test_heartbeat_beside_a_main_thread_that_waits_for_ever_is_not_taken_for_the_training() -> None:
    story = started()
    for number in range(40):
        beat = thread((*BEGIN, f"beat /app/health.py:{number % 2}"), "heartbeat", 7006)
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE, beat))
        story.tell(tree(1, story.now), stack(1, story.now, JOIN, beat))
        story.wait(2.0)

    assert story.hang().ranks == (1,)


def test_rank_whose_thread_was_never_seen_in_a_step_is_judged_by_the_one_that_trains_in_others() -> None:
    """Both run one program: the thread of the same name that begins alike."""
    story = started()
    other = thread((*BEGIN, "listen /app/rpc.py:8"), "listener", 7003)
    nap = ("<module> /app/serve.py:41",)

    go_on(story, nap, 60.0, STUCK, other)

    assert "in shuffle_shards (/app/train.py:88) of its thread trainer" in story.hang().summary


def test_dump_shows_the_thread_that_trains_and_all_others() -> None:
    story = started()
    listens = thread((*BEGIN, "listen /app/rpc.py:8"), "listener-1", 7003)
    go_on(story, JOIN, 10.0, IN_THREAD, listens)

    found = described(story.engine)
    titles = [one["title"] for one in found["classes"]]

    assert any(title.startswith("ranks 0-1, thread trainer: collective in all_reduce") for title in titles)
    assert any(title.startswith("ranks 0-1, thread listener-#: other in listen") for title in titles)
    assert any(title.startswith("ranks 0-1, thread MainThread: lock in join") for title in titles)
    assert "thread listener-#" in found["text"]


def test_page_marks_the_thread_that_trains() -> None:
    story = started()
    go_on(story, JOIN, 10.0, IN_THREAD)

    sample = stacks_json(story.engine, 1)["main"]

    assert [(one["name"], one["main"], one["judged"]) for one in sample["threads"]] == [
        ("MainThread", True, False),
        ("trainer", False, True),
    ]
    assert sample["activity"] == "collective"
