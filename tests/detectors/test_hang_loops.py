"""Why a loop that goes round does not end, by its text and the values read; where they do not say so, nothing is claimed."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from diag.model.observations.waits import ProcessWaits, ThreadWait, Wait, WaitsRead
from tests.detectors.looped import TEXT, at, busy, write
from tests.detectors.test_hang import steady
from tests.detectors.test_hang_program import REDUCE, read
from tests.facts import pid_of, process, stack, tree
from tests.programs import line_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path)


# -- loops that go round


def test_loop_is_named_with_what_should_end_it(path: Path) -> None:
    found = busy(path, at(path, "generate", "sampled"))

    assert found.cause == "loops"
    assert "it goes round in the loop `while not bool(finished.all()):`" in found.summary
    assert "whose condition changes by `finished |= tok == EOS`" in found.summary
    assert "is under" not in found.summary and "limit" in found.advice


def test_loop_without_a_condition_is_named_with_what_sends_it_round(path: Path) -> None:
    found = busy(path, at(path, "draw", "drawn"))

    assert found.cause == "loops"
    assert "`if len(doc) < length:` (" in found.summary and "sends it round again" in found.summary


ROUND = {"docs": "<list of 64 list>", "room": "67", "doc": "[1, 2, 3, ... 314 items]"}


def test_values_that_a_loops_condition_reads_are_shown_and_that_none_has_changed(path: Path) -> None:
    readings = [
        ROUND,
        {**ROUND, "doc": "[4, 5, 6, ... 372 items]"},
        ROUND,
        {"docs": ROUND["docs"], "room": "67"},
    ]
    found = busy(path, at(path, "pack", "packed"), readings=readings)

    assert found.cause == "loops"
    assert "(`if len(doc) > room:` (" in found.summary and "sends it round again" in found.summary
    assert "`docs` was <list of 64 list> and `room` was 67 when read" in found.summary
    assert "nothing that its condition reads has changed in 4 readings over 15 s" in found.summary


FULL = {"used": "200", "budget": "1024", "n": "1300"}
LOADER = ("__next__ torch/utils/data/dataloader.py:741", "_next_index torch/utils/data/dataloader.py:715")


def test_loop_whose_condition_only_an_unmet_condition_would_change_says_so_with_the_values(
    path: Path,
) -> None:
    """A sampler in the rank itself that has only documents left which do not fit; no worker has a part in it."""
    found = busy(path, *LOADER, at(path, "fill", "filled"), readings=[FULL] * 4)

    assert (found.cause, found.klass, found.ranks) == ("loop_changes_nothing", "data_loading", (1,))
    assert f"been busy in fill ({path}:{line_of(TEXT, 'filled')})" in found.summary
    assert "`used` was 200 and `budget` was 1024 when read" in found.summary
    assert (
        "`used += n` is only under `if used + n <= budget:`, which was not met when read (200 + 1300 <= 1024)"
        in found.summary
    )
    assert "longer than the budget" in found.advice and "worker" not in found.advice


def test_rank_that_is_found_at_the_head_of_its_loop_is_in_it(path: Path) -> None:
    head = f"fill {path}:{line_of(TEXT, 'filled') - 1}"
    found = busy(path, *LOADER, head, readings=[FULL] * 4)

    assert found.cause == "loop_changes_nothing" and "200 + 1300 <= 1024" in found.summary


def test_loop_that_is_sent_round_before_what_would_change_it_says_so(path: Path) -> None:
    found = busy(path, at(path, "pack", "packed"), readings=[{**ROUND, "doc": "[1, 2, ... 314 items]"}] * 3)

    assert found.cause == "loop_changes_nothing"
    assert "where `if len(doc) > room:` sends it round, as it did when read (314 > 67)" in found.summary


@pytest.mark.parametrize(
    "readings",
    [
        [FULL, {**FULL, "used": "240"}, {**FULL, "used": "280"}, {**FULL, "used": "320"}],  # it fills up
        [{**FULL, "n": "90"}] * 4,  # which fits: the condition is met
        [FULL] * 2,  # too few
        [{"used": "200", "budget": "1024"}] * 4,  # what decides was not read
    ],
)
def test_loop_that_gets_on_or_of_which_too_little_was_read_is_only_a_loop(
    path: Path, readings: list[dict[str, str]]
) -> None:
    found = busy(path, *LOADER, at(path, "fill", "filled"), readings=readings)

    assert found.cause == "loops" and "is only under" not in found.summary


@pytest.mark.parametrize(
    "readings",
    [
        [ROUND, {**ROUND, "room": "66"}, {**ROUND, "room": "65"}, {**ROUND, "room": "64"}],  # it gets on
        [ROUND, {**ROUND, "room": "66"}, ROUND, ROUND],  # it was another one between
        [ROUND, ROUND],  # too few to tell
    ],
)
def test_of_values_that_change_or_were_hardly_read_it_is_not_said_that_they_stay(
    path: Path, readings: list[dict[str, str]]
) -> None:
    found = busy(path, at(path, "pack", "packed"), readings=readings)

    assert found.cause == "loops" and "has changed" not in found.summary


BOARD = {"board": "[0, 1, 0, ... 36 items]"}


def test_loop_that_a_clock_ends_is_said_with_its_end(path: Path) -> None:
    """Also where the rank is in a shorter loop inside of it."""
    inner = at(path, "play", "played"), at(path, "game", "moved")
    found = busy(path, *inner, readings=[BOARD], outer={"end": "400.0"}, clock=100.0)

    assert (found.id, found.cause, found.ranks) == ("held-up", "loop_until_time", (1,))
    assert (
        "the loop `while time.monotonic() < end:` (" in found.summary and "goes by a clock" in found.summary
    )
    assert (
        "it goes on until" in found.summary and "(4 min 2" in found.summary
    )  # 300 s from the reading, of which 35 s are over
    assert "in the loop `while 0 in board:`" not in found.summary


def test_loop_that_something_else_may_end_sooner_has_a_latest_end(path: Path) -> None:
    found = busy(
        path, at(path, "beams", "grown"), readings=[{"hypotheses": "[1, 2]", "end": "400.0"}], clock=100.0
    )

    assert found.cause == "loop_until_time"
    assert "goes by a clock: it ends at the latest at" in found.summary


@pytest.mark.parametrize(("end", "reported"), [("140.0", False), ("400.0", True)])
def test_loop_that_soon_ends_by_its_clock_is_waited_for(path: Path, end: str, *, reported: bool) -> None:
    inner = at(path, "play", "played"), at(path, "game", "moved")
    with nullcontext() if reported else pytest.raises(StopIteration):
        busy(path, *inner, readings=[BOARD], outer={"end": end}, clock=100.0, first=3, seconds=38)


@pytest.mark.parametrize(("end", "clock"), [("400.0", 0.0), ("90.0", 100.0), ("'later'", 100.0)])
def test_loop_whose_clock_or_end_is_not_known_or_is_over_is_a_loop(
    path: Path, end: str, clock: float
) -> None:
    inner = at(path, "play", "played"), at(path, "game", "moved")
    found = busy(path, *inner, readings=[BOARD] * 2, outer={"end": end}, clock=clock)

    assert found.cause == "loops"


def test_loop_over_what_has_no_end_is_one(path: Path) -> None:
    found = busy(path, at(path, "pieces", "endless-for"))

    assert (found.cause, 'in the loop `for piece in iter(read, ""):`' in found.summary) == ("loops", True)


@pytest.mark.parametrize(("function", "mark"), [("samples", "handed-out"), ("bounded", "bounded")])
def test_loop_that_hands_out_or_is_bounded_is_no_endless_one(path: Path, function: str, mark: str) -> None:
    assert busy(path, at(path, function, mark)).cause == "busy"


def test_loop_in_which_the_waiting_rank_is_too_is_the_work_itself(path: Path) -> None:
    assert busy(path).cause == "busy"


def test_worker_that_goes_round_keeps_its_cause_and_gets_advice_on_the_loop(path: Path) -> None:
    data = [at(path, "<module>", "top"), "__next__ torch/utils/data/dataloader.py:741"]
    worker = ["_worker_loop torch/utils/data/_utils/worker.py:349", at(path, "draw", "drawn")]
    stacks = {0: [at(path, "<module>", "top"), REDUCE], 1: data}
    story = steady()
    thread = ThreadWait(4321, "python", "R", "", Wait("running"), cpu_ratio=1.0)
    for second in range(60):
        story.tell(*(stack(rank, story.now, stacked) for rank, stacked in stacks.items()))
        child = process(4321, comm="pt_data_worker", state="R", cpu=float(second), ppid=pid_of(1))
        story.tell(tree(0, story.now), tree(1, story.now, child), stack(1, story.now, worker, pid=4321))
        if second == 20:
            read(story, path, 1, [*data, worker[1]])
        if second % 10 == 0:
            story.tell(WaitsRead(1, pid_of(1), story.now, (ProcessWaits(4321, 1, "python", (thread,)),)))
        story.wait(1.0)

    found = story.the("held-up")
    assert (found.cause, found.klass) == ("dataloader_worker_busy", "data_loading")
    assert "it goes round in the loop `while True:`" in found.summary
    assert "what the loop shown takes so long for" in found.advice and "not end" not in found.advice


# -- loops that draw until something fits

DRAWS = """
def draw(self, limit):
    while True:
        edge = self.rng.choice(self.mine)
        if edge > limit:
            log(edge)  # draws
            continue
        return edge


