"""Log files of a rank's own are found among its open files, and only their last lines read."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from diag.model import Record
from diag.model.observations import LastLines, LinesWritten, Observation, Unparsed
from diag.sources.logs.written import SOURCE, WrittenReader, parse

# A logger's file, and what else a rank has open for writing.
JOB = """
import logging, os, sys
logging.basicConfig(filename="train.log", level="INFO", format="%(asctime)s %(message)s")
metrics = open("metrics.jsonl", "w", buffering=1)
weights = open("model.bin", "wb", buffering=0)
weights.write(bytes(range(256)) * 64)
index = open("index.db", "w+")
index.write("text, and read again\\n"); index.flush()
empty = open("empty.log", "w")
config = open(__file__) if os.path.exists("x") else None
logging.info("begin")
metrics.write('{"step": 0}\\n')
print("ready", flush=True)
for line in sys.stdin:
    for number in range(int(line)):
        logging.info("step %d loss %.3f password=hunter2hunter2", number, 1 / (number + 1))
    print("written", flush=True)
"""


class Job:
    def __init__(self, folder: Path, **more: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", JOB],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            text=True,
            **more,  # type: ignore[call-overload]
        )
        assert self._said() == "ready"

    def _said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def log(self, lines: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{lines}\n")
        self.process.stdin.flush()
        assert self._said() == "written"


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    made.process.communicate()


def parsed(payload: object) -> list[Observation]:
    return list(parse(Record(SOURCE, payload, rank=3, at=1000.0)))


def test_lines_of_a_loggers_file_are_read_as_they_come(job: Job) -> None:
    reader = WrittenReader(job.process.pid)
    reader.find()
    assert reader.sample()["files"] == []  # what was there before is another time's

    job.log(3)
    (facts,) = parsed(reader.sample())

    assert isinstance(facts, LinesWritten)
    assert (facts.rank, facts.file, len(facts.lines)) == (3, "train.log", 3)
    assert "step 2 loss 0.333" in facts.lines[-1]
    assert reader.sample()["files"] == []


def test_of_very_many_lines_the_last_are_read(job: Job) -> None:
    reader = WrittenReader(job.process.pid)
    reader.find()
    job.log(20_000)

    payload = reader.sample()

    assert [len(file["lines"]) for file in payload["files"]] == [20]
    assert "step 19999 " in payload["files"][0]["lines"][-1]
    assert sum(map(len, payload["files"][0]["lines"])) < 4000


def test_weights_databases_and_empty_files_are_left_alone(job: Job, tmp_path: Path) -> None:
    reader = WrittenReader(job.process.pid)
    reader.find()

    assert sorted(file.name for file in reader._files.values()) == ["metrics.jsonl", "train.log"]


def test_what_it_prints_is_not_read_twice(tmp_path: Path) -> None:
    with (tmp_path / "out.log").open("w") as out:
        job = subprocess.Popen(
            [sys.executable, "-c", "import os; os.dup(1); print('x', flush=True); input()"],
            stdin=subprocess.PIPE,
            stdout=out,
        )
        while not (tmp_path / "out.log").stat().st_size:
            assert job.poll() is None
        reader = WrittenReader(job.pid)
        reader.find()
        job.communicate(b"\n")

    assert reader._files == {}


def test_file_that_was_closed_is_forgotten(job: Job) -> None:
    reader = WrittenReader(job.process.pid)
    reader.find()
    job.process.communicate()

    assert reader.sample()["files"] == [] and reader._files == {}
    with pytest.raises(OSError):
        reader.find()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_file_that_the_rank_itself_may_not_read_is_not_read_for_it(tmp_path: Path) -> None:
    """Root gave it the descriptor of a file that it may write to and not read: publishing it is not diag's to do."""
    secret = tmp_path / "secret.log"
    secret.write_text("root's own\n")
    secret.chmod(0o222)
    tmp_path.chmod(0o755)
    held = os.open(secret, os.O_WRONLY | os.O_APPEND)
    job = subprocess.Popen(
        ["setpriv", "--reuid=65534", "--clear-groups", "cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=(held,),
    )
    os.close(held)
    try:
        assert job.stdin is not None and job.stdout is not None
        job.stdin.write(b"x\n")
        job.stdin.flush()
        job.stdout.readline()  # it is another user by now
        reader = WrittenReader(job.pid)
        reader.find()
    finally:
        job.communicate()

    assert reader._files == {}


@pytest.mark.parametrize(
    "payload", [None, {}, {"files": 3}, {"files": [3]}, {"files": [{"lines": "x", "written": 1.0}]}]
)
def test_payload_that_is_none_is_unparsed(payload: object) -> None:
    assert [type(fact) for fact in parsed(payload)] == [Unparsed]


def test_last_lines_are_told_of_files_that_grew_no_more(job: Job) -> None:
    job.log(30)
    reader = WrittenReader(job.process.pid)
    reader.find()

    facts = {one.file: one for one in parsed(reader.last()) if isinstance(one, LastLines)}

    assert {*facts} == {"train.log", "metrics.jsonl"}
    lines = facts["train.log"].lines
    assert len(lines) <= 20 and "step 29" in lines[-1] and "hunter2" not in lines[-1]
    assert facts["train.log"].written_at > 0


def test_last_lines_that_are_no_list_are_told() -> None:
    (fact,) = parsed({"pid": 1, "files": [], "last": 7})

    assert isinstance(fact, Unparsed)


def test_output_of_a_process_that_is_waited_for_is_read_where_it_is_not_the_ranks(tmp_path: Path) -> None:
    """A server whose output goes to a file of its own, and one that prints where the rank does."""
    code = "import sys; print('ERROR slot 7 is lost', flush=True); sys.stdin.read()"
    with (tmp_path / "rank.log").open("w") as out, (tmp_path / "server.log").open("w") as log:
        rank, server, printer = (
            subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=to, stderr=to)
            for to in (out, log, out)
        )
        for name in ("rank.log", "server.log"):
            while not (tmp_path / name).stat().st_size:
                assert server.poll() is None and rank.poll() is None
        found = []
        for process in (server, printer):
            reader = WrittenReader(process.pid, beside=rank.pid)
            reader.find()
            found.append(reader.last())
        for process in (rank, server, printer):
            process.communicate()

    (fact,) = parsed(found[0])
    assert isinstance(fact, LastLines) and (fact.file, fact.pid) == ("server.log", server.pid)
    assert fact.lines == ("ERROR slot 7 is lost",) and found[1]["last"] == []


def test_own_files_of_a_rank_name_no_process(job: Job) -> None:
    reader = WrittenReader(job.process.pid)
    reader.find()

    assert {fact.pid for fact in parsed(reader.last()) if isinstance(fact, LastLines)} == {0}
