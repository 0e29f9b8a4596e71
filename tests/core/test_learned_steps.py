"""Steps of any job are learned from its own log; what only counts, or only passes, is no step."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.model.observations import Iteration, LogLine, LogsEnded, Observation, PlainLines
from diag.state.job import JobState
from tests.facts import ALL_REDUCE, SLEEP, TRAIN, found, stack

BACKWARD = (*TRAIN, "backward torch/_tensor.py:600", "_engine_run_backward torch/autograd/graph.py:800")
Form = Callable[[int], str]


class Job:
    """Two ranks, whose stacks are read each five seconds, and their output."""

    def __init__(self, *stacks: tuple[tuple[str, ...], ...]) -> None:
        self.state, self.at, self.looked = JobState(), 1000.0, 1000.0
        self._stacks = stacks
        self._looks = 0
        for rank in range(2 if stacks else 0):
            self.tell(found(rank))

    def tell(self, fact: Observation) -> None:
        self.state.observe(self.at, fact)

    def lines(self, *texts: str, bar: bool = False, rank: int | None = None) -> None:
        for text in texts:
            self.tell(LogLine(rank, "both", text, bar))

    def wait(self, seconds: float) -> None:
        until = self.at + seconds
        while self._stacks and self.looked + 5.0 <= until:
            self.at = self.looked = self.looked + 5.0
            for rank, lines in enumerate(self._stacks[self._looks % len(self._stacks)]):
                self.tell(stack(rank, self.at, lines))
            self._looks += 1
        self.at = until

    @property
    def steps(self) -> tuple[int | None, str, str]:
        return self.state.iteration, self.state.progress.step_words(), self.state.phase


TRAINING = ((ALL_REDUCE, BACKWARD), (BACKWARD, ALL_REDUCE))
PREPARING = ((SLEEP, ALL_REDUCE), ((*TRAIN, "tokenize /app/data.py:12"), ALL_REDUCE))


def told(
    job: Job,
    form: Form,
    count: int = 40,
    *,
    seconds: float = 1.7,
    jitter: float = 0.06,
    first: int = 1,
    bar: bool = False,
) -> Job:
    noise = random.Random(first)
    for number in range(first, first + count):
        job.wait(seconds * (1 + noise.uniform(-jitter, jitter)))
        job.lines(form(number), bar=bar)
    return job


def losses(seed: int = 7) -> Iterator[str]:
    noise = random.Random(seed)
    while True:
        yield f"{noise.uniform(0.3, 2.1):.4f}"


loss = losses()

# --- forms, none of which any code knows


@pytest.mark.parametrize(
    ("form", "words"),
    [
        (lambda n: f"[rank0] iter {n} loss {next(loss)}", "iter 40"),
        (lambda n: f"step={n} | loss={next(loss)} | lr=1.0e-04", "step 40"),
        (lambda n: f'{{"step": {n}, "loss": {next(loss)}, "ts": {1763856998 + n}.12}}', "step 40"),
        (lambda n: f"{n}/5000 loss {next(loss)}", "step 40"),
        (lambda n: f"2026-11-23 10:00:{n:02},123 - INFO - train - update {n}: loss {next(loss)}", "update 40"),
        (lambda n: f"[{n:>5}] {next(loss)} ({n * 512} samples)", "step 40"),
        (lambda n: f"global_step={n} grad_norm={next(loss)} tokens={n * 4096}", "global_step 40"),
        (lambda n: f"I1123 10:00:{n:02}.123456 20341 solver.py:88] Iteration {n}, loss = {next(loss)}", "iteration 40"),
        (lambda n: f"Epoch 1/3 ━━━╸━━━ {n}/500 0:00:{n:02} • 0:05:30 1.7it/s loss: {next(loss)}", "step 40"),
    ],
)  # fmt: skip
def test_line_of_any_form_whose_counter_grows_beside_a_loss_is_a_step(form: Form, words: str) -> None:
    # a log on disk has no stacks; a live job trains
    assert told(Job(), form).steps == (40, words, "steady")
    job = told(Job(*TRAINING), form)

    assert job.steps == (40, words, "steady")
    assert 1.6 < (job.state.progress.step_p95() or 0) < 1.9
    assert job.state.progress.log_moved_at == job.at


@pytest.mark.parametrize(
    "form",
    [
        lambda n: f"iter {n} done",
        lambda n: f"{n}/5000",
        lambda n: f"Train {n // 50}%|##7   | {n}/5000 [00:35<01:00, 1.05it/s]",
    ],
)
def test_counter_alone_is_a_step_once_the_ranks_were_seen_to_train(form: Form) -> None:
    assert told(Job(), form).steps[0] is None
    assert told(Job(*TRAINING), form).steps[::2] == (40, "steady")


def test_line_each_fifty_steps_counts_fifty_steps() -> None:
    job = told(Job(*TRAINING), lambda n: f"step {50 * n} loss {next(loss)}", seconds=30.0)

    assert job.steps == (2000, "step 2000", "steady")
    assert job.state.progress.step_p95() == pytest.approx(0.6, rel=0.1)


def test_ranks_in_turn_without_and_with_their_number_are_one_counter() -> None:
    for mark in ("[{rank}] ", "rank {rank}: ", "[rank{rank}] ", ""):
        job, noise = Job(*TRAINING), random.Random(3)
        for number in range(1, 41):
            job.wait(noise.uniform(1.5, 1.8))
            for rank in noise.sample(range(8), 8) if "rank" in mark.replace("{rank}", "") else range(8):
                job.wait(0.003)
                job.lines(f"{mark.format(rank=rank)}iter {number} loss {next(loss)}")

        assert job.steps == (40, "iter 40", "steady"), mark


def test_inner_counter_counts_on_when_the_outer_one_grows() -> None:
    job = told(
        Job(*TRAINING), lambda n: f"Epoch {n // 20} batch {20 * (n % 20) + 20}/400 loss {next(loss)}", 60
    )
    assert job.steps == (1220, "batch 20 of epoch 3", "steady")

    job = told(Job(*TRAINING), lambda n: f'{{"batch": {n % 10}, "loss": {next(loss)}, "epoch": {n // 10}}}')
    assert job.steps == (40, "batch 0 of epoch 4", "steady")


def test_bar_of_each_epoch_is_one_counter_and_the_evaluations_another() -> None:
    job = Job(*TRAINING)
    for _ in range(3):
        told(job, lambda n: f" {n}%|##7   | {n}/40 [00:35<01:00, 1.05it/s]", bar=True)
        told(job, lambda n: f" {n}%|##7   | {n}/10 [00:35<01:00, 1.05it/s]", 10, bar=True, seconds=0.5)
    assert job.state.progress.log_moved_at == job.at  # it moves too

    told(job, lambda n: f" {n}%|##7   | {n}/40 [00:35<01:00, 1.05it/s]", 5, bar=True)
    assert job.steps == (125, "step 125", "steady")


def test_lines_that_are_printed_once_a_second_count_though_their_clock_is_a_timers() -> None:
    job, noise, number = Job(*TRAINING), random.Random(3), 0
    for _ in range(40):
        job.wait(1.0005)
        number += noise.randint(4, 7)
        job.lines(f"iter {number} done")

    assert job.steps == (number, f"iter {number}", "steady")


def test_joining_late_and_a_second_training_are_followed() -> None:
    job = told(Job(*TRAINING), lambda n: f"step {n} loss {next(loss)}", first=51200)
    assert job.steps[0] == 51239

    told(job, lambda n: f"stage2 update {n} reward {next(loss)}", 60)
    assert job.steps == (60, "update 60", "steady")


def test_another_nodes_word_does_not_end_the_learning() -> None:
    job = Job(*TRAINING)
    for number in range(1, 41):
        job.wait(1.7)
        job.lines(f"iter {number} loss {next(loss)}")
        job.tell(Iteration(None, number, 0, ""))

    assert job.steps == (40, "iter 40", "steady")


def test_trainer_that_is_known_wins() -> None:
    job = Job(*TRAINING)
    for number in range(1, 41):
        job.wait(1.7)
        job.lines(f"seen {number * 8} samples, loss {next(loss)}")
        job.tell(Iteration(None, number, 100, "the trainer's own"))

    assert job.steps == (40, "iteration 40", "steady")


# --- what is none


@pytest.mark.parametrize(
    "form",
    [
        lambda n: f"still waiting (attempt {n})",
        lambda n: f"heartbeat {n}",
        lambda n: f"elapsed {n}",
        lambda n: f"[WARN] Retrying request {n} of 100: Connection refused",
        lambda n: f"worker started, pid {20341 + n * n % 977}",
        lambda n: f"listening on port {29500 + n % 7}",
        lambda n: f"allocated {1000 + n * 37 % 500} blocks",
        lambda n: f"gpu 0: {60 + n * 7 % 5} C, {97 - n % 3}%, {70000 + n} MiB",
        lambda n: f"eta {4000 - n}",
    ],
)
@pytest.mark.parametrize("stacks", [(), PREPARING, ((ALL_REDUCE, ALL_REDUCE),)])
def test_what_only_counts_is_no_step_and_no_progress(
    form: Form, stacks: tuple[tuple[tuple[str, ...], ...], ...]
) -> None:
    job = told(Job(*stacks), form)

    assert job.state.iteration is None and job.state.phase != "steady"
    assert job.state.progress.log_moved_at is None


@pytest.mark.parametrize(
    "form",
    [
        lambda n: f"launcher: the job is there, beat {n}",
        lambda n: f"monitor: reading {n}",
        lambda n: f"tick {n} util 97% mem 71.2 GiB",
        lambda n: f"uptime_s={10 * n} beat={n}",
        lambda n: f"still alive after {10 * n}",
    ],
)
def test_heartbeat_beside_a_training_is_no_step(form: Form) -> None:
    job = told(Job(*TRAINING), form, seconds=10.0, jitter=1e-4)

    assert job.state.iteration is None and job.state.progress.log_moved_at is None


def test_monitor_with_changing_values_counts_no_steps_once_no_stack_moves() -> None:
    job = Job((ALL_REDUCE, ALL_REDUCE))
    told(job, lambda n: f"tick {n} load {next(loss)}", 30, seconds=10.0, jitter=1e-5)

    assert job.state.iteration is None and job.state.progress.log_moved_at is None


def test_retries_that_wait_longer_each_time_are_no_steps() -> None:
    job = Job(*TRAINING)
    for number in range(1, 10):
        job.wait(1.07 * 2**number)
        job.lines(f"upload failed ({number}/100): Connection reset by peer")

    assert job.state.iteration is None


@pytest.mark.parametrize(
    ("form", "bar"),
    [
        (lambda n: f"Map: {n}%|##7   | {n * 10}/1000 [00:03<00:05, 105.2 examples/s]", True),
        (lambda n: f"Downloading shards: {n}%|##7   | {n}/163 [00:03<00:05, 1.2s/it]", True),
        (lambda n: f"packed {n * 1000} documents, mean length {next(loss)}", False),
    ],
)
def test_preparing_data_moves_the_log_and_is_no_training(form: Form, bar: bool) -> None:
    # rank 1 waits in a collective for all the time
    job = told(Job(*PREPARING), form, bar=bar)

    assert job.state.iteration is None and job.state.phase not in ("steady", "first_step")
    assert job.state.progress.log_moved_at == job.at


def test_bar_that_waits_by_a_timer_moves_nothing() -> None:
    job = told(
        Job(*PREPARING), lambda n: f"Waiting: {n}%|##7   | {n}/100 [00:03<00:05]", seconds=1.0, jitter=1e-4
    )

    assert job.state.progress.log_moved_at is None


def test_layers_that_are_listed_in_a_moment_are_no_steps() -> None:
    job = Job(*TRAINING)
    for _ in range(12):
        job.wait(7.3)
        for layer in range(32):
            job.wait(0.001)
            job.lines(f"layer {layer} norm {next(loss)}")

    assert job.state.iteration is None


# --- its rhythm


def test_line_is_overdue_by_its_own_history() -> None:
    job = told(Job(*TRAINING), lambda n: f"iter {n} loss {next(loss)}", seconds=3.0)
    progress = job.state.progress
    expected = progress.rhythm.p95()

    assert expected is not None and 3.0 < expected < 3.3
    assert progress.overdue(job.at + 3.0) == 0.0
    assert progress.overdue(job.at + 60.0) == pytest.approx(60.0 - expected)


def test_nothing_is_overdue_before_there_is_a_history() -> None:
    job = told(Job(), lambda n: f"iter {n} loss {next(loss)}", 2)

    assert job.state.progress.overdue(job.at + 600.0) is None


# --- what it costs


def test_of_very_many_lines_fifty_a_second_are_read() -> None:
    job, number = Job(), 0
    for _ in range(20):
        job.wait(1.0)
        for _ in range(2000):
            number += 1
            job.lines(f"step {number} loss {next(loss)}")

    assert job.state.iteration is not None and 0 <= number - job.state.iteration < 2000


def test_log_on_disk_is_read_to_its_last_step() -> None:
    state = JobState()
    for number in range(1, 2001):
        state.observe(
            1000.0, LogLine(None, "train.log", f"[rank0] step {number} loss {next(loss)}", False, number)
        )
    state.observe(1000.0, LogsEnded(None, ("train.log",), "", None, None, 0.0, False))
    assert state.iteration == 2000

    run = tuple(f"step {number} loss {next(loss)}" for number in range(1, 200))
    state = JobState()
    state.observe(1000.0, PlainLines(None, "train.log", len(run), run, "\n".join(run), 1))
    assert state.iteration == 199


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(0, 5),
            st.sampled_from(["step {} loss {}", "{}/{}", "a {} b {} c {}", "{}", "x"]),
            st.lists(st.integers(-5, 10**12), min_size=3, max_size=3),
            st.booleans(),
        ),
        max_size=80,
    )
)
def test_any_numbers_in_any_order_are_taken(
    lines: list[tuple[float, str, list[int], bool]],
) -> None:
    job = Job(*TRAINING)
    for seconds, form, numbers, bar in lines:
        job.wait(seconds)
        job.lines(form.format(*numbers), bar=bar)

    assert job.state.iteration is None or job.state.iteration >= 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 10**6), min_size=5, max_size=200), st.integers(0, 1000))
def test_numbers_without_an_order_are_no_counter_for_long(numbers: list[int], seed: int) -> None:
    noise = random.Random(seed)
    shuffled = [noise.choice(numbers) for _ in range(200)]
    job = told(Job(), lambda n: f"value {shuffled[n - 1]} done", 200)

    assert job.state.iteration is None
