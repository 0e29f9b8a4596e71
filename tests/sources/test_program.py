"""The program's text around a line: by its tokens, as the process runs it, and never more than what may be read."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.model import Record
from diag.model.observations import ProgramPlace, ProgramRead
from diag.sources.host.job_files import Files, JobFiles
from diag.sources.stacks import program, statements
from diag.sources.stacks.meanings import Meanings
from tests.programs import line_of

TRAIN = """
import time


def wait_for(path,
             seconds=1):
    while not os.path.exists(path):
        time.sleep(  # A
            seconds,
        )


class Trainer:
    async def run(self, rank, loader):
        for step, batch in enumerate(loader):
            if batch is None: continue
            try:
                loss = self.f(batch)
            except ValueError:
                self.retry(batch)  # B
            if rank == 0 and step % 10 == 0:
                gather(loss)  # C
            elif rank == 1:
                other()  # D
            else:
                barrier()  # E
            for each in batch:
                if each:
                    break
            if loss < 1:
                return
        else:
            early()  # F

        def inner():
            return loss if loss else None

        done()  # G
"""


def read(path: Path, lines: dict[int, str], started: float | None = None) -> list[ProgramPlace]:
    found = program.read(Files(), str(path), lines, time.time() + 1 if started is None else started)
    payload = json.loads(json.dumps({"pid": 7, "files": {str(path): found}}))
    [fact] = program.parse(Record(program.SOURCE, payload, 0, "node-0"))
    assert isinstance(fact, ProgramRead) and (fact.rank, fact.pid) == (0, 7)
    return list(fact.places)


def place(tmp_path: Path, mark: str, function: str, text: str = TRAIN) -> ProgramPlace:
    path = tmp_path / "train.py"
    path.write_text(text)
    [found] = read(path, {line_of(text, mark): function})
    return found


def test_statement_of_several_lines_is_shown_in_one_and_its_loop_by_its_head(tmp_path: Path) -> None:
    found = place(tmp_path, "A", "wait_for")

    assert found.text == "time.sleep(seconds)"
    assert [(one.kind, one.text) for one in found.around] == [("while", "while not os.path.exists(path):")]
    assert (found.around[0].line, found.around[0].last) == (7, 10)


@pytest.mark.parametrize(
    ("mark", "heads"),
    [
        ("B", [("except", "except ValueError:"), ("for", "for step, batch in enumerate(loader):")]),
        (
            "C",
            [
                ("if", "if rank == 0 and step % 10 == 0:"),
                ("for", "for step, batch in enumerate(loader):"),
            ],
        ),
        ("D", [("elif", "elif rank == 1:"), ("for", "for step, batch in enumerate(loader):")]),
        ("E", [("else", "elif rank == 1:"), ("for", "for step, batch in enumerate(loader):")]),
        ("F", [("else", "for step, batch in enumerate(loader):")]),
        ("G", []),
    ],
)
def test_blocks_are_those_up_to_the_function(tmp_path: Path, mark: str, heads: list[tuple[str, str]]) -> None:
    assert [(one.kind, one.text) for one in place(tmp_path, mark, "Trainer.run").around] == heads


def test_ways_past_are_those_of_the_function_and_of_the_loops_around(tmp_path: Path) -> None:
    found = place(tmp_path, "C", "Trainer.run")

    assert [(one.word, one.under.text) for one in found.leaves] == [
        ("continue", "if batch is None: continue"),
        ("return", "if loss < 1:"),
    ]
    assert [one.word for one in place(tmp_path, "G", "Trainer.run").leaves] == ["return"]


def test_form_feed_is_no_line_and_a_return_in_a_with_block_is_under_no_condition(tmp_path: Path) -> None:
    text = (
        "def f(path):\n    x = 1\n\x0c\n    while True:\n        with open(path) as file:\n            if file.read():\n"
        "                return file\n            return None\n        time.sleep(1)  # A\n"
    )
    path = tmp_path / "train.py"
    path.write_text(text)

    [found] = read(path, {9: "f"})
    assert [one.text for one in found.around] == ["while True:"]
    assert [(one.line, one.under.text) for one in found.leaves] == [(7, "if file.read():")]


def test_line_of_another_function_than_the_interpreter_says_is_not_what_it_runs(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    number = line_of(TRAIN, "G")

    assert read(path, {number: "Trainer.stop"}) == []
    assert read(path, {number: "<module>"}) != []  # what has no name of its own is not compared
    assert read(path, {10_000: "Trainer.run"}) == []


def test_file_that_was_written_after_the_start_is_not_what_runs(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(TRAIN)

    assert program.read(Files(), str(path), {1: "<module>"}, time.time() - 60) == {"failed": "changed"}
    os.utime(path, (time.time() - 120,) * 2)
    assert "places" in program.read(Files(), str(path), {1: "<module>"}, time.time() - 60)


@pytest.mark.parametrize("name", ["missing.py", "fifo", "folder", "nul\0.py"])
def test_what_cannot_be_read_is_said_and_blocks_nobody(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()

    found = program.read(Files(), f"{tmp_path}/{name}", {1: "f"}, time.time())

    assert found["failed"] == "unreadable" and found["detail"]


def test_text_that_is_longer_than_a_program_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "data.py"
    path.write_bytes(b"x = 1\n" * 100_000)

    assert program.read(Files(), str(path), {1: "<module>"}, time.time() + 1) == {"failed": "too_long"}


def test_secrets_and_long_statements_are_cut(tmp_path: Path) -> None:
    secret = "hf_" + "abcdefghij" * 4
    text = f'def f():\n    login(token="{secret}")  # A\n    g({", ".join(map(str, range(200)))})  # B\n'

    assert secret not in place(tmp_path, "A", "f", text).text
    assert len(place(tmp_path, "B", "f", text).text) <= 120


def test_own_program_is_read_with_its_own_rights() -> None:
    """As the sampler does: this test is the process."""
    function = "test_own_program_is_read_with_its_own_rights"
    with JobFiles(os.getpid()) as files:
        found = program.read(
            files, __file__, {line_of(Path(__file__).read_text(), "HERE"): function}, time.time()
        )  # HERE

    assert found["places"][0]["text"].startswith("found = program.read(files, __file__")
    assert found["places"][0]["around"][0]["kind"] == "with"


@given(st.text(alphabet="ifwhle:()[]{}\"'\\ \n\tx=#@,.1", max_size=80), st.integers(1, 9))
def test_no_text_is_too_torn(text: str, line: int) -> None:
    for one in statements.logical_lines(text):
        assert one.first <= one.last
    lines = statements.logical_lines(text)
    program._place(lines, "a.py", line, "<module>", Meanings("/a.py", lines, lambda path: lines))


NAMES = """
import re
from pkg.rules import SLUG as S, limit
from . import near
LINE = re.compile(
    r"(\\w+ )+",
    re.X,
)
TWICE = 1
TWICE = 2
NOTE: str = "one"