def other(self, limit):
    while size > limit:
        size = self.sizes[random.randrange(3)]  # sizes
"""


@pytest.mark.parametrize(
    ("mark", "values", "said"),
    [
        (
            "draws",
            {"limit": "64", "self.mine": "[96, 128]"},
            "each of self.mine ([96, 128]) meets `if edge > limit:`",
        ),
        (
            "sizes",
            {"limit": "64", "self.sizes": "(96, 128)"},
            "each of self.sizes ((96, 128)) meets `while size > limit:`",
        ),
        ("draws", {"limit": "100", "self.mine": "[96, 128]"}, ""),
        ("draws", {"limit": "64", "self.mine": "[96, 128, ... 9 items]"}, ""),
        ("draws", {"limit": "64", "self.mine": "[]"}, ""),
    ],
)
def test_loop_that_draws_from_what_has_nothing_that_fits_says_so(
    tmp_path: Path, mark: str, values: dict[str, str], said: str
) -> None:
    path = tmp_path / "draws.py"
    path.write_text(DRAWS)
    function = "draw" if mark == "draws" else "other"
    found = busy(path, f"{function} {path}:{line_of(DRAWS, mark)}", readings=[values])

    assert (said in found.summary) if said else ("each of" not in found.summary)
    assert found.advice.startswith("What the loop draws from has nothing that fits") == bool(said)
