"""Where a condition or a loop of the program has its values from: the way to what need not be the same on all ranks, and
none where the ranks have agreed, or the text does not tell."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.model import Record
from diag.model.observations import Origin, ProgramRead
from diag.sources.host.job_files import Files
from diag.sources.stacks import program
from diag.sources.stacks.origins import origins
from tests.programs import line_of

TRAIN = """
import os
import random
import time

import torch
import torch.distributed as dist

from pairs import Clock, Mix, Plateau, keep, total


class Model:
    def pick(self):
        return [one for one in self.blocks if random.random() > 0.1]

    def forward(self, x):
        used = [self.first, *self.pick()]
        for unit in used:  # drawn
            unit(x)

    def wrap(self):
        self.opt = torch.optim.SGD(self.net.parameters())
        self.plateau = Plateau(self.opt)

    def validate(self):
        loss = self.net(1).mean().item()
        self.plateau.step(loss)

    def maybe(self):
        if self.opt.lr < 0.1:  # plateau
            self.wrap()


class Notes:
    def excerpt(self):
        return random.choice(["a", "b"])


def train(rows, rank, world, mix):
    notes = Notes() if rank == 0 else None
    mine = keep(rows[rank::world])
    clock = Clock()
    done = 0
    for batch in mine:  # filtered
        if batch is None:
            continue
        done += 1
        if notes:
            notes.excerpt()
        if clock.over():  # clock
            break
        if done > 3:  # counted
            break
    mix = Mix()
    for name in mix.active:  # set
        run(name)
    for name in sorted(mix.active):  # sorted
        run(name)
    for step in range(100):  # constant
        run(step)
    enough = torch.zeros(1)
    dist.all_reduce(enough)
    if enough.item():  # agreed
        run(1)
    if total(rows) > 3:  # asks
        run(2)
    sizes = [0]
    for row in rows:
        if row > 3:
            sizes.append(row)
    for size in sizes:  # gathered
        run(size)
    if hash(name) % 2:  # hash
        run(3)
    elif os.path.exists("stop"):  # file
        run(4)
    else:
        run(name)  # within the else


def run(count):
    for at in range(count):  # parameter
        step(at)
"""
PAIRS = """
import time

import torch.distributed as dist


def keep(rows):
    return [row for row in rows if row > 3]


def total(rows):
    number = rows.sum()
    dist.all_reduce(number)
    return number.item()


class Clock:
    def __init__(self):
        self.began = time.time()

    def over(self):
        return time.time() - self.began > 60


class Mix:
    def __init__(self):
        self.active = set("abc")


class Plateau:
    def step(self, value):
        self.best = min(self.best, value)