def ready(path):
    return os.path.exists(path)

class Saver:
    def __init__(self, run):
        self.folder = run / "out"

    def save(self, step, done):
        marker = self.folder / f"{step}"
        while not done(marker):
            step += 1
            S.sub("", LINE, NOTE, TWICE, step, near.DEEP, limit, self.folder, ready(marker))  # A
"""


def test_names_stand_for_what_one_statement_says(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "rules.py").write_text("SLUG = 'slug'\nlimit = 3\nlimit = 4\n")
    (tmp_path / "near.py").write_text("DEEP = 'deep'\n")
    found = {one.name: (one.kind, one.text) for one in place(tmp_path, "A", "Saver.save", NAMES).names}

    assert found == {
        "marker": ("value", 'self.folder / f"{step}"'),
        "S": ("value", "'slug'"),
        "LINE": ("value", 're.compile(r"(\\w+ )+", re.X)'),
        "NOTE": ("value", '"one"'),
        "near.DEEP": ("value", "'deep'"),
        "self.folder": ("value", 'run / "out"'),
        "ready": ("function", "os.path.exists(path)"),
    }


def test_module_that_was_written_after_the_start_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("from rules import SLUG\nSLUG.sub('')  # A\n")
    (tmp_path / "rules.py").write_text("SLUG = 'slug'\n")
    os.utime(path, (1.0, 1.0))

    assert read(path, {2: "<module>"}, started=100.0)[0].names == ()
    assert [one.text for one in read(path, {2: "<module>"})[0].names] == ["'slug'"]


def test_loop_has_what_changes_its_condition_and_what_it_hands_out(tmp_path: Path) -> None:
    text = (
        "def f(q):\n    while not q.done:\n        q.done |= g()\n        q.rows.append(1)\n        n = 2  # A\n"
        "    while True:\n        try:\n            put(1)\n        except OSError:\n            wait(1)  # B\n"
        "    for x in q:\n        yield x  # C\n    for x in q:\n        if x:\n            yield x  # D\n"
    )
    [a], [_, b], [c], [_, d] = (place(tmp_path, mark, "f", text).around for mark in "ABCD")

    assert (a.deciding, b.deciding) == (("q.done |= g()",), ("put(1)",))
    assert (a.yields, c.yields, d.yields) == (False, True, False)


WORK = """
def ring(x):
    waits = []
    waits.append(dist.isend(x, 1))
    for one in reversed(waits):
        one.wait()  # appended
    [each.wait() for each in waits]  # listed
    work: dist.Work = dist.irecv(x, 2)
    work.wait()  # annotated
    given.wait()  # unknown
    dist.irecv(x).wait()  # itself


