"""What NCCL RAS says of a standstill: real answers of NCCL 2.28.9, told twice, mapped to the job's ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import pytest

from diag.detectors.hang.ras import Ras, RasExplanation, not_made, ranks_of
from diag.model import Placement, Record
from diag.model.observations import (
    Frame,
    Iteration,
    RankExited,
    RankFound,
    RasCommunicator,
    RasRank,
    RasReading,
    StackSample,
    ThreadStack,
)
from diag.sources.collectives import nccl_ras
from diag.state.job import JobState
from tests.facts import ALL_REDUCE, SLEEP, TRAIN, frames
from tests.rasserver import CAPTURES, captured
from tests.sources.ras_readings import LARGE

PIDS = {
    "data_hang": (751, 752),
    "skip_collective": (1005, 1006),
    "mismatch_op": (1099, 1100),
    "rank_killed": (1338, 1339),
    "megatron_data_hang": (2237, 2238),
    "mega4_data_hang": (1228, 1229, 1230, 1231),
    "megatron_healthy": (912, 913),
}
AT = 1000.0


def job_of(*pids: int, host: str = "gpu-node-0") -> JobState:
    job = JobState()
    for rank, pid in enumerate(pids):
        place = Placement(rank, rank, len(pids), host, pid, 77, 0, len(pids), "torchrun")
        job.observe(10.0, RankFound(rank, place, "python train.py"))
    return job


def read(text: str, *, addresses: tuple[str, ...] = (), host: str = "gpu-node-0") -> RasReading:
    payload = {"text": text, "addresses": list(addresses)}
    *_, found = nccl_ras.parse(Record(nccl_ras.SOURCE, payload, host=host, at=AT))
    assert isinstance(found, RasReading), found
    return found


def told(job: JobState, *readings: RasReading, apart: float = 5.0) -> RasExplanation | None:
    ras = Ras()
    at = AT
    for number, reading in enumerate(readings):
        at = AT + number * apart
        ras.observe(at, reading)
    return ras.explain(at + 1.0, job)


def standstill(scenario: str, name: str) -> RasExplanation:
    """The same answer twice, 5 s apart: what a job that stands gives (the captures of a hang are of one
    moment)."""
    reading = read((CAPTURES / scenario / name).read_text())
    found = told(job_of(*PIDS[scenario]), reading, reading)
    assert found is not None
    return found


def accused(found: RasExplanation) -> dict[str, tuple[object, ...]]:
    names = ("dead", "lagging", "calls_differ", "crossed", "elsewhere")
    return {name: getattr(found, name) for name in names if getattr(found, name)}


# --- real answers


@pytest.mark.parametrize("name", ["ras_json.txt", "ras_verbose.txt"])
@pytest.mark.parametrize("scenario", ["data_hang", "skip_collective"])
def test_rank_that_launched_fewer_collectives_lags_and_its_peer_waits(scenario: str, name: str) -> None:
    found = standstill(scenario, name)

    assert accused(found) == {"lagging": (1,)}
    assert not found.moving
    assert "AllReduce" in found.words[0] and str(PIDS[scenario][1]) in found.words[0]


@pytest.mark.parametrize("name", ["hang_ras.json", "hang_ras.txt"])
def test_rank_of_a_communicator_is_not_taken_for_the_jobs_rank(name: str) -> None:
    found = standstill("mega4_data_hang", name)  # "Rank 0 has launched ... process 1230"

    assert accused(found) == {"lagging": (2,)}


@pytest.mark.parametrize("name", ["ras_json.txt", "ras_verbose.txt"])
def test_other_calls_are_told_from_fewer_calls(name: str) -> None:
    found = standstill("mismatch_op", name)

    assert accused(found) == {"calls_differ": (0, 1)}  # one of two is wrong: which, the counts do not tell
    assert any("Broadcast" in words for words in found.words)


@pytest.mark.parametrize("name", ["ras_json.txt", "ras_verbose.txt"])
def test_killed_rank_that_does_not_answer_is_named_as_ras_has_it(name: str) -> None:
    found = standstill("rank_killed", name)

    assert accused(found) == {}
    assert "1339" in " ".join(found.words)


def test_killed_rank_is_found_though_the_job_knows_that_it_ended() -> None:
    job = job_of(*PIDS["rank_killed"])
    job.observe(500.0, RankExited(1, 1339, None, 9, "pidfd"))
    reading = read(captured("rank_killed/ras_json.txt"))

    found = told(job, reading, reading)

    assert found is not None and "1339" in " ".join(found.words)


def test_hang_that_ras_calls_ok_accuses_nobody() -> None:
    # rank 1 waits for data, before a communicator RAS knows of
    found = standstill("megatron_data_hang", "hang_ras.json")

    assert accused(found) == {} and found.words == () and not found.moving


def test_text_that_names_no_process_says_nothing() -> None:
    reading = read(captured("megatron_data_hang/hang_ras.txt"))
    assert told(job_of(*PIDS["megatron_data_hang"]), reading, reading) is None


# --- what must not accuse


def test_difference_in_one_reading_accuses_nobody() -> None:
    for name in (
        "megatron_healthy/steps_ras.json",
        "megatron_healthy/steps_ras.txt",
        "data_hang/ras_json.txt",
    ):
        job = job_of(*PIDS[name.split("/")[0]])
        reading = read(captured(name))
        found = told(job, reading)
        assert found is not None and accused(found) == {} and not found.moving
        again = told(job, reading, reading, apart=2.0)  # two at nearly one moment are one
        assert again is not None and accused(again) == {} and not again.moving


@pytest.mark.parametrize("name", ["megatron_healthy/steps_ras.json", "megatron_healthy/steps_ras.txt"])
def test_straggler_whose_counts_move_is_left_alone_though_it_is_behind_in_both_readings(name: str) -> None:
    text = captured(name)
    later = text.replace("330", "352").replace("329", "351")
    assert later != text

    found = told(job_of(*PIDS["megatron_healthy"]), read(text), read(later))

    assert found is not None and accused(found) == {}
    assert found.moving


def test_healthy_job_at_rest_accuses_nobody() -> None:
    text = captured("megatron_healthy/steps_ras.json").replace('"AllGather": 329', '"AllGather": 330')
    found = told(job_of(*PIDS["megatron_healthy"]), read(text), read(text))
    assert found is not None and accused(found) == {} and not found.moving


def test_readings_of_two_suspicions_are_not_compared() -> None:
    reading = read(captured("skip_collective/ras_json.txt"))
    moved = read(captured("skip_collective/ras_json.txt").replace('"AllReduce": 2', '"AllReduce": 12'))
    found = told(job_of(*PIDS["skip_collective"]), moved, reading, apart=300.0)
    assert found is not None and not found.moving and accused(found) == {}


def test_restarted_rank_has_no_part_in_what_was_told_of_the_old_process() -> None:
    reading = read(captured("skip_collective/ras_json.txt"))
    job = job_of(*PIDS["skip_collective"])
    ras = Ras()
    for at in (AT, AT + 5.0):
        ras.observe(at, reading)
    before = ras.explain(AT + 6.0, job)
    assert before is not None and before.lagging == (1,)

    for rank in (0, 1):
        job.observe(
            AT - 1.0,
            RankFound(rank, Placement(rank, rank, 2, "gpu-node-0", 3000 + rank, 78, 0, 2, "torchrun"), ""),
        )
    assert ras.explain(AT + 7.0, job) is None


def test_communicator_made_between_two_readings_is_movement() -> None:
    reading = read(captured("mega4_data_hang/hang_ras.json"))
    before = dataclasses.replace(reading, communicators=reading.communicators[1:])
    found = told(job_of(*PIDS["mega4_data_hang"]), before, reading)
    assert found is not None and accused(found) == {} and found.moving


def test_reading_is_forgotten_once_the_job_moved_on() -> None:
    reading = read(captured("skip_collective/ras_json.txt"))
    job = job_of(*PIDS["skip_collective"])
    ras = Ras()
    for at in (AT, AT + 5.0):
        ras.observe(at, reading)
    assert ras.explain(AT + 5000.0, job) is not None  # the hang lasts, and is not asked about again

    logged = job_of(*PIDS["skip_collective"])
    logged.observe(AT + 20.0, Iteration(None, 6, 10, "iteration 6"))
    assert ras.explain(AT + 21.0, logged) is None

    for at, lines in ((AT + 8.0, ALL_REDUCE), (AT + 20.0, SLEEP)):
        sample = StackSample(0, 1005, (_main(lines),), "pyspy", at)
        job.observe(at, sample)
    assert ras.explain(AT + 21.0, job) is None


def _main(lines: tuple[str, ...]) -> ThreadStack:
    return ThreadStack(1005, "MainThread", frames(*lines), False, False)


def test_nothing_told_is_nothing_said() -> None:
    assert Ras().explain(AT, job_of(1, 2)) is None


def test_torn_answers_accuse_nobody() -> None:
    text = captured("mega4_data_hang/hang_ras.json")
    reading = read(text[: text.index('"hash": "0x5e32fbed976b033b"')])  # before the communicators that differ
    found = told(job_of(*PIDS["mega4_data_hang"]), reading, reading)
    assert found is not None and accused(found) == {}


# --- whose processes


def test_another_jobs_answer_is_not_ours() -> None:
    reading = read(captured("mega4_data_hang/hang_ras.json"))
    assert told(job_of(551, 552, 553, 554), reading, reading) is None
    assert told(job_of(551, 552, 553, 1230), reading, reading) is None  # one pid by chance


def two_hosts(pids: tuple[int, int]) -> RasReading:
    """Two nodes of two ranks each; the first rank of the second node is behind."""
    ranks = tuple(
        RasRank(
            number,
            f"192.0.2.{2 + number // 2}",
            (pids[number % 2] if number < 2 else 1230 + number % 2),
            init_state=0,
            async_error=0,
            counts=(("AllReduce", 7 if number != 2 else 6),),
        )
        for number in range(4)
    )
    communicator = RasCommunicator("ab", 4, ranks, (), "RUNNING", ("MISMATCH",))
    return RasReading(None, "2.28.9", (communicator,), 0, AT, host="node-b")


def test_culprit_on_another_node_is_told_by_its_process() -> None:
    found = told(job_of(500, 501, host="node-a"), two_hosts((500, 501)), two_hosts((500, 501)))

    assert found is not None
    assert (found.lagging, found.elsewhere) == ((), ("process 1230 on node 192.0.2.3",))


def test_same_pids_on_two_hosts_map_to_nothing_unless_the_address_tells() -> None:
    reading = two_hosts((1230, 1231))
    job = job_of(1230, 1231, host="node-b")
    assert ranks_of(reading, job) == {}
    assert told(job, reading, reading) is None

    known = dataclasses.replace(reading, addresses=("127.0.0.1", "192.0.2.3"))
    assert ranks_of(known, job) == {("192.0.2.3", 1230): 0, ("192.0.2.3", 1231): 1}
    found = told(job, known, known)
    assert found is not None and found.lagging == (0,) and found.elsewhere == ()


def test_host_that_is_known_by_its_address_is_the_only_one_that_counts() -> None:
    job = job_of(1230, 1231, host="192.0.2.3")
    assert set(ranks_of(two_hosts((1230, 1231)), job)) == {("192.0.2.3", 1230), ("192.0.2.3", 1231)}


# --- states and crowds


def communicator(name: str, counts: dict[int, int], op: str = "AllReduce") -> RasCommunicator:
    ranks = tuple(
        RasRank(number, "192.0.2.2", 2000 + rank, init_state=0, async_error=0, counts=((op, count),))
        for number, (rank, count) in enumerate(counts.items())
    )
    return RasCommunicator(
        name, len(ranks), ranks, (), "RUNNING", () if len(set(counts.values())) == 1 else ("MISMATCH",)
    )


def of(*communicators: RasCommunicator) -> RasReading:
    return RasReading(None, "2.28.9", communicators, 0, AT, host="gpu-node-0")


def test_rank_that_lags_only_because_it_waits_elsewhere_is_no_culprit() -> None:
    world = communicator("world", {0: 3, 1: 3, 2: 3, 3: 3})
    reading = of(communicator("tp", {0: 10, 1: 9}), communicator("dp", {1: 5, 2: 4}), world)
    found = told(job_of(2000, 2001, 2002, 2003), reading, reading)
    assert found is not None and accused(found) == {"lagging": (2,)}


def test_ranks_that_are_behind_each_other_are_crossed() -> None:
    reading = of(communicator("a", {0: 10, 1: 9}), communicator("b", {0: 4, 1: 5}))
    found = told(job_of(2000, 2001), reading, reading)
    assert found is not None and accused(found) == {"crossed": (0, 1)}


def test_the_fewest_calls_are_behind_those_between_wait_too() -> None:
    reading = of(communicator("a", {0: 29, 1: 25, 2: 29, 3: 27}))
    found = told(job_of(2000, 2001, 2002, 2003), reading, reading)
    assert found is not None and accused(found) == {"lagging": (1,)}


def test_minority_that_called_something_else_is_named() -> None:
    rows = {0: (9, 0), 1: (9, 0), 2: (8, 1), 3: (9, 0)}
    ranks = tuple(
        RasRank(
            rank, "192.0.2.2", 2000 + rank, init_state=0, counts=(("AllReduce", reduce), ("Broadcast", cast))
        )
        for rank, (reduce, cast) in rows.items()
    )
    reading = of(RasCommunicator("a", 4, ranks, (), "RUNNING", ("MISMATCH",)))
    found = told(job_of(2000, 2001, 2002, 2003), reading, reading)
    assert found is not None and accused(found) == {"calls_differ": (2,)}


def test_communicator_that_is_being_made_is_no_error() -> None:
    text = captured("skip_collective/ras_json.txt").replace('"init_state": 0', '"init_state": 7', 1)
    found = told(job_of(*PIDS["skip_collective"]), read(text))
    assert found is not None and accused(found) == {} and "init_state" not in " ".join(found.words)


def test_error_of_a_communicator_is_said_at_once() -> None:
    text = captured("skip_collective/ras_json.txt").replace('"async_error": 0', '"async_error": 6', 1)
    found = told(job_of(*PIDS["skip_collective"]), read(text))
    assert found is not None and "async_error 6" in found.words[0]


def test_dead_rank_is_said_at_once_and_a_silent_one_only_when_it_stays_silent() -> None:
    job = job_of(*PIDS["rank_killed"])
    silent = read(captured("rank_killed/ras_json.txt"))
    dead = read(
        captured("rank_killed/ras_json.txt").replace('"considered_dead": false', '"considered_dead": true')
    )
    once, then_dead = told(job, silent), told(job, silent, dead)
    assert once is not None and accused(once) == {}
    assert then_dead is not None and accused(then_dead) == {"dead": (1,)}


def test_crowd_of_the_text_report_counts_as_those_who_are_ahead() -> None:
    job = job_of(*range(101, 109), *range(112, 120))
    reading = read(LARGE.replace("fd00::1", "fd00::2"))

    found = told(job, reading, reading)

    assert found is not None
    assert accused(found) == {"dead": (15,), "lagging": (7,)}


# --- communicators that are not made yet

FIRST_CALL = frames(*TRAIN, "reduce_scatter_tensor torch/distributed/distributed_c10d.py:4652")


def waiting_in(
    call: Sequence[Frame], *, name: str = "megatron_data_hang/hang_ras.json", step: int | None = None
) -> str:
    """What is said of rank 0, which stands there, by the answer of a hang in the first step (two H200)."""
    pids = PIDS[name.partition("/")[0]]
    job = job_of(*pids)
    if step is not None:
        job.observe(20.0, Iteration(None, step, 30, f"iteration {step}/30"))
    main = ThreadStack(pids[0], "MainThread", tuple(call))
    job.observe(30.0, StackSample(0, pids[0], (main,), "pyspy", 30.0))
    says = told(job, read(captured(name)))
    assert says is not None
    return not_made(says, (0,), job)


def test_first_call_of_a_group_is_said_to_have_no_communicator_yet() -> None:
    assert "the call of rank 0 in reduce_scatter_tensor" in waiting_in(FIRST_CALL)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("steps were made: the groups that steps use have theirs", lambda: waiting_in(FIRST_CALL, step=1)),
        ("it stands in no call of torch.distributed", lambda: waiting_in(frames(*SLEEP))),
        (
            "there are others too: which of them is the group's is not told",
            lambda: waiting_in(FIRST_CALL, name="mega4_data_hang/hang_ras.json"),
        ),
        (
            "one member has launched more: its call is counted",
            lambda: waiting_in(FIRST_CALL, name="data_hang/ras_json.txt"),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_nothing_is_said_of_communicators_where(what: str, said: Callable[[], str]) -> None:
    assert said() == "", what


@pytest.mark.parametrize("first", ["hang_ras.json", "hang_ras.txt"])
def test_text_beside_the_json_of_one_moment_takes_nothing_from_it(first: str) -> None:
    """People take both; the text of a healthy answer names no process."""
    second = "hang_ras.txt" if first == "hang_ras.json" else "hang_ras.json"
    readings = [read(captured(f"megatron_data_hang/{name}")) for name in (first, second)]

    found = told(job_of(*PIDS["megatron_data_hang"]), *readings, apart=0.01)

    assert found is not None and found.sole_size == 2
