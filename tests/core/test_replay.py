"""Evidence on disk, replayed: what is read, what is refused and why, what is torn."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.engine.engine import Engine
from diag.engine.journal import JournalWriter
from diag.engine.replay import replay, replay_records
from diag.text.errors import DiagError
from tests.evidence import LOGS, archive, found_in, journal_bytes, member, story


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    journal = JournalWriter(folder)
    for record in story():
        journal.write(record)
    journal.close()
    return folder


def failed_pid(engine: Engine) -> str:
    """As torchrun's log reports it."""
    died = next(finding for finding in engine.all_findings() if finding.id == "rank-died")
    return died.summary.partition(" ended")[0].removeprefix("rank 1 ")


# --- what it reads


def test_run_directory_bundle_and_journal_give_the_same(run_dir: Path, tmp_path: Path) -> None:
    segment = next(run_dir.glob("journal-*"))
    bundle = archive(tmp_path / "bundle.tar.gz", member(segment.name, segment.read_bytes()))
    plain = archive(tmp_path / "bundle.tar", member(segment.name, segment.read_bytes()), mode="w")

    assert found_in(run_dir) == found_in(bundle) == found_in(plain) == found_in(segment) == ["rank-died"]


def test_plain_logs_folder_packed_log_and_stdin_are_read_as_one_job(tmp_path: Path) -> None:
    log = LOGS / "elastic_2.13.log"
    packed = tmp_path / "job.log.gz"
    packed.write_bytes(gzip.compress(log.read_bytes()))

    engines = [replay([log])[0], replay([packed])[0], replay([LOGS])[0]]
    piped = subprocess.run(
        [sys.executable, "-m", "diag", "replay", "--json", "-"],
        input=log.read_bytes(),
        capture_output=True,
        timeout=60,
        check=False,
    )

    assert [failed_pid(engine) for engine in engines[:2]] == ["(pid 20342)", "(pid 20342)"]
    assert engines[2].job.iteration == 8
    assert json.loads(piped.stdout)["schema"] == "diag.report/1"


def test_pipe_of_another_program_is_read_once(tmp_path: Path) -> None:
    # given `diag replay <(zcat job.log.gz)`
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with subprocess.Popen(["cp", str(LOGS / "elastic_2.13.log"), str(fifo)]):
        engine, _, notes = replay([fifo])

    assert notes == []
    assert failed_pid(engine) == "(pid 20342)"


def test_engine_alone_gives_what_the_files_give(run_dir: Path) -> None:
    _, changes = replay_records(story())

    assert [change.to_json() for change in changes] == [change.to_json() for change in replay([run_dir])[1]]


# --- what it cannot read


def test_path_that_is_nothing_is_said(tmp_path: Path) -> None:
    with pytest.raises(DiagError, match="does not exist") as error:
        replay([tmp_path / "gone"])
    assert error.value.exit_code == 2
    with pytest.raises(DiagError, match="no journal, no logs"):
        replay([tmp_path])


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
@pytest.mark.parametrize("name", ["job.log", "bundle.tar.gz", "journal-000001.jsonl.gz"])
def test_file_of_somebody_else_is_said(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    (tmp_path / name).chmod(0)

    with pytest.raises(DiagError, match="Permission denied"):
        replay([tmp_path / name])


def test_run_of_another_diag_is_refused_with_what_to_do(run_dir: Path) -> None:
    (run_dir / "run.json").write_text('{"schema": "diag.run/9"}')

    with pytest.raises(DiagError, match=r"diag\.run/9"):
        replay([run_dir])


def test_bundle_with_a_journal_of_another_schema_is_refused(tmp_path: Path) -> None:
    data = gzip.compress(b'{"schema": "diag.journal/9"}\n')

    with pytest.raises(DiagError, match=r"diag\.journal/9"):
        replay([archive(tmp_path / "b.tar.gz", member("journal-000001.jsonl.gz", data))])


@pytest.mark.parametrize(
    "members",
    [
        [],
        [member("dump.json", b"{}")],
        [member("x/journal-000001.jsonl.gz", journal_bytes())],
        [member("journal-1", b"")],
    ],
)
def test_archive_without_a_journal_is_no_bundle(
    tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]]
) -> None:
    with pytest.raises(DiagError, match=r"not a diag bundle|cannot be read"):
        replay([archive(tmp_path / "b.tar.gz", *members)])


# --- what is torn


def test_bundle_torn_anywhere_gives_what_came_before_and_a_note(run_dir: Path, tmp_path: Path) -> None:
    segment = next(run_dir.glob("journal-*"))
    whole = archive(tmp_path / "whole.tar", member(segment.name, segment.read_bytes()), mode="w").read_bytes()
    packed = archive(tmp_path / "whole.tar.gz", member(segment.name, segment.read_bytes())).read_bytes()
    torn = tmp_path / "torn.tar.gz"

    for data in (whole, packed):
        for cut in [*range(0, 1600, 97), *range(1600, len(data), 613)]:
            torn.write_bytes(data[:cut])
            try:
                replay([torn])
            except DiagError:
                pass  # too little is left to say what it was


def test_torn_journal_gives_what_came_before_and_a_note(run_dir: Path) -> None:
    segment = next(run_dir.glob("journal-*"))
    segment.write_bytes(segment.read_bytes()[:-20])

    engine, _, notes = replay([run_dir])

    assert notes and engine.records >= 0


@settings(max_examples=60, deadline=None)
@given(position=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_bundle_with_a_wrong_byte_raises_nothing_but_our_own(
    tmp_path_factory: pytest.TempPathFactory, position: int, byte: int
) -> None:
    folder = tmp_path_factory.mktemp("b")
    lines = [record.to_json() for record in story()]
    data = bytearray(
        archive(
            folder / "b.tar", member("journal-000001.jsonl.gz", journal_bytes(*lines)), mode="w"
        ).read_bytes()
    )
    data[position % len(data)] = byte
    (folder / "b.tar").write_bytes(data)

    try:
        replay([folder / "b.tar"])
    except DiagError:
        pass