class Ring:
    def begin(self):
        self.work = dist.isend(self.x, dst=1)

    def end(self):
        self.work.wait()  # kept
        self.work.join()  # joined
"""


@pytest.mark.parametrize(
    ("mark", "made"),
    [
        ("appended", "waits.append(dist.isend(x, 1))"),
        ("listed", "waits.append(dist.isend(x, 1))"),
        ("annotated", "work: dist.Work = dist.irecv(x, 2)"),
        ("kept", "self.work = dist.isend(self.x, dst=1)"),
        ("unknown", ""),
        ("itself", ""),
        ("joined", ""),
    ],
)
def test_what_a_line_waits_for_is_followed_to_where_it_was_made(tmp_path: Path, mark: str, made: str) -> None:
    path = tmp_path / "ring.py"
    path.write_text(WORK)
    function = "end" if mark in ("kept", "joined") else "ring"
    (place,) = program.read(Files(), str(path), {line_of(WORK, mark): function}, time.time() + 1)["places"]

    assert place["made"] == made


STORES = """
import sharing
from torch import distributed as dist

PREFIX = "best"


def train(rank, keys):
    name = f"{PREFIX}/{rank}"
    for epoch in range(9):
        if value < best:
            keys.set(f"epoch{epoch}", "1")
        keys.set("run/" + str(epoch), b"1")
        keys.wait([f"epoch{epoch}"], limit)  # list
        keys.get("run/%d" % epoch)  # percent
        keys.get("run/{}".format(epoch))  # format
        keys.get(name)  # name
        while not keys.check([name]):
            pause()  # loop
        event.wait()  # event
        keys.get(epoch)  # unknown
    dist.isend(rank, 1)
    work = dist.isend(rank, 1)
    seen.set(rank)
    rows.append("one")
    names.add("two")
    keys.add("count", 1)
"""
SHARING = """
def group(ranks):
    return dist.new_group(ranks)


def share(rank, ranks):
    if rank not in ranks:
        return
    group(ranks)


def mesh():
    init_device_mesh("cpu", (2,))
