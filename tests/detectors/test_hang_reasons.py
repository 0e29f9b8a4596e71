"""Why work, or a loop, does not end, by the program's text: and where the text does not say so, nothing is claimed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from diag.detectors.hang.reasons import literal, nested_repetition
from diag.model import Finding
from diag.model.observations import FrameVariables, Variable, VariablesRead
from diag.model.observations.waits import Party, ProcessWaits, ThreadWait, Wait, WaitsRead
from tests.detectors.test_hang import steady
from tests.detectors.test_hang_program import REDUCE, read
from tests.facts import Story, frames, pid_of, process, stack, tree
from tests.programs import line_of

TEXT = r'''
import itertools
import os
import re
import sqlite3
import subprocess
import time

from patterns import SLUG

FINAL = re.compile(r"answer:?\s+((?:[\w,']+\s?)+)\.\s*$")
WORD = re.compile(r"\w+")
UP = """
    WITH RECURSIVE up(id, parent) AS (
        SELECT id, parent FROM message WHERE id = ? UNION ALL SELECT m.id, m.parent FROM message m JOIN up ON m.id = up.parent)
    SELECT count(*) FROM up
"""
PLAIN = "SELECT a.id FROM a, b"


def search(text):
    m = FINAL.search(text)  # nested
    m = WORD.search(text)  # plain
    m = re.search(WORD, text)  # function
    m = SLUG.sub("", text.strip())  # imported
    m = model(FINAL.search(text))  # with-others
    m = FINAL.groups  # no-call
    m = text.split("a")  # of-a-text


def query(db, leaf):
    db.execute(UP, (leaf,)).fetchone()  # recursive
    db.execute(PLAIN)  # join
    model.execute_all(leaf)  # no-query


def generate(finished):
    while not bool(finished.all()):
        tok = model(tok)  # sampled
        finished |= tok == EOS


def pack(docs, room):
    while docs and room >= 64:
        doc = pick(docs)  # packed
        if len(doc) > room:
            continue
        room -= len(doc)


def draw(rng, length):
    while True:
        doc = rng.choice(docs)  # drawn
        if len(doc) < length:
            continue
        return doc


def fill(pool, rng, budget):
    used, batch = 0, []
    while used < budget * 3 // 4:
        n = rng.choice(pool)  # filled
        if used + n <= budget:
            batch.append(n)
            used += n
    return batch


def play(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        games.append(game())  # played


def game():
    while 0 in board:
        board[free()] = 1  # moved


def samples():
    while True:
        yield build(1)  # handed-out


def pieces(read):
    for piece in iter(read, ""):
        cut(piece)  # endless-for


def bounded(rows):
    for row in rows:
        cut(row)  # bounded


def ended(path):
    return not os.path.exists(path)


def wait(cfg, step, child, event, lock):
    marker = cfg.run_dir / f"step_{step}" / "COMPLETE"
    while not marker.exists():
        time.sleep(1)  # appears
    while marker.exists():
        time.sleep(1)  # goes-away
    while True:
        try:
            os.close(os.open("a.lock", os.O_CREAT | os.O_EXCL))
            break
        except OSError:
            time.sleep(1)  # made-alone
    while child.poll() is None:
        time.sleep(1)  # process
    while not event.is_set():
        time.sleep(1)  # flag
    while True:
        answer = requests.request("GET", url)
        if session.request("GET", url).ok:
            break
        time.sleep(1)  # service
    while not ended("a"):
        time.sleep(1)  # returned
    while count < 5:
        time.sleep(1)  # number
    while at < len(view):
        at += block
        time.sleep(1)  # counts
    while tries < 5:
        if ready:
            tries += 1
        time.sleep(1)  # counts-some
    while tries > 5:
        tries += 1
        time.sleep(1)  # counts-away
    for _ in range(9):
        try:
            put(marker)
        except OSError:
            time.sleep(1)  # again


def cached(path):
    lock = SoftFileLock(path + ".lock")
    with lock:
        make(path)  # soft
    with FileLock("a.lock"):
        make(path)  # hard


def main(loader):
    while step < 100:
        step += 1
        search("a")  # searches
        other()  # steps
        reduce()  # reduces


main([])  # top
'''


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TEXT)
    (tmp_path / "patterns.py").write_text('import re\n\nSLUG = re.compile(r"(a|\\w+)+$")\n')
    return tmp_path / "train.py"


def at(path: Path, function: str, mark: str) -> str:
    return f"{function} {path}:{line_of(TEXT, mark)}"


def busy(
    path: Path,
    *inner: str,
    gil: bool = True,
    others: str = "reduces",
    readings: Sequence[dict[str, str]] = (),  # variables of its innermost function
    outer: dict[str, str] | None = None,  # and of the one that called it
    clock: float = 0.0,  # of the host, at the first reading
    first: int = 20,  # second at which the text is read, and the values from 5 s later on
    seconds: int = 60,
) -> Finding:
    """Rank 1 computes there; rank 0 waits in the loop of main."""
    top = at(path, "<module>", "top")
    stacks = {0: [top, at(path, "main", others), REDUCE], 1: [top, at(path, "main", "searches"), *inner]}
    story = steady()
    for second in range(seconds):
        story.tell(stack(0, story.now, stacks[0]), stack(1, story.now, stacks[1], owns_gil=gil))
        story.tell(*(tree(rank, story.now, cpu=rank * story.now, state="SR"[rank]) for rank in (0, 1)))
        if second == first:
            read(story, path, 0, stacks[0])
            read(story, path, 1, stacks[1])
        if second > first and (second - first) % 5 == 0 and (second - first) // 5 <= len(readings):
            values = tuple(Variable(*pair) for pair in readings[(second - first) // 5 - 1].items())
            read_of = [(frames(inner[-1])[0], values)]
            if outer:
                read_of.insert(0, (frames(inner[-2])[0], tuple(Variable(*pair) for pair in outer.items())))
            found = tuple(
                FrameVariables(pid_of(1), one.function, one.file, one.line, False, of) for one, of in read_of
            )
            now = clock + second - first - 5 if clock else 0.0
            story.tell(VariablesRead(1, pid_of(1), found, monotonic=now, time=story.now if clock else 0.0))
        story.wait(1.0)
    return story.the("held-up")


def sleeping(path: Path, mark: str, function: str = "wait", wait: Wait | None = None) -> Finding:
    top = at(path, "<module>", "top")
    stacks = {0: [top, at(path, "main", "reduces"), REDUCE]}
    stacks[1] = [top, at(path, "main", "steps"), at(path, function, mark)]
    story = steady()
    story.still(30.0, stacks)
    for rank in (0, 1):
        read(story, path, rank, stacks[rank])
    story.tell(asleep(story, wait or Wait("sleep")))
    story.still(30.0, stacks)
    return story.the("held-up")


def asleep(story: Story, wait: Wait) -> WaitsRead:
    thread = ThreadWait(pid_of(1), "MainThread", "S", "hrtimer_nanosleep", wait, same=True)
    holder = ThreadWait(77, "page", "S", "do_wait", Wait("child"), same=True)
    processes = (
        ProcessWaits(pid_of(1), 1, "python", (thread,)),
        ProcessWaits(77, 1, "page.py", (holder,), job=False),
    )
    return WaitsRead(1, pid_of(1), story.now, processes)


# -- one call


@pytest.mark.parametrize(("mark", "name"), [("nested", "FINAL"), ("plain", "WORD"), ("imported", "SLUG")])
def test_regular_expression_at_the_line_is_quoted_with_where_it_is_made(
    path: Path, mark: str, name: str
) -> None:
    found = busy(path, at(path, "search", mark))

    assert (found.cause, found.klass) == ("regular_expression", "peer_not_joined")
    assert f"goes into the regular expression {name} `" in found.summary
    assert ("backtracks" in found.summary) is (mark != "plain")
    assert "matched in one way only" in found.advice
    assert ("keep one of the two" in found.advice) is (mark != "plain")
    if mark == "imported":
        assert f"({path.parent}/patterns.py:3)" in found.summary


def test_function_of_re_is_known_by_its_own_frame(path: Path) -> None:
    found = busy(path, at(path, "search", "function"), "search /usr/lib/python3.11/re/__init__.py:176")

    assert found.cause == "regular_expression" and "expression WORD `" in found.summary


@pytest.mark.parametrize("mark", ["with-others", "no-call", "of-a-text"])
def test_line_that_does_more_or_less_than_search_blames_no_expression(path: Path, mark: str) -> None:
    assert busy(path, at(path, "search", mark)).cause == "busy"


def test_line_that_called_python_code_is_not_in_its_expression(path: Path) -> None:
    found = busy(path, at(path, "search", "nested"), at(path, "query", "no-query"))

    assert found.cause == "busy"


@pytest.mark.parametrize(
    ("mark", "advice"),
    [("recursive", "UNION ALL never ends where its rows form a circle"), ("join", "EXPLAIN")],
)
def test_query_is_quoted_and_its_advice_follows_from_its_text(path: Path, mark: str, advice: str) -> None:
    found = busy(path, at(path, "query", mark), gil=False)

    assert found.cause == "database_query"
    assert "WITH RECURSIVE up" in found.summary or "SELECT a.id FROM a, b" in found.summary
    assert advice in found.advice


def test_call_that_is_no_query_is_none(path: Path) -> None:
    assert busy(path, at(path, "query", "no-query")).cause == "busy"


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ('re.compile(r"a(b)" "c", re.X).search(x)', "a(b)c"),
        ("re.compile(b'a')", "a"),
        ("re.compile('a' + name)", ""),
        ("re.compile('a ...", ""),
        ("re.compile(" * 300, ""),
    ],
)
def test_pattern_is_read_where_it_is_a_literal_and_whole(text: str, pattern: str) -> None:
    assert literal(text) == pattern


@pytest.mark.parametrize("pattern", ["(a+)+", "(?:x*y?)*", "(?i:(a|b+)+)", "(?P<n>(a+?)+)"])
def test_repetition_inside_of_a_repetition_is_found(pattern: str) -> None:
    assert nested_repetition(pattern)


@pytest.mark.parametrize("pattern", ["a+b+", "(a{2,3})+", "(ab)+", "(a", "a**", r"\d+(?:\.\d{1,3})?"])
def test_other_repetition_is_not(pattern: str) -> None:
    assert not nested_repetition(pattern)


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
    assert "(4 min 2" in found.summary  # 300 s from the reading, of which 35 s are over
    assert "in the loop `while 0 in board:`" not in found.summary


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


# -- loops that sleep


@pytest.mark.parametrize(
    ("mark", "cause", "advice"),
    [
        ("appears", "polls_for_file", "both mean the same path"),
        ("goes-away", "polls_for_lock_file", "left behind"),
        ("made-alone", "polls_for_lock_file", "left behind"),
        ("process", "polls_for_process", "zombie"),
        ("flag", "polls_for_thread", "is still alive"),
        ("service", "polls_for_service", "what it answers"),
        ("returned", "polls_for_file", "both mean the same path"),
        ("number", "polls", "who should change it"),
        ("counts", "gets_on_slowly", "limit of bandwidth"),
        ("counts-some", "polls", "who should change it"),
        ("counts-away", "polls", "who should change it"),
        ("again", "retries", "print the exception"),
    ],
)
def test_advice_follows_from_what_the_loop_looks_at(path: Path, mark: str, cause: str, advice: str) -> None:
    found = sleeping(path, mark)

    assert found.cause == cause
    assert advice in found.advice


def test_path_that_is_looked_at_is_shown_as_it_is_made(path: Path) -> None:
    found = sleeping(path, "appears")

    assert 'marker is `cfg.run_dir / f"step_{step}" / "COMPLETE"` (' in found.summary


# -- lock files

ACQUIRE = "acquire filelock/_api.py:1037"


@pytest.mark.parametrize(
    ("mark", "cause", "advice"),
    [("soft", "polls_for_lock_file", "left behind"), ("hard", "file_lock_not_free", "fuser")],
)
def test_lock_of_filelock_is_known_by_the_line_that_takes_it(
    path: Path, mark: str, cause: str, advice: str
) -> None:
    place = f"cached {path}:{line_of(TEXT, mark) - 1}"
    found = in_call(path, place, ACQUIRE)

    assert (found.cause, found.klass) == (cause, "lock_deadlock")
    assert advice in found.advice and "compiler" not in found.advice
    assert ("lock is `SoftFileLock(" in found.summary) is (mark == "soft")


def test_lock_of_torchs_own_extensions_keeps_its_advice(path: Path) -> None:
    found = in_call(path, at(path, "cached", "soft"), "wait torch/utils/file_baton.py:50")

    assert found.cause == "stale_file_lock" and "no compiler runs" in found.advice


def in_call(path: Path, *inner: str) -> Finding:
    top = at(path, "<module>", "top")
    stacks = {0: [top, at(path, "main", "reduces"), REDUCE], 1: [top, at(path, "main", "steps"), *inner]}
    story = steady()
    story.still(30.0, stacks)
    for rank in (0, 1):
        read(story, path, rank, stacks[rank])
    story.still(60.0, stacks)
    return story.the("held-up")


# -- a file that another process has locked


LOCKED = Wait("sleep", path="/srv/runs.db", others=(Party(77, command="page.py"),))


def test_sleep_in_a_call_that_is_no_sleep_is_for_the_lock_on_its_file(path: Path) -> None:
    found = sleeping(path, "join", "query", LOCKED)

    assert found.cause == "file_locked"
    assert "it has /srv/runs.db open, on which pid 77 (`page.py`) holds a lock, which waits" in found.summary
    assert "process 77 (`page.py`)" in found.advice and "commit" in found.advice


def test_rank_that_keeps_the_lock_and_waits_for_who_tries_it_is_to_blame(path: Path) -> None:
    """Whether the library tries again by itself, or the program does in a handler."""
    kept = replace(LOCKED, others=(Party(pid_of(0), command="train.py", rank=0),))
    for mark, function in (("join", "query"), ("again", "wait")):
        found = sleeping(path, mark, function, kept)

        assert (found.cause, found.ranks, found.waiting_ranks) == ("keeps_file_locked", (0,), (1,))
        assert "rank 1 tries again and again to lock /srv/runs.db in " in found.summary
        assert "commit or roll back" in found.advice


def test_transaction_that_a_rank_keeps_open_while_it_waits_for_the_one_who_wants_to_write_is_named(
    path: Path,
) -> None:
    """By the byte that SQLite locks."""
    holder = Party(pid_of(0), command="train.py", rank=0)
    found = sleeping(
        path, "join", "query", replace(LOCKED, others=(holder,), lock="POSIX WRITE 1073741825 1073741825")
    )

    assert (found.cause, found.ranks, found.waiting_ranks) == ("keeps_database_locked", (0,), (1,))
    assert (
        "of which rank 0 has SQLite's RESERVED lock: a transaction has written and was not ended"
        in found.summary
    )
    assert (
        "; rank 0 waits in all_reduce (from main, " in found.summary
        and "for rank 1: each waits" in found.summary
    )
    assert "commit at the end of the epoch" in found.advice


def test_sleep_of_the_program_itself_is_for_no_lock(path: Path) -> None:
    assert sleeping(path, "appears", wait=LOCKED).cause == "polls_for_file"


def test_sleep_in_a_call_with_nothing_locked_stays_a_sleep(path: Path) -> None:
    assert sleeping(path, "join", "query").cause == "sleeps"
