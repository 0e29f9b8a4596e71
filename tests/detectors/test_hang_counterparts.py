"""What would end a wait, and the condition that leads past it; silence where nobody is left who would have come to it, and
where nothing leads past it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from diag.model import Finding
from diag.model.observations import Exchange
from diag.sources.host.job_files import Files
from diag.sources.stacks import program
from tests.detectors.test_hang import steady
from tests.detectors.test_hang_endless_waits import GET, JOIN, ONE, Job, Thread
from tests.detectors.test_hang_let_go import RECV
from tests.detectors.test_hang_program import read
from tests.facts import TRAIN, stack, tree
from tests.programs import line_of

READER = """
class Reader:
    def _read(self):
        while True:
            slab = self.slabs.take()  # takes
            if not self.fill(slab):
                continue
            self.ready.put(slab)

    def _save(self):
        while True:
            one = self.todo.get()  # works
            try:
                write(one)
            except OSError:
                log(one)
                continue
            self.todo.task_done()

    def next(self):
        return self.ready.get()  # next

    def close(self):
        self.todo.join()  # close


class Slabs:
    def take(self):
        return self.free.get()  # take
"""


def told(text: str, main: str, thread: Sequence[str], tmp_path: Path, how: Sequence[str] = GET) -> Finding:
    path = tmp_path / "reader.py"
    path.write_text(text)

    def at(function: str, mark: str) -> str:
        return f"{function} {path}:{line_of(text, mark)}"

    found = program.read(Files(), str(path), {line_of(text, main): f"Reader.{main}"}, time.time() + 1)
    places = [program._place_of(str(path), row) for row in found["places"]]
    statements = tuple(program._statement_of(row) for row in found["statements"])
    return Job(
        (*TRAIN, at(f"Reader.{main}", main), *how),
        threads=[Thread(ONE, "reader", (*(at(*one.split()) for one in thread), *GET))] if thread else [],
        left=() if thread else ("reader",),
        text=places,
        statements=statements,
    ).told()


TAKES = ("Reader._read takes", "Slabs.take take")


def test_put_that_a_continue_leads_past_is_shown_with_its_condition(tmp_path: Path) -> None:
    found = told(READER, "next", TAKES, tmp_path)

    assert found.cause == "nobody_puts"
    assert "`self.ready.put(slab)` (" in found.summary
    assert (
        "would end it, and `if not self.fill(slab):` (" in found.summary and "leads past it" in found.summary
    )
    assert found.advice.startswith("Make the statement shown on every way through the code there")


def test_task_done_that_a_handler_leads_past_is_shown(tmp_path: Path) -> None:
    found = told(READER, "close", ("Reader._save works",), tmp_path, JOIN)

    assert found.cause == "task_done_missing"
    assert "`self.todo.task_done()` (" in found.summary
    assert "`except OSError:` (" in found.summary


def test_put_that_nothing_leads_past_is_not_shown(tmp_path: Path) -> None:
    text = READER.replace("            if not self.fill(slab):\n                continue\n", "")
    found = told(text, "next", TAKES, tmp_path)

    assert "would end it" not in found.summary and "on every way" not in found.advice


def test_put_of_a_thread_that_has_ended_is_not_shown(tmp_path: Path) -> None:
    found = told(READER, "next", (), tmp_path)

    assert found.cause == "nobody_puts"
    assert "would end it" not in found.summary and "on every way" not in found.advice


def test_put_into_another_queue_is_not_shown(tmp_path: Path) -> None:
    found = told(READER.replace("self.ready.put", "self.other.put"), "next", TAKES, tmp_path)

    assert "would end it" not in found.summary


# -- messages ------------------------------------------------------------------------------------------------

WIRE = """
def send_answer(tokens, dst):
    dist.send(tokens, dst)


def ask(answers, dst):
    for tokens in answers:
        if tokens:
            send_answer(tokens, dst)
    dist.recv(scores, dst)  # ask


def serve(n):
    for _ in range(n):
        dist.recv(answer, 0)  # serve


run()  # top
"""


def of_messages(text: str, tmp_path: Path) -> Finding:
    path = tmp_path / "wire.py"
    path.write_text(text)
    story = steady(2)
    for at in range(20):
        for rank, mark in enumerate(("ask", "serve")):
            lines = [f"<module> {path}:{line_of(text, 'top')}", f"{mark} {path}:{line_of(text, mark)}", RECV]
            sample = stack(rank, story.now, lines)
            main = replace(sample.threads[0], exchange=Exchange(sends=False, peer=1 - rank))
            story.tell(replace(tree(rank, story.now), switches=100), replace(sample, threads=(main,)))
            if at == 10:
                read(story, path, rank, lines)
        story.wait(2.0)
    return story.the("hang")


def test_message_that_is_sent_under_a_condition_alone_is_shown(tmp_path: Path) -> None:
    found = of_messages(WIRE, tmp_path)

    assert found.cause == "messages_do_not_match"
    assert "`dist.send(tokens, dst)` (" in found.summary and "is only under `if tokens:`" in found.summary
    assert found.advice.startswith("The message shown is not sent on the way past it")


@pytest.mark.parametrize("head", ["if rank == 0:", "if is_first:", "for _ in range(2):"])
def test_message_that_a_rank_or_stage_sends_by_its_place_is_not_shown(head: str, tmp_path: Path) -> None:
    found = of_messages(WIRE.replace("if tokens:", head), tmp_path)

    assert "would end it" not in found.summary