"""


@pytest.mark.parametrize(
    ("mark", "key"),
    [
        ("list", "epoch{epoch}"),
        ("percent", "run/{epoch}"),
        ("format", "run/{epoch}"),
        ("name", "{PREFIX}/{rank}"),
        ("loop", "{PREFIX}/{rank}"),
        ("event", ""),
        ("unknown", ""),
    ],
)
def test_key_that_a_line_asks_for_is_read_with_its_parts(tmp_path: Path, mark: str, key: str) -> None:
    (tmp_path / "train.py").write_text(STORES)
    found = program.read(
        Files(), str(tmp_path / "train.py"), {line_of(STORES, mark): "train"}, time.time() + 1
    )

    assert found["places"][0]["awaited"] == key


def test_statements_that_ranks_wait_for_are_found_with_what_leads_there(tmp_path: Path) -> None:
    """Also in a module that is imported, and by the conditions of the only line that calls them."""
    (tmp_path / "train.py").write_text(STORES)
    (tmp_path / "sharing.py").write_text(SHARING)
    payload = {
        "pid": 7,
        "files": {
            str(tmp_path / "train.py"): program.read(Files(), str(tmp_path / "train.py"), {}, time.time() + 1)
        },
    }
    (fact,) = program.parse(Record(program.SOURCE, json.loads(json.dumps(payload)), 0, "host"))
    assert isinstance(fact, ProgramRead)

    assert [(one.kind, one.key, one.text) for one in fact.statements] == [
        ("sets", "epoch{epoch}", 'keys.set(f"epoch{epoch}", "1")'),
        ("sets", "run/{epoch}", 'keys.set("run/" + str(epoch), b"1")'),
        ("sets", "count", 'keys.add("count", 1)'),
        ("lets_go", "", "dist.isend(rank, 1)"),
        ("makes_group", "", "return dist.new_group(ranks)"),
        ("makes_group", "", 'init_device_mesh("cpu", (2,))'),
    ]
    assert [one.text for one in fact.statements[0].around] == ["if value < best:", "for epoch in range(9):"]
    made = fact.statements[4]
    assert (made.function, made.called_in) == ("group", ("share",))
    assert [one.under.text for one in made.leaves] == ["if rank not in ranks:"]


CHANGES = """
def fill(pool, used, budget):
    while used < budget:
        n = draw(pool)  # under
        if n < 0:
            continue
        if used + n <= budget:
            used += n


def either(used, budget):
    while used < budget:
        n = draw(pool)  # either
        if n > 3:
            used += n
        else:
            used += 1


def handled(used, budget):
    while used < budget:
        try:
            if fits(n):  # handled
                used += n
        except ValueError:
            used += 1


def goes_on(used, budget):
    while used < budget:
        used += 1  # each
        if used > 3:
            continue
"""


@pytest.mark.parametrize(
    ("function", "mark", "met", "unmet"),
    [
        ("fill", "under", ("if used + n <= budget:",), ("if n < 0:",)),
        ("either", "either", (), ()),
        ("handled", "handled", (), ()),
        ("goes_on", "each", (), ()),
    ],
)
def test_conditions_that_a_loop_needs_to_change_are_those_of_each_statement_that_would(
    tmp_path: Path, function: str, mark: str, met: tuple[str, ...], unmet: tuple[str, ...]
) -> None:
    [loop] = [one for one in place(tmp_path, mark, function, CHANGES).around if one.kind == "while"]

    assert (loop.met, loop.unmet) == (met, unmet)


FREED = """
class Window:
    def close(self):
        self.data = None
        dist.barrier()  # closes
        self.file.reduce(1)

    def __del__(self):
        if self.data is not None:
            self.close()


class Shard:
    def __del__(self):
        torch.distributed.all_reduce(self.count)  # itself


class Other:
    def __del__(self):
        self.file.close()
        self.lock.release()

    def close(self):
        dist.barrier()


def close():
    dist.barrier()
"""


def test_calls_that_the_interpreter_makes_when_it_frees_an_object_are_known(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(FREED)
    found = program.read(Files(), str(path), {1: "<module>"}, time.time() + 1)
    freed = [one for one in found["statements"] if one["kind"] == "in_destructor"]

    assert [(one["key"], one["text"], one["function"], one["line"]) for one in freed] == [
        ("barrier", "dist.barrier()", "close", line_of(FREED, "closes")),
        ("all_reduce", "torch.distributed.all_reduce(self.count)", "__del__", line_of(FREED, "itself")),
    ]
    assert [one["called_at"] for one in freed] == [(10,), ()]
