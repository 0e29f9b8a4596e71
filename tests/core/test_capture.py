"""The journal: readable while written, bounded, tolerant of a torn tail, refusing what it does not know."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.engine.journal import SCHEMA, JournalReader, JournalWriter, segments, whole
from diag.model import Record
from diag.text.errors import DiagError


def record(number: int, size: int = 10) -> Record:
    return Record(
        "output",
        {"stream": "stdout", "lines": [["x" * size, 0]]},
        at=float(number),
        rank=number % 8,
        host="node-0",
    )


def read(directory: Path) -> list[Record]:
    return list(JournalReader(segments(directory)))


def test_what_was_flushed_is_read_while_the_journal_is_still_open(tmp_path: Path) -> None:
    journal = JournalWriter(tmp_path)
    for number in range(5):
        journal.write(record(number))

    journal.flush()

    assert read(tmp_path) == [record(number) for number in range(5)]
    journal.close()


def test_cut_at_any_byte_gives_a_prefix_and_a_note(tmp_path: Path) -> None:
    journal = JournalWriter(tmp_path)
    for number in range(50):
        journal.write(record(number))
        journal.flush()
    journal.close()
    all_of_it = segments(tmp_path)[0].read_bytes()
    wanted = [record(number) for number in range(50)]

    for cut in random.Random(1).sample(range(len(all_of_it)), 60):
        segments(tmp_path)[0].write_bytes(all_of_it[:cut])
        assert read(tmp_path) == wanted[: len(read(tmp_path))]


def test_torn_last_line_is_noted_and_the_rest_is_used(tmp_path: Path) -> None:
    path = tmp_path / "journal-000001.jsonl.gz"
    lines = json.dumps({"schema": SCHEMA}) + "\n" + json.dumps(record(1).to_json()) + "\n" + '{"at": 2, "sou'
    path.write_bytes(gzip.compress(lines.encode()))
    reader = JournalReader([path])

    assert list(reader) == [record(1)]
    assert reader.notes.torn == 1


def test_journal_stays_within_its_bound_and_keeps_beginning_and_end(tmp_path: Path) -> None:
    noise = random.Random(0)
    journal = JournalWriter(tmp_path, max_bytes=1 << 20, segment_bytes=1 << 17)

    for number in range(3000):
        journal.write(
            Record("output", {"stream": "s", "lines": [[noise.randbytes(500).hex(), 0]]}, at=float(number))
        )
    journal.close()

    assert sum(path.stat().st_size for path in segments(tmp_path)) <= (1 << 20) + (1 << 17)
    times = [item.at for item in read(tmp_path)]
    assert times[0] == 0.0 and times[-1] == 2999.0 and len(times) < 3000


def test_disk_that_refuses_ends_the_journal_once_and_raises_nothing(tmp_path: Path) -> None:
    journal = JournalWriter(tmp_path / "gone")

    assert "No such file" in (journal.write(record(1)) or "")
    assert journal.write(record(2)) is None
    journal.flush()
    journal.close()


def test_journal_of_another_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "journal-000001.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"schema": "diag.journal/9"}\n'))

    with pytest.raises(DiagError, match=r"diag\.journal/9") as error:
        list(JournalReader([path]))
    assert "version" in error.value.hint


@settings(max_examples=100, deadline=None)
@given(junk=st.binary(max_size=400))
def test_garbage_is_no_record_and_raises_nothing(
    tmp_path_factory: pytest.TempPathFactory, junk: bytes
) -> None:
    path = tmp_path_factory.mktemp("j") / "journal-000001.jsonl.gz"
    path.write_bytes(
        gzip.compress(
            json.dumps({"schema": SCHEMA}).encode()
            + b"\n"
            + junk
            + b"\n"
            + json.dumps(record(3).to_json()).encode()
            + b"\n"
        )
    )

    found = list(JournalReader([path]))

    assert found[-1] == record(3)


@settings(max_examples=50, deadline=None)
@given(
    payload=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    )
)
def test_any_json_payload_comes_back(tmp_path_factory: pytest.TempPathFactory, payload: Any) -> None:
    directory = tmp_path_factory.mktemp("j")
    journal = JournalWriter(directory)
    given_record = Record("x", payload, at=1.5, emitted=2.5)
    journal.write(given_record)
    journal.close()

    back = read(directory)

    if all(ord(char) not in range(0xD800, 0xE000) for char in json.dumps(payload, ensure_ascii=False)):
        assert back == [given_record]
    assert len(back) == 1


def test_bomb_is_unpacked_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "journal-000001.jsonl.gz"
    with gzip.open(path, "wb") as file:
        for _ in range(100):
            file.write(b"\0" * (1 << 20))
    before = _peak_kib()

    list(JournalReader([path]))

    assert _peak_kib() - before < 400 << 10


def _peak_kib() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_read_only_directory_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)

    assert JournalWriter(tmp_path).write(record(1)) is not None


@pytest.fixture(scope="module")
def growing(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A segment as its writer leaves it on disk, closed at the end: text that packs badly, flushed now and
    then."""
    folder = tmp_path_factory.mktemp("growing")
    journal, random_ = JournalWriter(folder), random.Random(7)
    for number in range(300):
        noise = "".join(random_.choices("abcdefghij 0123456789", k=random_.randrange(400)))
        journal.write(
            Record(
                "output", {"stream": "stdout", "lines": [[noise, 0]]}, at=float(number), rank=0, host="node-0"
            )
        )
        if random_.random() < 0.2:
            journal.flush()
    journal.close()
    return segments(folder)[0].read_bytes()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_segment_that_grows_or_whose_writer_was_killed_is_made_a_whole_file(
    growing: bytes, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(growing)))

    kept, end = whole(io.BytesIO(growing), cut)
    made = gzip.decompress(growing[:kept] + end)  # raises for what is not whole

    assert kept <= cut and gzip.decompress(growing).startswith(made)
    assert cut - kept <= 40_000  # a flush comes after 32 KiB at the latest


def test_segment_that_was_closed_is_left_as_it_is(growing: bytes) -> None:
    assert whole(io.BytesIO(growing), len(growing)) == (len(growing), b"")


def test_packed_bytes_that_look_like_the_end_of_a_flush_do_not_mislead() -> None:
    packed = zlib.compressobj(6, zlib.DEFLATED, 31)
    real = packed.compress(b"one line\n") + packed.flush(zlib.Z_SYNC_FLUSH)
    false = packed.compress(b"two\n") + b"\x00\x00\xff\xff"  # not what zlib writes here

    kept, end = whole(io.BytesIO(real + false), len(real + false))

    assert gzip.decompress((real + false)[:kept] + end) == b"one line\n"
