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
