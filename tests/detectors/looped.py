"""A program with lines that take long or loop, and a rank that is found in one of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from diag.model import Finding
from diag.model.observations import FrameVariables, Variable, VariablesRead
from diag.model.observations.waits import ProcessWaits, ThreadWait, Wait, WaitsRead
from tests.detectors.test_hang import steady
from tests.detectors.test_hang_program import REDUCE, read
from tests.facts import Story, frames, pid_of, stack, tree
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


def beams(hypotheses, end):
    while hypotheses and time.monotonic() < end:
        hypotheses = grown(hypotheses)  # grown


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
    while done < size:
        try:
            done += write(view)
        except OSError:
            time.sleep(1)  # counts-fails
    while done < len(blob):
        try:
            done += os.pwrite(fd, blob[done:], done)
        except OSError:
            time.sleep(1)  # repeated
    while tries < 5:
        try:
            put(marker)
        except OSError:
            tries += 1
            time.sleep(1)  # tried-some
    while len(list(out.glob("done.*"))) != world:
        time.sleep(1)  # counted-files
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


def write(folder: Path) -> Path:
    (folder / "train.py").write_text(TEXT)
    (folder / "patterns.py").write_text('import re\n\nSLUG = re.compile(r"(a|\\w+)+$")\n')
    return folder / "train.py"


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