"""


def found(mark: str, kind: str = "") -> list[Origin]:
    line = line_of(TRAIN, mark)
    every = origins({"/train.py": TRAIN, "/pairs.py": PAIRS}, "/train.py", [line], 1)
    return [one for one in every if one.head == line and kind in ("", one.kind)]


def texts(mark: str, kind: str) -> list[list[str]]:
    return [[link.text for link in one.links] for one in found(mark, kind)]


def test_way_leads_through_the_functions_of_other_files_to_what_is_the_ranks_own() -> None:
    (origin,) = found("filtered", "rank")

    (link,) = origin.links
    assert (link.name, link.text, link.file) == ("mine", "keep(rows[rank::world])", "/train.py")
    assert link.filters == "[row for row in rows if row > 3]"


def test_generator_that_a_rank_alone_draws_from_too_is_found_with_its_condition() -> None:
    (origin,) = found("drawn", "random")

    used, pick, also = origin.links
    assert (used.name, pick.kind, pick.text[:20]) == ("used", "returns", "[one for one in self")
    assert (also.kind, also.text, also.guard) == ("also", 'random.choice(["a", "b"])', "notes")


def test_generator_that_all_ranks_draw_from_alike_is_told_alone() -> None:
    text = TRAIN.replace("Notes() if rank == 0 else None", "Notes()")
    line = line_of(text, "drawn")
    (origin,) = (one for one in origins({"/t.py": text}, "/t.py", [line], 1) if one.kind == "random")

    assert [link.kind for link in origin.links] == ["value", "returns"]


@pytest.mark.parametrize(
    ("mark", "kind", "last"),
    [
        ("plateau", "data", "self.net(1).mean().item()"),
        ("clock", "clock", "time.time() - self.began > 60"),
        ("counted", "counted", "done += 1"),
        ("set", "unordered", 'set("abc")'),
        ("gathered", "counted", "sizes.append(row)"),
        ("parameter", "parameter", "0"),
    ],
)
def test_last_statement_of_the_way_is_what_differs(mark: str, kind: str, last: str) -> None:
    assert last in [way[-1] for way in texts(mark, kind) if way]


@pytest.mark.parametrize(("mark", "kind"), [("hash", "hash"), ("file", "file")])
def test_head_itself_may_be_it(mark: str, kind: str) -> None:
    assert [] in texts(mark, kind)


@pytest.mark.parametrize("mark", ["agreed", "asks", "constant"])
def test_what_ranks_have_agreed_on_and_what_is_the_same_everywhere_leads_nowhere(mark: str) -> None:
    assert found(mark) == []


def test_sorted_set_has_an_order() -> None:
    assert found("sorted", "unordered") == []


def test_condition_that_goes_past_a_count_is_told_from_one_that_it_is_under() -> None:
    passed = next(one.links[-1] for one in found("counted", "counted"))
    under = next(one.links[-1] for one in found("gathered", "counted"))

    assert (passed.guard, passed.passes) == ("batch is None", True)
    assert (under.guard, under.passes) == ("row > 3", False)


def test_count_without_a_condition_is_the_same_on_all_ranks() -> None:
    text = TRAIN.replace("        if batch is None:\n            continue\n", "")
    line = line_of(text, "counted")

    assert not [one for one in origins({"/t.py": text}, "/t.py", [line], 1) if one.kind == "counted"]


def test_arguments_of_a_call_are_told_by_their_place() -> None:
    line = line_of(TRAIN, "gathered") + 1
    rows = [one for one in origins({"/train.py": TRAIN}, "/train.py", [], line) if one.argument]

    assert {one.argument for one in rows} == {"run:0"}
    assert any(link.text == "sizes.append(row)" for one in rows for link in one.links)


def test_head_of_an_else_is_that_of_its_if() -> None:
    line = line_of(TRAIN, "within the else") - 1
    found = origins({"/train.py": TRAIN}, "/train.py", [line], 1)

    assert [one.kind for one in found] == ["file"]


def test_text_that_cannot_be_parsed_has_none() -> None:
    assert origins({"/a.py": "if x = 1:\n    print 2\n"}, "/a.py", [1], 2) == ()
    assert origins({"/a.py": "#" * (300 << 10)}, "/a.py", [1], 1) == ()
    assert origins({"/a.py": f"if {'-' * 3000}x:\n    y()\n"}, "/a.py", [1], 2) == ()


@given(st.text(alphabet="ifwhle:()[]{} \n\tx=.1", max_size=80), st.integers(1, 9))
def test_no_text_is_too_torn(text: str, line: int) -> None:
    assert isinstance(origins({"/a.py": text}, "/a.py", [line], line), tuple)


def test_they_come_through_a_record_as_they_were_read(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "pairs.py").write_text(PAIRS)
    path = str(tmp_path / "train.py")
    line = line_of(TRAIN, "drawn") + 1
    payload = {"pid": 7, "files": {path: program.read(Files(), path, {line: "Model.forward"}, 1e12)}}
    (read,) = program.parse(Record(program.SOURCE, payload, 0, "h"))

    assert isinstance(read, ProgramRead)
    assert read.places[0].origins[0].kind == "random"
    assert read.places[0].origins[0].links[0].name == "used"


def way(text: str, mark: str) -> list[tuple[str, str]]:
    """(kind, last statement) of each way from the head of this mark."""
    line = line_of(text, mark)
    found = origins({"/t.py": text}, "/t.py", [line], 0)
    return [(one.kind, one.links[-1].text if one.links else "") for one in found]


MORE = """
import os
import random
import unicodedata


class Status:
    def __init__(self):
        self.rows = []


def normalize(text):
    return [one for one in text if random.random() > 0.5]


def setup():
    return dist.get_rank(), dist.get_world_size()


rank, world = setup()
port = int(os.environ["MASTER_PORT"])
status = Status()
for step, row in enumerate(rows(rank)):
    if step % 10 == 0:  # round
        status.add(row)
    if row > 3:  # row
        left = 1
    if status:  # status
        left = 2
    while left > 0:  # own
        if left > 1:
            left -= 1
