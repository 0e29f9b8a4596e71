"""Waits whose end the kernel shows, sleeps that come again, services that work at nothing, and loops that move."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diag.model.observations import LogLine, Meaning, ProgramPlace, ProgramRead
from diag.model.observations.waits import Party, ProcessWaits, ThreadWait, Wait, WaitsRead
from diag.state.stack_activity import read_stack
from tests.detectors.test_hang import started, steady
from tests.facts import ALL_REDUCE, DATA, SLEEP, TRAIN, WORKER, Story, pid_of, process, stack, tree

OWN = (*TRAIN, "score /app/judge.py:17")
IN_LIBRARY = (*TRAIN, "call /app/judge.py:17", "sleep /opt/v/lib/python3.12/site-packages/tenacity/nap.py:31")
IN_HTTP = (
    *TRAIN, "put /app/bucket.py:9", "urlopen urllib3/connectionpool.py:974", "_sleep_backoff urllib3/util/retry.py:383",
)  # fmt: skip
ASKED = 640


def main_of(pid: int, wait: Wait, *, same: bool = True) -> ThreadWait:
    return ThreadWait(pid, "MainThread", "S", "", wait, cpu_ratio=0.0, same=same)


def reads(rank: int, wait: Wait, *more: ProcessWaits) -> WaitsRead:
    pid = pid_of(rank)
    return WaitsRead(rank, pid, 0.5, (ProcessWaits(pid, 1, "python train.py", (main_of(pid, wait),)), *more))


def sleeping(left: float) -> Wait:
    return Wait("sleep", "clock_nanosleep", seconds=left, timed=True)


def play(story: Story, seconds: int, waits: dict[int, object], stacks: dict[int, tuple[str, ...]]) -> Story:
    """`waits`: of a rank what it waits for at a told second, read each 10 s."""
    for second in range(0, seconds, 2):
        for rank, lines in stacks.items():
            story.tell(tree(rank, story.now), stack(rank, story.now, lines))
            if rank in waits and second % 10 == 0:
                story.tell(reads(rank, waits[rank](second)))  # type: ignore[operator]
        story.wait(2.0)
    return story


# -- sleeps ---------------------------------------------------------------------------------------------------------


def test_one_sleep_of_all_ranks_is_waited_for() -> None:
    """Both honour a Retry-After of 70 s."""
    story = play(
        steady(), 68, {0: lambda at: sleeping(70 - at), 1: lambda at: sleeping(70 - at)}, {0: OWN, 1: OWN}
    )
    assert story.findings() == []


def test_sleep_that_takes_very_long_is_told_with_its_end() -> None:
    story = play(
        steady(), 60, {0: lambda at: sleeping(9000 - at), 1: lambda at: sleeping(9000 - at)}, {0: OWN, 1: OWN}
    )

    assert (story.hang().id, story.hang().cause) == ("held-up", "sleeps_once")
    assert "rank 0 sleeps until" in story.hang().summary and "again and again" not in story.hang().summary


def test_sleep_for_which_others_wait_is_told_with_its_end() -> None:
    story = play(steady(), 60, {1: lambda at: sleeping(120 - at)}, {0: ALL_REDUCE, 1: OWN})

    assert (story.hang().id, story.hang().ranks, story.hang().cause) == ("held-up", (1,), "sleeps_once")


@pytest.mark.parametrize(
    ("lines", "cause"), [(OWN, "sleeps"), (IN_LIBRARY, "tries_again"), (IN_HTTP, "tries_again")]
)
def test_sleep_that_comes_again_has_no_known_end(lines: tuple[str, ...], cause: str) -> None:
    story = play(steady(), 90, {1: lambda at: sleeping(15 - at % 15)}, {0: ALL_REDUCE, 1: lines})

    assert (story.hang().ranks, story.hang().cause) == ((1,), cause)
    if cause == "tries_again":
        assert "not for the first time" in story.hang().summary


@pytest.mark.parametrize(
    ("text", "cause"), [("con.execute(insert, row)", "tries_again"), ("time.sleep(15)", "sleeps")]
)
def test_call_in_c_that_sleeps_and_tries_again_is_told_from_the_programs_own_sleep(
    text: str, cause: str
) -> None:
    """SQLite waits for a lock so."""
    story = steady()
    story.tell(ProgramRead(1, pid_of(1), (ProgramPlace("/app/judge.py", 17, "score", text),)))
    play(story, 90, {1: lambda at: sleeping(0.1)}, {0: ALL_REDUCE, 1: OWN})

    assert (story.hang().ranks, story.hang().cause) == ((1,), cause)
    assert ("`con.execute(insert, row)` sleeps again and again" in story.hang().summary) is (
        cause == "tries_again"
    )


# -- time limits ----------------------------------------------------------------------------------------------------


QUOTA = Meaning("wait", "value", "self.next_slot - time.monotonic()", "/app/judge.py", 15)
BACKOFF = Meaning("wait", "value", "min(30, 2 ** tries)", "/app/judge.py", 15)


def told_to_sleep(text: str, names: tuple[Meaning, ...], seconds: int) -> Story:
    story = steady()
    place = ProgramPlace("/app/judge.py", 17, "score", text, names=names)
    story.tell(ProgramRead(1, pid_of(1), (place,)))
    return play(story, seconds, {1: lambda at: sleeping(15 - at % 15)}, {0: ALL_REDUCE, 1: OWN})


@pytest.mark.parametrize(
    ("text", "names", "length"),
    [
        ('time.sleep(float(e.headers["Retry-After"]))', (), 'float(e.headers["Retry-After"])'),
        ("time.sleep(wait)", (QUOTA,), QUOTA.text),
    ],
)
def test_sleep_of_a_length_that_a_clock_or_an_answer_gives_is_waited_for_and_blamed_for_nothing(
    text: str, names: tuple[Meaning, ...], length: str
) -> None:
    assert told_to_sleep(text, names, 80).findings() == []

    hang = told_to_sleep(text, names, 130).hang()
    assert (hang.id, hang.cause, hang.severity.value, hang.grounds) == (
        "held-up",
        "sleeps_as_told",
        "warning",
        (),
    )
    assert f"it sleeps as long as `{length}` says" in hang.summary and "such sleeps" in hang.summary
    assert "may well go on by itself" in hang.advice and "failed" not in hang.advice


def test_line_says_that_it_sleeps_where_the_kernel_was_not_asked() -> None:
    story = steady()
    place = ProgramPlace("/app/judge.py", 17, "score", "time.sleep(wait)", names=(QUOTA,))
    story.tell(ProgramRead(1, pid_of(1), (place,)))

    assert play(story, 80, {}, {0: ALL_REDUCE, 1: OWN}).findings() == []
    hang = play(story, 50, {}, {0: ALL_REDUCE, 1: OWN}).hang()
    assert (hang.cause, hang.grounds) == ("sleeps_as_told", ())
    assert "it sleeps as long as" in hang.summary and "this time until" not in hang.summary


@pytest.mark.parametrize(
    ("text", "names"), [("time.sleep(15)", ()), ("time.sleep(wait)", (BACKOFF,)), ("time.sleep(wait)", ())]
)
def test_sleep_of_another_length_is_told_as_before(text: str, names: tuple[Meaning, ...]) -> None:
    hang = told_to_sleep(text, names, 80).hang()
    assert hang.cause == "sleeps" and "as long as" not in hang.summary


def test_sleep_that_a_clock_gives_is_told_with_its_end_and_how_often_it_came() -> None:
    hang = told_to_sleep("time.sleep(wait)", (QUOTA,), 126).hang()
    assert " says (this time until " in hang.summary and "and was seen in 8 such sleeps" in hang.summary


def test_call_with_a_time_limit_is_told_with_it() -> None:
    wait = Wait("poll", "epoll_wait", seconds=80.0, timed=True, watched=(Wait("pipe_read", "read", 7),))
    story = play(steady(), 50, {1: lambda at: wait}, {0: ALL_REDUCE, 1: IN_LIBRARY})

    assert story.hang().cause == "waits_with_limit"
    assert "that wait has a time limit: it ends by" in story.hang().summary
    assert "branch" not in story.hang().advice


def test_call_without_a_time_limit_has_no_known_end() -> None:
    wait = Wait("poll", "epoll_wait", watched=(Wait("pipe_read", "read", 7),))
    story = play(steady(), 50, {1: lambda at: wait}, {0: ALL_REDUCE, 1: IN_LIBRARY})

    assert story.hang().cause == "call_does_not_return"


# -- services -------------------------------------------------------------------------------------------------------

LISTENS = Wait("tcp_accept", "accept", 6)
FROM_RANK = Wait("tcp_receive", "recv", 8, others=(Party(pid_of(0)),))
UPSTREAM = Wait("tcp_receive", "recv", 9, peer="10.0.0.9:443")
ASKS = (*TRAIN, "reward /app/grpo.py:35", "urlopen urllib3/connectionpool.py:793")
POLLS = Wait("poll", "epoll_wait", 3, watched=(LISTENS, FROM_RANK))


def asks(*threads: Wait, started_one: bool = False, seconds: int = 60, local: str = "") -> Story:
    """Both ranks wait for an answer of a process on their machine."""
    story = steady()
    request = Wait(
        "tcp_receive",
        "recvfrom",
        9,
        peer="127.0.0.1:8000",
        local=local,
        silent_seconds=20.0,
        others=(Party(ASKED, 0, "python reward_service.py"),),
    )
    of = tuple(ThreadWait(ASKED + at, "python", "S", "", wait) for at, wait in enumerate(threads))
    service = ProcessWaits(ASKED, 1, "python reward_service.py", of, job=False)
    below = (
        (ProcessWaits(9000, ASKED, "worker", (main_of(9000, LISTENS),), job=False),) if started_one else ()
    )
    for _ in range(0, seconds, 2):
        for rank in range(2):
            story.tell(
                tree(rank, story.now), stack(rank, story.now, ASKS), reads(rank, request, service, *below)
            )
        story.wait(2.0)
    return story


@pytest.mark.parametrize(
    "threads",
    [
        (POLLS,),
        (replace(POLLS, seconds=3600.0, timed=True),),
        (replace(LISTENS, timed=True, seconds=0.5), Wait("condition", "futex")),
    ],
)
def test_service_that_waits_for_requests_alone_has_put_this_one_aside(threads: tuple[Wait, ...]) -> None:
    hang = asks(*threads).hang()

    assert (hang.id, hang.cause, hang.severity.value) == ("held-up", "service_is_idle", "warning")
    assert "pid 640 is itself idle" in hang.summary and "reward_service.py" in hang.advice


@pytest.mark.parametrize(("port", "cause"), [(4000, "both_ends_receive"), (4001, "service_is_idle")])
def test_server_that_reads_from_the_connection_of_its_asker_may_wait_for_what_that_should_send(
    port: int, cause: str
) -> None:
    reader = replace(FROM_RANK, local="127.0.0.1:8000", peer=f"127.0.0.1:{port}")
    hang = asks(Wait("condition", "futex"), reader, LISTENS, local="127.0.0.1:4000").hang()

    assert (hang.id, hang.cause) == ("held-up", cause)
    assert ("from the other end of that very connection" in hang.summary) is (cause == "both_ends_receive")
    assert ("an acknowledgement, a credit" in hang.advice) is (cause == "both_ends_receive")


@pytest.mark.parametrize(
    ("threads", "started_one"),
    [
        ((Wait("running"),), False),
        ((LISTENS, sleeping(3.0)), False),
        ((replace(POLLS, watched=(LISTENS, FROM_RANK, UPSTREAM)),), False),
        ((replace(POLLS, seconds=40.0, timed=True),), False),
        ((replace(POLLS, watched=(LISTENS, replace(FROM_RANK, unread_bytes=300))),), False),
        ((POLLS,), True),
    ],
    ids=["computes", "sleeps", "asks somebody else", "comes back soon", "has not read", "has started others"],
)
def test_service_that_may_be_at_work_is_given_its_time(threads: tuple[Wait, ...], started_one: bool) -> None:
    assert asks(*threads, started_one=started_one).findings() == []


QUEUED = Wait(
    "tcp_receive",
    "recvfrom",
    9,
    peer="127.0.0.1:8000",
    not_accepted=1,
    others=(Party(ASKED, 0, "python index.py"),),
)


def is_not_accepted(
    server: Wait, seconds: int, rank_0: tuple[str, ...] = ALL_REDUCE, helper: Wait | None = None
) -> Story:
    """Rank 1 asks a server that has not accepted its connection."""
    main = ThreadWait(ASKED, "python", "S", "", server)
    more = () if helper is None else (ThreadWait(ASKED + 1, "python", "S", "", helper),)
    one = ProcessWaits(ASKED, 1, "python index.py", (main, *more), job=False)
    story = steady()
    for _ in range(0, seconds, 2):
        story.tell(tree(0, story.now), stack(0, story.now, rank_0))
        story.tell(tree(1, story.now), stack(1, story.now, ASKS), reads(1, QUEUED, one))
        story.wait(2.0)
    return story


def test_server_that_reads_from_a_rank_that_waits_for_the_culprit_goes_round_in_a_circle() -> None:
    hang = is_not_accepted(FROM_RANK, 40).hang()

    assert (hang.id, hang.cause, hang.ranks, hang.waiting_ranks) == (
        "hang",
        "server_keeps_connection",
        (1,),
        (0,),
    )
    assert [ground.kind for ground in hang.grounds] == ["cycle"]


def test_thread_of_the_server_that_wakes_now_and_then_would_have_accepted() -> None:
    """One that looks whether its parent lives."""
    assert is_not_accepted(FROM_RANK, 40, helper=sleeping(1.6)).hang().cause == "server_keeps_connection"


@pytest.mark.parametrize("helper", [sleeping(60.0), Wait("file_io", "read", 5, "/data/a")])
def test_thread_of_the_server_that_may_accept_next_is_given_its_time(helper: Wait) -> None:
    assert is_not_accepted(FROM_RANK, 60, helper=helper).findings() == []
    assert is_not_accepted(FROM_RANK, 130, helper=helper).hang().cause == "connection_not_accepted"


@pytest.mark.parametrize(
    "server",
    [
        Wait("running"),
        sleeping(3.0),
        replace(FROM_RANK, timed=True, seconds=60.0),
        replace(FROM_RANK, unread_bytes=300),
        replace(FROM_RANK, others=(Party(7, 0, "curl"),)),
    ],
    ids=["computes", "sleeps", "has a timeout", "has not read", "reads from another"],
)
def test_server_that_may_accept_next_is_given_its_time(server: Wait) -> None:
    assert is_not_accepted(server, 60).findings() == []
    held = is_not_accepted(server, 130).hang()
    assert (held.id, held.cause, held.grounds) == ("held-up", "connection_not_accepted", ())


# -- loops that move ------------------------------------------------------------------------------------------------


def goes_round(seconds: int, cpu: float = 0.0, read_for: int = 1000) -> Story:
    """`read_for`: seconds after which their processes are not read any more, only their stacks."""
    story = steady()
    for second in range(0, seconds, 2):
        for rank in range(2):
            lines = (*TRAIN, f"look /app/shards.py:{4 + (second // 2 + rank) % 3}")
            if second < read_for:
                story.tell(tree(rank, story.now, cpu=5.0 + cpu * second))
            story.tell(stack(rank, story.now, lines))
        story.wait(2.0)
    return story


def test_ranks_whose_stacks_alternate_for_ever_at_rest_are_told() -> None:
    found = goes_round(140).hang()

    assert (found.id, found.severity.value, found.cause, found.ranks) == (
        "held-up",
        "warning",
        "goes_round",
        (0, 1),
    )
    assert not goes_round(110).findings()


def test_ranks_whose_stacks_move_and_who_work_are_left_alone() -> None:
    assert not goes_round(300, cpu=0.1).findings()


def test_ranks_whose_work_was_not_read_of_late_are_left_alone() -> None:
    assert not goes_round(140, read_for=100).findings()


# -- processes below, and beside ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("forked", "cause"), [(True, "forked_without_threads"), (False, "preprocess_blocked")]
)
def test_forked_worker_of_data_preparation_without_its_threads_is_named(forked: bool, cause: str) -> None:
    lines = (*TRAIN, "map datasets/arrow_dataset.py:574")
    alone = Wait("condition", "futex", dead_end="alone" if forked else "", forked=forked)
    worker = ProcessWaits(700, pid_of(0), "python train.py", (main_of(700, alone),))
    story = started()
    for _ in range(25):
        child = process(700, ppid=pid_of(0))
        story.tell(tree(0, story.now, child), stack(0, story.now, lines))
        story.tell(stack(0, story.now, ("worker /app/features.py:17",), pid=700))
        story.tell(reads(0, Wait("unix_receive", "read", 19, others=(Party(701),)), worker))
        story.tell(tree(1, story.now), stack(1, story.now, ALL_REDUCE))
        story.wait(2.0)

    assert (story.hang().ranks, story.hang().cause) == ((0,), cause)
    assert ("for its child process 700" in story.hang().summary) is forked


@pytest.mark.parametrize(
    ("switches", "cause"), [(33.0, "dataloader_worker_slow"), (0.0, "dataloader_worker_blocked")]
)
def test_data_worker_that_goes_on_is_not_called_blocked(switches: float, cause: str) -> None:
    main = ThreadWait(
        700, "MainThread", "S", "", sleeping(0.02), 0.01, switches_per_second=switches, same=True
    )
    story = steady()
    for _ in range(25):
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
        story.tell(
            tree(1, story.now, process(700, ppid=pid_of(1), comm="pt_data_worker")), stack(1, story.now, DATA)
        )
        story.tell(stack(1, story.now, WORKER, pid=700))
        below = ProcessWaits(700, pid_of(1), "python train.py", (main,))
        story.tell(reads(1, Wait("poll", "poll", others=(Party(700),)), below))
        story.wait(2.0)

    assert (story.hang().ranks, story.hang().cause) == ((1,), cause)
    assert ("awake 33 times a second in read_record" in story.hang().summary) is bool(switches)


def test_line_of_the_program_is_named_where_packages_lie_in_a_folder_of_their_own() -> None:
    """`pip install --target /srv/site`, found by PYTHONPATH."""
    lines = (
        "<module> /srv/job/train.py:60", "put /srv/job/bucket.py:31", "put /srv/site/requests/sessions.py:700",
        "urlopen /srv/site/urllib3/connectionpool.py:974",
    )  # fmt: skip
    vendored = tuple(line.replace("/srv/site", "/srv/job") for line in lines)

    def own(*of: str) -> str:
        main = stack(0, 0.0, of).main
        reading = read_stack(main) if main is not None else None
        return reading.own.file if reading is not None and reading.own is not None else ""

    assert own(*lines) == "/srv/job/bucket.py"
    assert own(*vendored) == ""


def test_rank_that_has_just_gone_on_is_not_blamed_for_where_it_is_now() -> None:
    """Its new stack is there, that of the rank that waited is not yet."""
    story = play(steady(), 60, {}, {0: ALL_REDUCE, 1: SLEEP})
    before = story.hang().summary
    for _ in range(3):
        story.tell(tree(1, story.now, cpu=60.0), stack(1, story.now, (*TRAIN, "step /app/train.py:48")))
        story.wait(1.0)

    assert all("train.py:48" not in one.summary for one in story.findings()), before


def test_rank_that_prints_each_try_is_told_while_others_wait_for_it() -> None:
    """Its stack stands at a sleep, and each line has another number. It may be at work for two minutes."""
    story, number = steady(), 0
    while story.now < 1300.0 and not story.findings():
        number += 1
        story.tell(LogLine(1, "both", f"request 4f{number} was refused"))
        story.still(5.0, {0: ALL_REDUCE, 1: SLEEP}, step=1.0)

    assert story.hang().ranks == (1,)
    assert 120.0 <= story.now - 1005.0 < 140.0
