"""Ranks that wait for a key of a store: which key, who sets it by the program's text, and who has gone past that."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from diag.model import Finding
from diag.model.observations import EnvironmentSeen
from tests.detectors.test_hang import steady
from tests.detectors.test_hang_program import read
from tests.detectors.test_hang_variables import held
from tests.facts import pid_of
from tests.programs import line_of

REDUCE = "all_reduce torch/distributed/distributed_c10d.py:3173"
TEXT = """
def train(rank, loader, keys):
    keys = dist.PrefixStore("best", store)
    for epoch in range(20):
        for step in loader:
            all_reduce(step)  # step
        if rank == 0:
            if value < best:
                keys.set(f"epoch{epoch}", "best.pt")  # sets
        else:
            keys.wait([f"epoch{epoch}"], timedelta(hours=2))  # waits
        keys.get("nowhere")  # nowhere
        cache.get("setting")  # cache
    keys.set("ready", "1")
    all_reduce(epoch)  # after
    keys.wait(["ready"])  # ready


train(0, 0, 0)  # top
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TEXT)
    return tmp_path / "train.py"


def lines(path: Path, mark: str, *then: str) -> list[str]:
    return [f"<module> {path}:{line_of(TEXT, 'top')}", f"train {path}:{line_of(TEXT, mark)}", *then]


def told(stacks: dict[int, Sequence[str]], epochs: dict[int, str], path: Path) -> Finding:
    story = steady(world=len(stacks))
    story.still(30.0, stacks)
    for rank, stacked in stacks.items():
        read(story, path, rank, stacked)
        held(story, rank, stacked, {"train": {"epoch": epochs[rank]}} if rank in epochs else {})
    story.still(30.0, stacks)
    return story.the("held-up")


def test_rank_that_is_in_the_next_epoch_without_having_set_the_key_is_to_blame(path: Path) -> None:
    stacks = {0: lines(path, "step", REDUCE), 1: lines(path, "waits"), 2: lines(path, "waits")}
    found = told(stacks, {0: "4", 1: "3", 2: "3"}, path)

    assert (found.cause, found.ranks, found.waiting_ranks) == ("key_not_set", (0,), (1, 2))
    assert "ranks 1-2 wait for the key `epoch3` of a store" in found.summary
    assert "under `if value < best:`" in found.summary and "`if rank == 0:`" in found.summary
    assert "`epoch` is 4 there, and 3 is waited for" in found.summary
    assert "still" not in found.summary


@pytest.mark.parametrize("epochs", [{0: "3", 1: "3"}, {0: "2", 1: "3"}, {}])
def test_rank_that_may_still_come_to_the_line_is_not_blamed(path: Path, epochs: dict[int, str]) -> None:
    found = told({0: lines(path, "step", REDUCE), 1: lines(path, "waits")}, epochs, path)

    assert (found.cause, found.ranks) == ("waits_for_key", (1,))
    assert "sets, under `if value < best:`" in found.summary and "gone past" not in found.summary


def test_key_behind_which_a_rank_is_in_the_same_function_was_passed(path: Path) -> None:
    found = told({0: lines(path, "after", REDUCE), 1: lines(path, "waits")}, {0: "19", 1: "18"}, path)

    assert (found.cause, found.ranks) == ("key_not_set", (0,))


def test_key_that_no_line_sets_is_said_to_be_so(path: Path) -> None:
    found = told({0: lines(path, "step", REDUCE), 1: lines(path, "nowhere")}, {0: "3", 1: "3"}, path)

    assert (found.cause, found.ranks) == ("waits_for_key", (1,))
    assert "`nowhere` of a store" in found.summary and "no line sets in the program's files" in found.summary


def test_what_is_no_store_has_no_key_that_is_waited_for(path: Path) -> None:
    found = told({0: lines(path, "step", REDUCE), 1: lines(path, "cache")}, {0: "3", 1: "3"}, path)

    assert found.cause == "not_in_collective" and "key" not in found.summary


def test_loop_in_whose_next_round_a_rank_is_was_not_left_by_the_other(path: Path) -> None:
    stacks = {0: lines(path, "step", REDUCE), 1: lines(path, "cache")}

    assert "has left the loop `for step in loader:`" in told(stacks, {0: "3", 1: "3"}, path).summary
    assert "left the loop" not in told(stacks, {0: "4", 1: "3"}, path).summary


HELPER = """
keys = dist.TCPStore("10.0.0.1", 29500)


def best(epoch):
    if rank == 0:
        if improved:
            keys.set(f"best{epoch}", "1")
    else:
        keys.wait([f"best{epoch}"], limit)  # waits


for number in range(400):
    all_reduce(weights)  # reduces
    best(number)  # calls
"""


