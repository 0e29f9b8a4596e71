"""What the names of a line stand for: where they are made and changed, and who else comes to the line."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from diag.model import Record
from diag.model.observations import ProgramRead
from diag.sources.host.job_files import Files
from diag.sources.stacks import program
from tests.programs import line_of
from tests.sources.test_program import place, read

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


WAYS = """
def step(self, inputs, extra):
    if self.first:
        micro = [c for c in inputs.split(self.size)]
    else:
        micro = [None] * self.chunks
    rows = 1
    if extra:
        rows = 2
        more = rows  # B
    if extra:
        kept = 1
    elif self.first:
        kept = 2
    else:
        kept = 3
    for x in zip(micro, rows, kept):
        send(x)  # A
"""


def test_name_that_another_way_gives_another_value_stands_for_either(tmp_path: Path) -> None:
    """Of more ways than two nothing is said."""
    found = {one.name: (one.kind, one.text, one.line) for one in place(tmp_path, "A", "step", WAYS).names}
    inside = {one.name: (one.kind, one.text) for one in place(tmp_path, "B", "step", WAYS).names}

    assert found["micro"] == ("either", "[c for c in inputs.split(self.size)]` or `[None] * self.chunks", 4)
    assert found["rows"] == ("either", "1` or `2", 7)
    assert "kept" not in found
    assert inside["rows"] == ("value", "2")


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
        ("messages", "send", "work = dist.isend(rank, 1)"),
        ("makes_group", "", "return dist.new_group(ranks)"),
        ("makes_group", "", 'init_device_mesh("cpu", (2,))'),
    ]
    assert [one.text for one in fact.statements[0].around] == ["if value < best:", "for epoch in range(9):"]
    made = fact.statements[5]
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
