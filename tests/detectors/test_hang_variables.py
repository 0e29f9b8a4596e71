"""What variables add: the values that the line shown reads, and the one in which ranks differ; nothing where they tell
nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from diag.detectors.hang.variables import _conditions
from diag.model import Finding
from diag.model.observations import Block, FrameVariables, Leave, ProgramPlace, Variable, VariablesRead
from diag.model.observations.waits import ProcessWaits, ThreadWait, Wait, WaitsRead
from tests.detectors.test_hang import steady
from tests.detectors.test_hang_program import read, recorded
from tests.facts import Story, frames, pid_of
from tests.programs import line_of

REDUCE = "all_reduce torch/distributed/distributed_c10d.py:3173"
TEXT = """
def save(cfg, marker):
    while not marker.exists():
        pause()  # save


def pause():
    time.sleep(1)  # pause


def rollout(tokens):
    while not finished(tokens):
        tokens.append(step(tokens))  # rollout


def exchange(value, peer):
    send(value, peer)  # exchange


def train(cfg, loader, limit):
    for step in loader:
        if step % limit == 0:
            all_reduce(step)  # first
        save(cfg, cfg.run_dir)  # saves
        rollout([])  # rolls
        exchange(step, step)  # exchanges
        if cfg.kind == limit:
            save(cfg, cfg.run_dir)  # chosen
        all_reduce(step)  # last


train(0, 0, 0)  # top
"""
OTHER = {
    "cfg.run_dir": "PosixPath('runs/13-07')",
    "cfg.rank": "0",
    "step": "26",
    "loss": "1.5",
    "model": "<Model a=1>",
}
OURS = {
    "cfg.run_dir": "PosixPath('runs/13-08')",
    "cfg.rank": "1",
    "step": "25",
    "loss": "2.5",
    "model": "<Model a=2>",
}
MARKER = {"marker": "PosixPath('runs/13-08/ready')", "cfg.run_dir": "PosixPath('runs/13-08')"}

Stacks = dict[int, Sequence[str]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TEXT)
    return tmp_path / "train.py"


def lines(path: Path, *marks: str, then: str = "") -> list[str]:
    found = [f"<module> {path}:{line_of(TEXT, 'top')}", f"train {path}:{line_of(TEXT, marks[0])}"]
    found += [f"{mark} {path}:{line_of(TEXT, mark)}" for mark in marks[1:]]
    return [*found, *([then] if then else [])]


def held(story: Story, rank: int, stacked: Sequence[str], values: dict[str, dict[str, str]]) -> None:
    """Of each function of the stack, what was read."""
    found = tuple(
        FrameVariables(
            pid_of(rank), frame.function, frame.file, frame.line, not frame.file.startswith("/"),
            tuple(Variable(name, text) for name, text in values.get(frame.function, {}).items()),
        )
        for frame in frames(*stacked)
    )  # fmt: skip
    story.tell(VariablesRead(rank, pid_of(rank), found))


def told(
    path: Path,
    stacks: Stacks,
    values: dict[int, dict[str, dict[str, str]]],
    wait: str = "sleep",
) -> Finding:
    story = steady(world=len(stacks))
    story.still(30.0, stacks)
    for rank, stacked in stacks.items():
        read(story, path, rank, stacked)
        held(story, rank, stacked, values.get(rank, {}))
    if wait:
        thread = ThreadWait(pid_of(1), "MainThread", "S", "hrtimer_nanosleep", Wait(wait), same=True)
        story.tell(WaitsRead(1, pid_of(1), story.now, (ProcessWaits(pid_of(1), 1, "python", (thread,)),)))
    story.still(30.0, stacks)
    return story.the("held-up")


def shown(found: Finding) -> list[str]:
    return [f"{one.rank} {one.excerpt}" for one in found.evidence if one.kind == "variables"]


def test_path_that_a_rank_polls_for_and_the_value_that_makes_it_another_one_are_named(path: Path) -> None:
    stacks: Stacks = {0: lines(path, "last", then=REDUCE), 1: lines(path, "saves", "save", "pause")}
    found = told(path, stacks, {0: {"train": OTHER}, 1: {"train": OURS, "save": MARKER}})

    assert found.cause == "polls_for_a_name_of_its_own"
    assert "`marker` was 'runs/13-08/ready' when read" in found.summary
    assert "`cfg.run_dir` was 'runs/13-08' on rank 1 and 'runs/13-07' on rank 0 when read" in found.summary
    assert "made of `cfg.run_dir`" in found.advice
    assert any(
        one.startswith("1 save (") and "marker=PosixPath('runs/13-08/ready')" in one for one in shown(found)
    )
    assert any(
        one.startswith("0 train (") and "cfg.run_dir=PosixPath('runs/13-07')" in one for one in shown(found)
    )


def test_path_that_is_the_same_on_all_ranks_is_shown_and_blamed_on_nobody(path: Path) -> None:
    stacks: Stacks = {0: lines(path, "last", then=REDUCE), 1: lines(path, "saves", "save", "pause")}
    alike = {**OURS, "cfg.run_dir": "PosixPath('runs/13-08')"}
    found = told(
        path, stacks, {0: {"train": {**alike, "cfg.rank": "0"}}, 1: {"train": alike, "save": MARKER}}
    )

    assert found.cause == "polls_for_file"
    assert "`marker` was 'runs/13-08/ready' when read" in found.summary
    assert " on rank 0 when read" not in found.summary


def test_value_that_leads_a_rank_to_where_it_polls_is_no_name_that_it_polls_for(path: Path) -> None:
    stacks: Stacks = {0: lines(path, "last", then=REDUCE), 1: lines(path, "chosen", "save", "pause")}
    alike = {**OURS, "cfg.run_dir": "PosixPath('runs/13-08')"}
    values = {
        0: {"train": {**alike, "cfg.kind": "'plain'"}},
        1: {"train": {**alike, "cfg.kind": "'leader'"}, "save": MARKER},
    }
    found = told(path, stacks, values)

    assert found.cause == "polls_for_file"
    assert "`cfg.kind` was 'leader' on rank 1 and 'plain' on rank 0 when read" in found.summary


def test_values_that_follow_from_the_rank_or_differ_anyway_are_no_difference(path: Path) -> None:
    """Folders with the rank's number, a loss, and the step that the waiting rank has come to."""
    stacks: Stacks = {0: lines(path, "last", then=REDUCE), 1: lines(path, "saves", "save", "pause")}
    own = {**MARKER, "marker": "'out/rank1/ready'", "cfg.run_dir": "'out/rank1'"}
    values = {
        0: {"train": {**OTHER, "cfg.run_dir": "'out/rank0'"}},
        1: {"train": {**OURS, "cfg.run_dir": "'out/rank1'"}, "save": own},
    }
    found = told(path, stacks, values)

    assert found.cause == "polls_for_file"
    assert not [word for word in ("cfg.rank", "`step`", "loss", "cfg.run_dir`") if word in found.summary]


