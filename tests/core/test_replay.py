"""Evidence from strangers: read, never run or unpacked; what is torn, foreign or hostile is said and does no
harm."""

from __future__ import annotations

import gzip
import io
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
from diag.engine.engine import Engine
from diag.engine.journal import SCHEMA, JournalWriter
from diag.engine.replay import replay, replay_records
from diag.model import Placement, Record
from diag.outputs.report import report
from diag.sources.host import cgroup, exits, proc, shm
from diag.sources.host import run as run_source
from diag.sources.logs.output import SOURCE as OUTPUT
from diag.sources.parsers import PARSERS
from diag.sources.stacks import pyspy
from diag.text.errors import DiagError

LOGS = Path(__file__).parents[1] / "captures" / "logs"


def story() -> list[Record]:
    """Rank 1 of two is killed."""
    made = [run_source.started(["torchrun", "train.py"], 10, "node0", 2)]
    made += [
        run_source.rank_found(Placement(r, r, 2, "node0", 20 + r, 5), "python train.py", {}) for r in (0, 1)
    ]
    made.append(
        Record(OUTPUT, {"stream": "stdout", "lines": [["[INFO:swift] The training of Epoch 0 starts...", 0]]})
    )
    made.append(Record("exits", {"pid": 21, "status": 9, "how": "pidfd"}, rank=1, host="node0"))
    made.append(run_source.ended(1, "node0"))
    return [Record(r.source, r.payload, r.rank, r.host, 1000.0 + n, 1000.0 + n) for n, r in enumerate(made)]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    journal = JournalWriter(folder)
    for record in story():
        journal.write(record)
    journal.close()
    return folder


def found_in(*paths: Path) -> list[str]:
    engine, _, _ = replay(list(paths))
    return [finding["id"] for finding in report(engine)["findings"]]


def member(name: str, data: bytes = b"", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    for field, value in fields.items():
        setattr(entry, field, value)
    return entry, data


def archive(path: Path, *members: tuple[tarfile.TarInfo, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for entry, data in members:
            tar.addfile(entry, io.BytesIO(data))
    return path


def journal_bytes(*lines: Any) -> bytes:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in ({"schema": SCHEMA}, *lines)]
    return gzip.compress("\n".join([*texts, ""]).encode())


# --- what it reads
# ---------------------------------------------------------------------------------------------


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

    assert [engine.job.worker_failures[-1][1].pid for engine in engines[:2]] == [20342, 20342]
    assert engines[2].job.iteration == 8
    assert json.loads(piped.stdout)["schema"] == "diag.report/1"


def test_pipe_of_another_program_is_read_once(tmp_path: Path) -> None:
    # given `diag replay <(zcat job.log.gz)`
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with subprocess.Popen(["cp", str(LOGS / "elastic_2.13.log"), str(fifo)]):
        engine, _, notes = replay([fifo])

    assert notes == []
    assert engine.job.worker_failures[-1][1].pid == 20342


def test_engine_alone_gives_what_the_files_give(run_dir: Path) -> None:
    _, changes = replay_records(story())

    assert [change.to_json() for change in changes] == [change.to_json() for change in replay([run_dir])[1]]


# --- what it cannot read
# ---------------------------------------------------------------------------------------


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
    with pytest.raises(DiagError, match=r"no bundle of diag|cannot be read"):
        replay([archive(tmp_path / "b.tar.gz", *members)])


# --- what is torn
# ----------------------------------------------------------------------------------------------


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


# --- what is hostile
# -------------------------------------------------------------------------------------------


def tree(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


def test_log_that_begins_with_zeros_is_a_log(tmp_path: Path) -> None:
    log = tmp_path / "job.log"  # logrotate's copytruncate leaves such while the program writes on
    log.write_bytes(
        b"\0" * 100_000 + b"\n[INFO:swift] Start time of running main: 2026-11-20 23:38:14.422170\n"
    )

    assert replay([log])[0].job.log_lines >= 1


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

    assert notes == ["1 lines of the journal are no records and were left out"]
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
    engine = Engine(PARSERS, make_detectors())

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
    engine = Engine(PARSERS, make_detectors())
    for at, record in enumerate(known[:-1]):
        engine.feed(Record(record.source, record.payload, record.rank, "n", 1000.0 + at, 1000.0 + at))

    # when that one comes, spoiled in every way
    record = made[number]
    for at, payload in enumerate(spoiled(json.loads(json.dumps(record.payload)))):
        engine.feed(Record(record.source, payload, record.rank, "n", 1100.0 + at, 1100.0 + at / 10))

    # then the report stands
    engine.finish()
    json.dumps(report(engine))