@pytest.mark.parametrize(
    ("number", "cause", "ranks"), [("41", "key_not_set", (0,)), ("40", "waits_for_key", (1,))]
)
def test_function_that_sets_a_key_is_passed_where_its_only_call_is(
    tmp_path: Path, number: str, cause: str, ranks: tuple[int, ...]
) -> None:
    path = tmp_path / "train.py"
    path.write_text(HELPER)
    at = {mark: f"{path}:{line_of(HELPER, mark)}" for mark in ("waits", "reduces", "calls")}
    stacks: dict[int, Sequence[str]] = {
        0: [f"<module> {at['reduces']}", REDUCE],
        1: [f"<module> {at['calls']}", f"best {at['waits']}"],
    }
    story = steady(world=2)
    story.still(30.0, stacks)
    for rank, stacked in stacks.items():
        read(story, path, rank, stacked)
        own = {"<module>": {"number": number if rank == 0 else "40"}, "best": {"epoch": "40"}}
        held(story, rank, stacked, own)
    story.still(30.0, stacks)
    found = story.the("held-up")

    assert (found.cause, found.ranks) == (cause, ranks)


OWN_KEY = """
store = dist.TCPStore("10.0.0.1", 29500)


def tag(names):
    return f"{KEY}"


def opened(stage, names):
    key = f"mix/{stage}" if len(names) == 1 else f"mix/{stage}/{tag(names)}"
    if rank == 0:
        store.set(key, "ready")
    else:
        store.wait([key], limit)  # waits


opened("long", names)  # calls
all_reduce(weights)  # reduces
"""


def told_of_own_key(tmp_path: Path, made: str, names: str, seed: str = "") -> Finding:
    path = tmp_path / "mix.py"
    text = OWN_KEY.replace("KEY", f"{{{made}}}")
    path.write_text(text)
    at = {mark: f"{path}:{line_of(text, mark)}" for mark in ("waits", "reduces", "calls")}
    waits = [f"<module> {at['calls']}", f"opened {at['waits']}"]
    stacks: dict[int, Sequence[str]] = {0: [f"<module> {at['reduces']}", REDUCE], 1: waits, 2: waits}
    story = steady(world=3)
    if seed:
        for rank in stacks:
            story.tell(EnvironmentSeen(rank, pid_of(rank), (("PYTHONHASHSEED", seed),)))
    story.still(30.0, stacks)
    for rank, stacked in stacks.items():
        read(story, path, rank, stacked)
        held(story, rank, stacked, {"opened": {"stage": "'long'", "names": names}} if rank else {})
    story.still(30.0, stacks)
    return story.the("held-up")


@pytest.mark.parametrize("made", ["hash(tuple(names))", "os.getpid()", "uuid.uuid4().hex"])
def test_key_that_each_process_makes_for_itself_is_nobodys_to_set(tmp_path: Path, made: str) -> None:
    found = told_of_own_key(tmp_path, made, "['books', 'code']")

    assert (found.cause, found.ranks, found.waiting_ranks) == ("key_of_each_process", (), (0, 1, 2))
    assert "ranks 1-2 wait for the key `mix/long{...}` of a store" in found.summary
    call = made.removesuffix(".hex")
    assert f"each process may make that key for itself, from `{call}` ({tmp_path}/mix.py:6)" in found.summary
    assert "PYTHONHASHSEED" in found.advice


@pytest.mark.parametrize(
    ("made", "names", "seed"),
    [
        ("hash(tuple(names))", "[3, 7]", ""),
        ("hash(tuple(names))", "['books', 'code']", "0"),
        ("'+'.join(names)", "['books', 'code']", ""),
        ("stamp.time(names)", "['books', 'code']", ""),
    ],
    ids=["numbers", "one seed", "names", "another's"],
)
def test_key_that_is_alike_on_all_ranks_is_not_said_to_be_of_each(
    tmp_path: Path, made: str, names: str, seed: str
) -> None:
    found = told_of_own_key(tmp_path, made, names, seed)

    assert found.cause in ("key_not_set", "waits_for_key") and "for itself" not in found.summary


ROUNDS = """
store = dist.TCPStore("10.0.0.1", 29500)
for step, x in enumerate(batches):
    norm = backward(x)
    if not isfinite(norm):
        LEAVES
    all_reduce(x)  # reduces
if rank == 0:
    store.set("exported", "1")
else:
    store.wait(["exported"])  # waits
"""


def told_of_rounds(tmp_path: Path, leaves: str, steps: tuple[str, str]) -> Finding:
    path = tmp_path / "loop.py"
    text = ROUNDS.replace("LEAVES", leaves)
    path.write_text(text)
    stacks: dict[int, Sequence[str]] = {
        rank: [f"<module> {path}:{line_of(text, mark)}", *more]
        for rank, mark, more in ((0, "reduces", [REDUCE]), (1, "waits", []), (2, "reduces", [REDUCE]))
    }
    story = steady(world=3)
    story.still(30.0, stacks)
    for rank, stacked in stacks.items():
        read(story, path, rank, stacked)
        held(story, rank, stacked, {"<module>": {"step": steps[rank == 1]}})
    story.still(30.0, stacks)
    return story.the("held-up")