if world > 1:  # world
    go()
if port > 3:  # port
    go()
for one in unicodedata.normalize("NFKC", text):  # library
    go()
"""


@pytest.mark.parametrize("mark", ["round", "status", "own", "world", "port", "library"])
def test_what_is_alike_or_not_known_to_differ_leads_nowhere(mark: str) -> None:
    """The number of a round, an object's own method called `add`, what goes by itself, the second of two that a function
    returns, another variable of the environment, and a function of a library called as one here."""
    assert [one for one in way(MORE, mark) if one[0] != "parameter"] == []


def test_item_of_a_counted_loop_is_followed() -> None:
    assert ("rank", "rows(rank)") in way(MORE, "row")


SIGNALS = """
import signal, threading

stop = False
asked = threading.Event()


def on_signal(*_):
    global stop
    stop = True
    asked.set()


class Saver:
    def __init__(self):
        self.due = False
        signal.signal(signal.SIGUSR1, self.handle)

    def handle(self, *_):
        self.due = True

    def maybe(self):
        if self.due:  # due
            save()


def train():
    signal.signal(signal.SIGTERM, on_signal)
    for step in range(9):
        if stop:  # stop
            break
        if asked.is_set():  # asked
            break


def other():
    if quiet:  # quiet
        go()


def calm():
    global quiet
    quiet = True
"""


@pytest.mark.parametrize(("mark", "last"), [("due", "True"), ("stop", "True"), ("asked", "asked.set()")])
def test_flag_that_a_handler_of_a_signal_sets_is_known(mark: str, last: str) -> None:
    assert ("signal", last) in way(SIGNALS, mark)


def test_flag_that_another_function_sets_is_not() -> None:
    assert way(SIGNALS, "quiet") == []


LOADS = """
import torch


def latest(folder, rank):
    for path in listing(folder, rank):
        try:
            state = torch.load(path)
        except Exception as error:
            log.debug(error)
            continue
        return state
    return None


def first(folder):
    try:
        return torch.load(folder)
    except OSError:
        raise SystemExit(1)


def train(folder, rank):
    step = latest(folder, rank)["step"]
    begun = first(folder)["step"]
    while step < 100:
        step += 1
        if step % 10 == 0:  # kept
            evaluate(step)
        if begun % 10 == 0:  # raised
            evaluate(step)
"""


def test_value_that_something_else_stands_for_where_it_raises_is_found_with_its_handler() -> None:
    line = line_of(LOADS, "kept")
    (origin,) = (one for one in origins({"/t.py": LOADS}, "/t.py", [line], 1) if one.kind == "fallback")

    assert (origin.links[-1].text, origin.links[-1].guard) == (
        "torch.load(path)",
        "except Exception as error:",
    )


def test_handler_that_raises_again_stands_for_nothing() -> None:
    line = line_of(LOADS, "raised")

    assert all(one.kind != "fallback" for one in origins({"/t.py": LOADS}, "/t.py", [line], 1))


RESUMED = """
import os
import torch


class State:
    def __init__(self, folder, rank):
        self.path = os.path.join(folder, "state.pt")
        self.step = 0

    def load(self):
        if not os.path.exists(self.path):
            return False
        blob = torch.load(self.path)
        self.step = blob["step"]
        return True


def train(folder, resume, rank, world):
    state = State(folder, rank)
    if resume:
        state.load()
    while state.step < 100:  # goes
        step(state)
    parts = [None]
    if resume:
        parts = os.listdir(folder)
    for one in parts:  # parts
        step(one)
"""


@pytest.mark.parametrize(
    ("mark", "name", "guard", "passes"),
    [("goes", "state.step", "not os.path.exists(self.path)", True), ("parts", "parts", "resume", False)],
)
def test_value_that_only_some_ways_lead_to_is_shown_with_the_condition(
    mark: str, name: str, guard: str, *, passes: bool
) -> None:
    """A rank that went another way has another value."""
    line = line_of(RESUMED, mark)
    found = origins({"/job/train.py": RESUMED}, "/job/train.py", (line,), line + 1)
    links = [one.links[0] for one in found if one.head == line and one.kind == "file"]

    assert [(one.name, one.guard, one.passes) for one in links] == [(name, guard, passes)]