def test_path_that_is_the_same_on_all_ranks_and_has_the_number_of_one_in_it_is_no_difference(
    path: Path,
) -> None:
    stacks: Stacks = {0: lines(path, "last", then=REDUCE), 1: lines(path, "saves", "save", "pause")}
    folder = {"cfg.run_dir": "PosixPath('/tmp/play-x1y/1')"}
    marker = {"marker": "PosixPath('/tmp/play-x1y/1/ready')", **folder}
    found = told(path, stacks, {0: {"train": folder}, 1: {"train": folder, "save": marker}})

    assert found.cause == "polls_for_file" and "on ranks" not in found.summary


def test_counter_of_ranks_in_different_calls_is_named(path: Path) -> None:
    stacks: Stacks = {0: lines(path, "first", then=REDUCE), 1: lines(path, "last", then=REDUCE)}
    story = steady(world=2)
    story.still(90.0, stacks)
    for rank, stacked in stacks.items():
        read(story, path, rank, stacked)
        held(story, rank, stacked, {"train": {"step": "60", "limit": "30" if rank else "20"}})
    story.still(90.0, stacks)
    found = story.the("held-up")

    assert "`limit` was 20 on rank 0 and 30 on rank 1 when read" in found.summary


@pytest.mark.parametrize(
    ("name", "ours", "theirs", "said"),
    [
        ("cfg['tie_embeddings']", "False", "True", True),
        ("cfg['is_main']", "False", "True", False),  # a rank's own by its name
        ("cfg['seed']", "4711", "4242", False),
        ("tied", "False", "True", False),
    ],
)
def test_switch_of_a_table_in_which_ranks_in_different_calls_differ_is_named(
    path: Path, name: str, ours: str, theirs: str, said: bool
) -> None:
    stacks: Stacks = {0: lines(path, "first", then=REDUCE), 1: lines(path, "last", then=REDUCE)}
    story = steady(world=2)
    story.still(90.0, stacks)
    for rank, stacked in stacks.items():
        read(story, path, rank, stacked)
        held(story, rank, stacked, {"train": {name: theirs if rank else ours}})
    story.still(90.0, stacks)
    words = f"`{name}` was {ours} on rank 0 and {theirs} on rank 1 when read"

    assert (words in story.the("held-up").summary) is said