def test_rank_that_went_round_as_often_left_the_call_out_in_one_round(tmp_path: Path) -> None:
    found = told_of_rounds(tmp_path, "continue", ("159", "159"))

    assert (found.cause, found.ranks, found.waiting_ranks) == ("round_left_out", (1,), (0, 2))
    assert "`step` is 159 on either side, so that a round went past that call" in found.summary
    assert f"(`if not isfinite(norm):` ({tmp_path}/loop.py:5) continues)" in found.summary
    assert "for the key `exported`" in found.summary and "decide together" in found.advice


@pytest.mark.parametrize(
    ("leaves", "steps"),
    [("continue", ("159", "140")), ("break", ("159", "159")), ("clip(x)", ("159", "159"))],
    ids=["fewer rounds", "broken off", "no way past"],
)
def test_rank_that_may_have_left_the_loop_early_is_not_said_to_have_left_out_a_round(
    tmp_path: Path, leaves: str, steps: tuple[str, str]
) -> None:
    found = told_of_rounds(tmp_path, leaves, steps)

    assert (found.cause, found.ranks) == ("waits_for_key", (1,))
    assert "either side" not in found.summary and "rank 1 has left the loop" in found.summary


# --- a hook of a trainer: the key is an argument, and the rank that should set it has left the hook


HOOKS = """
class KeepBest:
    def after_step(self, t):
        key = f"saved/{t.step}"
        if t.rank == 0:
            if validate(t) < self.best:
                t.store.set(key, "1")  # sets
        else:
            self.wait(t.store, key)  # hooked

    def wait(self, store, key):
        while True:
            try:
                store.wait([key], timedelta(seconds=5))  # waits
                return
            except RuntimeError:
                time.sleep(0.5)  # sleeps


def fit(t):
    while t.step < 400:
        t.loss = loss(t)
        if t.step > 3:
            t.loss.backward()  # under
        t.loss.backward()  # backward
        t.step += 1
        t.call("after_step")  # calls
        t.loss.backward()  # behind


fit(Trainer())  # top
"""


def told_of_hook(tmp_path: Path, zero: str, waits: str = "waits", last: list[str] | None = None) -> Finding:
    path = tmp_path / "train.py"
    path.write_text(HOOKS)
    at = {mark: f"{path}:{line_of(HOOKS, mark)}" for mark in ("hooked", "calls", "top", waits, zero)}
    top = f"<module> {at['top']}"
    inner = [top, f"fit {at['calls']}", f"KeepBest.after_step {at['hooked']}", f"KeepBest.wait {at[waits]}"]
    other = [top, f"fit {at[zero]}", *([REDUCE] if last is None else last)]
    stacks: dict[int, Sequence[str]] = {0: other, 1: inner, 2: inner}
    story = steady(world=3)
    story.still(30.0, stacks)
    for rank, stacked in stacks.items():
        read(story, path, rank, stacked)
        hook = {"KeepBest.after_step": {"t.step": "80", "t.rank": str(rank), "key": "***"}}
        store = {"KeepBest.wait": {"store": "<TCPStore>", "key": "***"}}
        held(story, rank, stacked, {"fit": {"t.step": "80"}} if rank == 0 else {**hook, **store})
    story.still(30.0, stacks)
    return story.the("held-up")


@pytest.mark.parametrize("waits", ["waits", "sleeps"])
def test_rank_in_a_later_round_that_did_not_set_the_key_in_this_one_is_to_blame(
    tmp_path: Path, waits: str
) -> None:
    found = told_of_hook(tmp_path, "backward", waits)

    assert (found.cause, found.ranks, found.waiting_ranks) == ("key_not_set", (0,), (1, 2))
    assert "ranks 1-2 wait for the key `saved/80` of a store" in found.summary
    assert "under `if validate(t) < self.best:`" in found.summary
    assert "rank 0 has gone past that line (it is in a later round of `while t.step < 400:`" in found.summary


@pytest.mark.parametrize(
    ("zero", "last"),
    [("behind", None), ("under", None), ("backward", ["work /app/eval.py:3"])],
    ids=["at a later line", "at a line that the others may not have come by", "in no call"],
)
def test_rank_that_may_be_in_the_same_round_has_not_gone_past_the_key(
    tmp_path: Path, zero: str, last: list[str] | None
) -> None:
    assert told_of_hook(tmp_path, zero, last=last).cause != "key_not_set"
