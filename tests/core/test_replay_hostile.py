"""Hostile evidence: archives, headers, lines and payloads of strangers raise nothing and take no memory."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.detectors import make_detectors
from diag.detectors.precedence import PRECEDENCE
from diag.engine.engine import Engine
from diag.engine.replay import replay
from diag.model import Placement, Record
from diag.outputs.report import report
from diag.sources.host import cgroup, exits, proc, shm
from diag.sources.host import run as run_source
from diag.sources.parsers import PARSERS
from diag.sources.stacks import pyspy
from diag.text.errors import DiagError
from tests.evidence import LOGS, archive, found_in, journal_bytes, member, story

# --- what is hostile


def tree(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


def test_log_that_begins_with_zeros_is_a_log(tmp_path: Path) -> None:
    log = tmp_path / "job.log"  # logrotate's copytruncate leaves such while the program writes on
    log.write_bytes(
        b"\0" * 100_000 + b"\n[INFO:swift] Start time of running main: 2026-11-20 23:38:14.422170\n"
    )

    assert replay([log])[0].job.log.lines >= 1


def test_no_member_of_an_archive_touches_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given an archive that would write everywhere, and a journal
    monkeypatch.chdir(tmp_path)
    bundle = archive(
        tmp_path / "b.tar.gz",
        member("/tmp/journal-evil.jsonl.gz", b"x"),
        member("../journal-evil.jsonl.gz", b"x"),
        member("journal-..//evil.jsonl.gz", b"x"),
        member("journal-000000.jsonl.gz", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        member("journal-000002.jsonl.gz", type=tarfile.LNKTYPE, linkname="/etc/passwd"),
        member("journal-000003.jsonl.gz", type=tarfile.FIFOTYPE),
        member("journal-000004.jsonl.gz", type=tarfile.CHRTYPE, devmajor=1, devminor=5),
        member("journal-000005.jsonl.gz/", type=tarfile.DIRTYPE),
        member("journal-000001.jsonl.gz", journal_bytes(*[record.to_json() for record in story()])),
    )
    before = tree(tmp_path)

    # when it is replayed
    found = found_in(bundle)

    # then the journal was read, and the folder is as it was
    assert found == ["rank-died"]
    assert tree(tmp_path) == before


def header_of(kind: bytes, size: int) -> bytes:
    entry = tarfile.TarInfo("././@LongLink")
    entry.type, entry.size = kind, size
    return entry.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize(
    "kind", [tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE]
)
def test_header_of_a_gigabyte_is_not_taken_into_memory(tmp_path: Path, kind: bytes) -> None:
    # given 1 MB that unpacks to a name of 1 GB
    bomb = tmp_path / "b.tar.gz"
    with gzip.open(bomb, "wb", compresslevel=1) as file:
        file.write(header_of(kind, 1 << 30))
        for _ in range(64):
            file.write(b"\0" * (1 << 20))
    words = [sys.executable, "-m", "diag", "replay", str(bomb)]

    # when it is replayed with less memory than that
    done = subprocess.run(
        ["sh", "-c", 'ulimit -v 700000; exec "$@"', "sh", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    # then it is refused in a line
    assert "MemoryError" not in done.stderr and "Traceback" not in done.stderr
    assert done.returncode in (0, 1, 2)


def test_member_that_claims_to_be_endless_is_read_to_its_first_nonsense(tmp_path: Path) -> None:
    header = tarfile.TarInfo("journal-000001.jsonl.gz")
    header.size = 1 << 40
    (tmp_path / "b.tar").write_bytes(header.tobuf(tarfile.GNU_FORMAT) + b"\0" * 10240)

    began = time.monotonic()
    try:
        replay([tmp_path / "b.tar"])
    except DiagError:
        pass

    assert time.monotonic() - began < 5


def test_archive_of_very_many_members_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(DiagError, match="more than 10000 members"):
        replay([archive(tmp_path / "b.tar", *(member(f"m{number}") for number in range(10_002)), mode="w")])


@pytest.mark.parametrize(
    "line",
    [
        '{"at": 1e300, "source": "run", "payload": 1}',
        '{"at": Infinity, "source": "run", "payload": 1}',
        '{"at": NaN, "source": "run", "payload": 1}',
        '{"at": -5, "source": "run", "payload": 1}',
        '{"at": "5", "source": "run", "payload": 1}',
        '{"at": 5, "source": "run", "payload": 1, "rank": Infinity}',
        '{"at": 5, "source": "run", "payload": 1, "rank": -1}',
        '{"at": 5, "source": "run", "payload": 1, "rank": "x"}',
        '{"at": 5, "source": "run", "payload": 1, "emitted": NaN}',
        '{"at": 5, "source": "run"}',
        "[" * 50_000,
        "5",
        "null",
        "[]",
    ],
)
def test_line_that_is_no_record_is_left_out_and_counted(tmp_path: Path, line: str) -> None:
    path = tmp_path / "journal-000001.jsonl.gz"
    path.write_bytes(journal_bytes(line, *[record.to_json() for record in story()]))

    engine, _, notes = replay([path])

    assert notes == ["1 journal lines are not records and were skipped"]
    assert engine.records == len(story())


def test_time_that_jumps_by_years_costs_no_check_for_each_second(tmp_path: Path) -> None:
    path = tmp_path / "journal-000001.jsonl.gz"
    path.write_bytes(
        journal_bytes(*[{"at": at, "source": "x", "payload": 1} for at in (1.0, 9e10, 2.0, 1e11)])
    )

    began = time.monotonic()
    replay([path])

    assert time.monotonic() - began < 5


# Keys that the parsers look for, so that fuzzing reaches behind their first checks.
KEYS = st.sampled_from(
    [
        "pid",
        "event",
        "placement",
        "argv",
        "env",
        "command",
        "distributed",
        "returncode",
        "signal",
        "source",
        "reason",
        "remedy",
        "world_size",
        "rank",
        "local_rank",
        "host",
        "start_ticks",
        "lines",
        "stream",
        "stdout",
        "frames",
        "name",
        "filename",
        "line",
        "thread_name",
        "thread_id",
        "os_thread_id",
        "parent_pid",
        "failed",
        "stderr",
        "access",
        "text",
        "detail",
        "status",
        "how",
        "levels",
        "path",
        "version",
        "meminfo",
        "vmstat",
        "view",
        "missing",
        "frsize",
        "blocks",
        "bavail",
        "gpus",
        "uuid",
        "index",
        "hz",
        "page",
        "stat",
        "io",
        "wchan",
        "main_stat",
        "fds",
        "children",
        "limits",
        "current",
        "limit",
        "peak",
        "events",
    ]
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 300)
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        [
            2**70,
            "started",
            "ended",
            "rank",
            "failed",
            "interrupted",
            "works",
            "denied",
            "gone",
            "7 (a) S 1 1",
            "max",
            "inf",
            "9" * 5000,
        ]
    )
)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=20,
)
PAYLOADS = JSON | st.dictionaries(KEYS, JSON, max_size=10)


@settings(max_examples=250, deadline=None)
@given(
    records=st.lists(
        st.builds(
            lambda source, payload, rank: Record(source, payload, rank=rank, at=2000.0, emitted=1.0),
            st.sampled_from(sorted(PARSERS)),
            PAYLOADS,
            st.none() | st.integers(0, 2),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_no_record_of_a_stranger_raises(records: list[Record]) -> None:
    engine = Engine(PARSERS, make_detectors(), PRECEDENCE)

    for record in [*story(), *records]:
        engine.feed(record)
    engine.advance(2100.0)
    engine.finish()

    json.dumps(report(engine))


JUNK: tuple[Any, ...] = (
    None,
    True,
    -1,
    2**70,
    0.5,
    float("inf"),
    float("nan"),
    "x",
    "9" * 5000,
    [],
    [None],
    {},
    {"x": None},
)


def spoiled(value: Any) -> Iterator[Any]:
    """The value with one part of it replaced by junk: each part, by each junk. Of lists the first two items."""
    yield from JUNK
    if isinstance(value, dict):
        for key in value:
            yield {name: part for name, part in value.items() if name != key}
            for part in spoiled(value[key]):
                yield {**value, key: part}
    if isinstance(value, list):
        for index in range(min(2, len(value))):
            for part in spoiled(value[index]):
                yield [*value[:index], part, *value[index + 1 :]]


def readings() -> list[Record]:
    """One of each source, of this very process."""
    pid = os.getpid()
    reader, group = proc.ProcessReader(pid), cgroup.CgroupReader(pid)
    stack = json.loads((LOGS.parent / "stacks" / "data_hang_rank1.json").read_text())
    made = [
        run_source.started(["torchrun", "train.py"], 10, "node0", 2),
        run_source.rank_found(Placement(0, 0, 2, "n", pid), "python", {"RANK": "0"}),
        Record(proc.SOURCE, reader.sample(detail=True), rank=0),
        Record(proc.SOURCE, reader.limits(), rank=0),
        Record(cgroup.SOURCE, group.sample(), rank=0),
        Record(shm.SOURCE, shm.read(pid), rank=0),
        Record(pyspy.SOURCE, {"pid": pid, "stdout": stack}, rank=0),
        Record(
            pyspy.SOURCE,
            {"pid": pid, "failed": "denied", "stderr": "x", "access": {"uid": 0, "our_uid": 0}},
            rank=0,
        ),
        Record(exits.SOURCE, {"pid": pid, "status": 256, "how": "pidfd"}, rank=0),
        run_source.failed("gpu", "no driver", rank=0),
        run_source.ended(1, "node0"),
    ]
    group.close()
    return made


@pytest.mark.parametrize("number", range(11))
def test_real_reading_with_any_part_spoiled_raises_nothing(number: int) -> None:
    # given a job of which one reading of each kind is known, but one
    made = readings()
    known = [record for index, record in enumerate(made) if index != number]
    engine = Engine(PARSERS, make_detectors(), PRECEDENCE)
    for at, record in enumerate(known[:-1]):
        engine.feed(Record(record.source, record.payload, record.rank, "n", 1000.0 + at, 1000.0 + at))

    # when that one comes, spoiled in every way
    record = made[number]
    for at, payload in enumerate(spoiled(json.loads(json.dumps(record.payload)))):
        engine.feed(Record(record.source, payload, record.rank, "n", 1100.0 + at, 1100.0 + at / 10))

    # then the report stands
    engine.finish()
    json.dumps(report(engine))