def test_list_that_grows_in_a_loop_without_end_is_named(path: Path) -> None:
    stacks: Stacks = {0: lines(path, "last", then=REDUCE), 1: lines(path, "rolls", "rollout")}
    story = steady(world=2)
    story.still(30.0, stacks)
    for rank, stacked in stacks.items():
        read(story, path, rank, stacked)
    thread = ThreadWait(pid_of(1), "MainThread", "S", "hrtimer_nanosleep", Wait("sleep"), same=True)
    for tokens in ("[1, 2, ... 2500 items]", "[1, 2, ... 90000 items]"):
        held(story, 1, stacks[1], {"rollout": {"tokens": tokens}})
        story.tell(WaitsRead(1, pid_of(1), story.now, (ProcessWaits(pid_of(1), 1, "python", (thread,)),)))
        story.still(15.0, stacks)

    assert "`tokens` has grown from 2500 to 90000 items" in story.the("held-up").summary


def test_arguments_that_say_for_whom_or_how_long_it_waits_are_shown_and_no_others(path: Path) -> None:
    send = "send torch/distributed/distributed_c10d.py:2400"
    stacks: Stacks = {0: lines(path, "last", then=REDUCE), 1: lines(path, "exchanges", "exchange", then=send)}
    found = told(
        path, stacks, {1: {"send": {"dst": "3", "group": "None", "tag": "0", "async_op": "False"}}}, wait=""
    )

    assert f"1 {send.replace(' ', ' (')}): dst=3, tag=0" in shown(found)


def test_variables_of_another_function_are_not_shown(path: Path) -> None:
    stacks: Stacks = {0: lines(path, "last", then=REDUCE), 1: lines(path, "saves", "save", "pause")}
    found = told(path, stacks, {1: {}})
    assert shown(found) == [] and "when read" not in found.summary


def test_what_is_hidden_is_not_told_of(path: Path) -> None:
    stacks: Stacks = {0: lines(path, "last", then=REDUCE), 1: lines(path, "saves", "save", "pause")}
    found = told(
        path,
        stacks,
        {0: {"train": {"limit": "***"}}, 1: {"train": {"limit": "'x'"}, "save": {"marker": "***"}}},
    )

    assert "when read" not in found.summary


COUNTED = """
def arrive(store, tag, world):
    while store.add(tag, 0) != world:
        time.sleep(1)  # arrive


def publish(store, tag, world):
    if store.leads():
        return
    while store.add(tag, 0) != world:
        time.sleep(1)  # published


def train(store, world, every, rank):
    for step in range(world):
        all_reduce(step)  # first
        if step % every == 0:
            arrive(store, step, world)  # saves
            publish(store, step, world)  # publishes
        if rank == 0:
            arrive(store, step, world)  # alone


train(0, 0, 0)  # top
"""


@pytest.mark.parametrize(
    ("mark", "there", "cause"),
    [
        ("saves", {"step": "76", "every": "25"}, "condition_was_met"),
        ("saves", {"step": "75", "every": "25"}, "polls"),  # they may come to it yet
        ("saves", {"step": "76", "every": "30"}, "polls"),  # they had no such round
        ("saves", {"step": "76"}, "polls"),  # not known
        ("alone", {"step": "76", "every": "25", "rank": "1"}, "polls"),  # theirs was another way
        ("publishes", {"step": "76", "every": "25"}, "polls"),  # they may have left before the loop
    ],
)
def test_loop_that_others_came_through_in_the_same_round_says_that_its_condition_was_met_for_them(
    path: Path, mark: str, there: dict[str, str], cause: str
) -> None:
    path.write_text(COUNTED)
    polling = "publish" if mark == "publishes" else "arrive"
    top = f"<module> {path}:{line_of(COUNTED, 'top')}"
    ranks = {
        0: ("first", REDUCE),
        1: (mark, f"{polling} {path}:{line_of(COUNTED, 'published' if polling == 'publish' else 'arrive')}"),
        2: ("first", REDUCE),
    }
    stacks: Stacks = {
        rank: [top, f"train {path}:{line_of(COUNTED, line)}", then] for rank, (line, then) in ranks.items()
    }
    here = {"step": "75", "every": "25", "rank": "0"}
    values = {0: {"train": there}, 1: {"train": here, polling: {"world": "3"}}, 2: {"train": there}}
    found = told(path, stacks, values)

    assert (found.cause, found.ranks) == (cause, (1,))
    said = "ranks 0, 2 have come past this loop in that round (`step` is 76 there and 75 here)"
    assert (f"{said}: for them what it compares was equal" in found.summary) == (cause == "condition_was_met")
    assert ("by >=" in found.advice) == (cause == "condition_was_met")


@pytest.mark.parametrize(("rounds", "said"), [("38", True), ("40", False)])
def test_loop_with_fewer_rounds_on_the_rank_that_left_it_is_counted(
    path: Path, rounds: str, *, said: bool
) -> None:
    """Uneven data: one has no batch left and goes on to the call behind the loop."""
    text = TEXT.replace("for step in loader:", "for step in range(limit):") + "\n"
    path.write_text(text.replace("train(0, 0, 0)", "    all_reduce(limit)  # behind\n\n\ntrain(0, 0, 0)"))
    text = path.read_text()
    top = f"<module> {path}:{line_of(text, 'top')}"
    stacks: Stacks = {
        rank: [top, f"train {path}:{line_of(text, mark)}", REDUCE]
        for rank, mark in ((0, "last"), (1, "behind"), (2, "last"))
    }
    story = steady(world=3)
    for _ in range(2):
        story.still(20.0, stacks)
        for rank, stacked in stacks.items():
            read(story, path, rank, stacked)
            held(story, rank, stacked, {"train": {"limit": rounds if rank == 1 else "40"}})
            recorded(story, rank, 7, "all_gather" if rank == 1 else "all_reduce", 3)
    story.still(20.0, stacks)
    found = story.the("hang")

    assert found.cause == "left_the_loop" and found.ranks == (1,)
    assert ("has 38 rounds on rank 1 and 40 on ranks 0, 2" in found.summary) == said
    assert ("rounds on" in found.summary) == said


def test_counter_of_a_loop_that_one_rank_has_left_is_shown_of_all(path: Path) -> None:
    """How many batches a loader has is not read; how many rounds each has come to is."""
    text = TEXT.replace("for step in loader:", "for step, batch in enumerate(loader):") + "\n"
    text = text.replace("train(0, 0, 0)", "    all_reduce(limit)  # behind\n\n\ntrain(0, 0, 0)")
    path.write_text(text)
    top = f"<module> {path}:{line_of(text, 'top')}"
    stacks: Stacks = {
        rank: [top, f"train {path}:{line_of(text, mark)}", REDUCE]
        for rank, mark in ((0, "last"), (1, "behind"), (2, "last"))
    }
    story = steady(world=3)
    for _ in range(2):
        story.still(20.0, stacks)
        for rank, stacked in stacks.items():
            read(story, path, rank, stacked)
            held(story, rank, stacked, {"train": {"step": "37" if rank == 1 else "38"}})
            recorded(story, rank, 7, "all_gather" if rank == 1 else "all_reduce", 3)
    story.still(20.0, stacks)
    found = story.the("hang")

    assert "`step` had come to 37 on rank 1 and 38 on ranks 0, 2 when read" in found.summary


def test_conditions_of_a_place_are_those_that_lead_past_it_out_of_its_own_loops() -> None:
    """A `break` of another loop decides nothing here; a `return` does where it ends a loop that the place is in."""
    loop, other = (
        Block(line, 20, "for", text) for line, text in ((3, "for step in loader:"), (5, "for part in step:"))
    )
    stop, chosen, ended = (
        Block(line, line + 1, "if", text)
        for line, text in ((4, "if stop:"), (6, "if kind:"), (8, "if ended:"))
    )
    leaves = (
        Leave(4, "break", loop.line, stop),
        Leave(7, "break", other.line, chosen),
        Leave(8, "return", 0, ended),
    )
    place = ProgramPlace("/app/train.py", 9, "train", "save(cfg)", (loop,), leaves)

    assert [*_conditions(place)] == ["if stop:", "if ended:"]
    assert [*_conditions(replace(place, around=()))] == []
