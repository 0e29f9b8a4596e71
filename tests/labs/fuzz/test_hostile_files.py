"""Files that were made to hurt whoever opens them: bombs, links, pickles that call, numbers and depths beyond
reason.

What archives hold as members is in tests/core/test_replay_hostile.py, recorders' pickles in
tests/sources/test_flight_recorder.py.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import pickle
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from diag.engine.journal import SCHEMA
from diag.engine.replay import replay
from diag.model import Record
from diag.outputs.report import report
from diag.sources.collectives import plain_pickle
from diag.sources.parsers import PARSERS
from diag.sources.storage import checkpoint
from diag.text.errors import DiagError

GIB = 1 << 30
_CHUNK = b"\0" * (1 << 20)
# The command, then its peak of memory: of the process that `diag` runs in and no other.
_MEASURED = """
import re, sys
from pathlib import Path
from diag.cli.main import main
try:
    code = main(sys.argv[1:])
finally:
    # Not ru_maxrss: it begins at what the process had that started this one.
    print("PEAK", int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) >> 10, file=sys.stderr)
sys.exit(code)
"""


def measured(*words: object, seconds: float = 60.0, feed: bytes | None = None) -> tuple[int, str, int]:
    """Exit code, what was printed, and the peak in MiB of `diag WORDS`."""
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, *map(str, words)],
        capture_output=True,
        timeout=seconds,
        check=False,
        input=feed,
    )
    said = (done.stdout + done.stderr).decode("utf-8", "replace")
    return done.returncode, said, int(said.rpartition("PEAK ")[2].split()[0])


# --- bombs
# -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gigabyte(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gigabyte of zeros behind the header of a journal, as gzip: 1 MB. Parts of gzip may follow each other."""
    place = tmp_path_factory.mktemp("bomb") / "journal-000001.jsonl.gz"
    part = 32 << 20
    place.write_bytes(
        gzip.compress(json.dumps({"schema": SCHEMA}).encode() + b"\n")
        + gzip.compress(bytes(part)) * (GIB // part)
    )
    return place


def bundled(bomb: Path, into: Path) -> Path:
    with tarfile.open(into, "w") as tar:
        tar.add(bomb, bomb.name)
    return into


@pytest.mark.parametrize("form", ["run directory", "bundle", "log"])
def test_gigabyte_of_zeros_in_a_packed_file_is_read_in_pieces(
    form: str, gigabyte: Path, tmp_path: Path
) -> None:
    (tmp_path / "log").mkdir()
    target = gigabyte.parent
    if form == "bundle":
        target = bundled(gigabyte, tmp_path / "b.tar")
    elif form == "log":
        target = tmp_path / "log" / "rank0.log.gz"
        target.symlink_to(gigabyte)

    code, said, peak = measured("replay", "--json", target)

    assert code in (0, 1, 2) and "Traceback" not in said
    assert peak < 700, f"{peak} MiB"


def test_log_of_one_line_of_a_gigabyte_costs_no_gigabyte(tmp_path: Path) -> None:
    # given a line without an end, of which the file has no blocks, before a line that tells something
    log = tmp_path / "job.log"
    with log.open("wb") as file:
        file.truncate(GIB)
        file.seek(0, os.SEEK_END)
        file.write(b"\n[INFO:swift] Start time of running main: 2026-11-20 23:38:14.422170\n")

    code, said, peak = measured("replay", "--json", log)

    assert code == 0 and '"schema": "diag.report/1"' in said
    assert peak < 400, f"{peak} MiB"


@pytest.mark.parametrize("name", ["b.zip", "b.tar.zst", "b.log.zst"])
def test_packing_that_diag_does_not_read_is_not_unpacked(name: str, tmp_path: Path) -> None:
    bomb = tmp_path / name
    if name == "b.zip":
        with (
            zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as packed,
            packed.open("journal-000001.jsonl.gz", "w", force_zip64=True) as file,
        ):
            for _ in range(200):
                file.write(_CHUNK)
    else:  # frames of zstd that each stand for 128 KiB of zeros (RFC 8878: magic, header, RLE block)
        frame = (
            b"\x28\xb5\x2f\xfd\xa0\x00\x00\x02\x00"
            + ((1 << 17) << 3 | 2 | 1).to_bytes(4, "little")[:3]
            + b"\0"
        )
        bomb.write_bytes(frame * 8192)

    _, said, peak = measured("replay", bomb)

    assert "Traceback" not in said
    assert peak < 300, f"{peak} MiB"


# --- links
# -------------------------------------------------------------------------------------------------------


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of ours, that a line of a log could quote."""
    place = tmp_path / "home" / "secret.log"
    place.parent.mkdir()
    place.write_text("[rank0]: RuntimeError: the password is hunter2\n")
    return place


def test_links_of_a_folder_that_lead_out_of_it_are_not_followed(secret: Path, tmp_path: Path) -> None:
    # given a folder as a stranger packed it: links to a file of ours, to a device, to themselves; and one log
    folder = tmp_path / "evidence"
    folder.mkdir()
    for name, target in {
        "rank0.log": str(secret),
        "rank1.log": "../home/secret.log",
        "rank2.log": "rank2.log",
        "rank3.log": "/dev/zero",
        "pyspy_rank0.txt": "/etc/passwd",
        "meta.json": "/proc/self/environ",
        "fr_trace_0": "..",
        "journal-000001.jsonl.gz": str(secret),
    }.items():
        (folder / name).symlink_to(target)
    (folder / "job.log").write_text("[INFO:swift] Start time of running main: 2026-11-20 23:38:14.422170\n")
    (folder / "rank5.log").symlink_to("job.log")

    # when it is replayed
    engine, _, notes = replay([folder])

    # then nothing of ours is in the report, the log is, and it is told
    text = json.dumps(report(engine))
    assert "hunter2" not in text and "root:" not in text
    assert engine.job.log.lines >= 1
    told = next(note for note in notes if "links out of" in note)
    assert "rank0.log" in told and "rank3.log" in told and "rank5.log" not in told


def test_folder_of_links_alone_holds_nothing(secret: Path, tmp_path: Path) -> None:
    folder = tmp_path / "evidence"
    folder.mkdir()
    (folder / "rank0.log").symlink_to(secret)
    (folder / "journal-000001.jsonl.gz").symlink_to(secret)

    with pytest.raises(DiagError, match="holds nothing that diag can replay"):
        replay([folder])


def test_log_that_is_given_by_itself_may_be_a_link(secret: Path, tmp_path: Path) -> None:
    (tmp_path / "latest.log").symlink_to(secret)

    assert replay([tmp_path / "latest.log"])[0].job.log.lines == 1


# --- pickles
# -----------------------------------------------------------------------------------------------------


class Calls:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "name", [".metadata", "common.pt", "mp_rank_00/model_optim_rng.pt", "rng_state.pth", "training_args.bin"]
)
def test_pickles_of_a_checkpoint_are_never_run(name: str, protocol: int, tmp_path: Path) -> None:
    # given a checkpoint of a stranger, with a call and with megatron's own argparse.Namespace in it
    mark, folder = tmp_path / "was-here", tmp_path / "save" / "iter_0000005"
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_bytes(pickle.dumps({"args": argparse.Namespace(tp=2), "x": Calls(mark)}, protocol))
    (folder / "__0_0.distcp").write_bytes(b"x")
    (tmp_path / "save" / "latest_checkpointed_iteration.txt").write_text("5")

    payload = checkpoint.CheckpointReader(str(tmp_path / "save"), "load").sample()
    facts = list(
        PARSERS[checkpoint.SOURCE](Record(checkpoint.SOURCE, json.loads(json.dumps(payload)), at=1.0))
    )

    assert facts and payload["folders"]
    assert not mark.exists()


@pytest.mark.parametrize(
    "made",
    [argparse.Namespace(tp=2), Calls(Path("/tmp/x")), {1: frozenset([2])}, range(3), Path("/"), 1j, b"x" * 9],
)
@pytest.mark.parametrize("protocol", range(6))
def test_reader_of_plain_pickles_makes_no_objects(made: Any, protocol: int) -> None:
    with pytest.raises(ValueError, match="plain data"):
        plain_pickle.loads(pickle.dumps({"entries": [made]}, protocol))


@pytest.mark.parametrize(
    "data",
    [b"\x80\x02G?\xf0.", b"\x80\x02M\x01", b"\x80\x02J\x01\x02", b"\x80\x04X\x01", b"\x80\x04\x95\x00"],
)
def test_pickle_that_ends_within_a_number_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="plain data"):
        plain_pickle.loads(data)


# --- depth, numbers, characters
# ------------------------------------------------------------------------------------

ODD: dict[str, bytes] = {
    "deep": b"[" * 100_000,
    "deep and closed": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "huge number": b'{"pid": ' + b"9" * 100_001 + b"}",
    "no number": b'{"schema": NaN, "pid": Infinity}',
    "NUL": b"\0" * 5000,
    "half a pair": b'{"schema": "\\ud800"}',
    "no UTF-8": b"\xff\xfe{\x80}",
    "a list": b"[]",
    "a number": b"1e999",
    "nothing": b"",
}
NAMES = (
    "pyspy_rank0.json",
    "fr_trace_0",
    "nvml.jsonl",
    "meta.json",
    "ras.json",
    "rank0.log",
    "proc_stat_rank0",
    "dmesg.txt",
)


@pytest.mark.parametrize("odd", ODD)
def test_folder_of_odd_files_is_read_or_refused_in_a_line(odd: str, tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / name).write_bytes(ODD[odd])
    (tmp_path / "run.json").write_bytes(ODD[odd])

    try:
        engine, _, _ = replay([tmp_path])
    except DiagError:
        return
    assert report(engine)["findings"] == []


@pytest.mark.parametrize(
    "words",
    [
        ["replay", "WORD"],
        ["dump", "--run-dir", "WORD"],
        ["top", "WORD"],
        ["rules", "test", "WORD"],
        ["explain", "WORD"],
        ["flame", "0", "--from", "WORD"],
        ["WORD"],
    ],
)
@pytest.mark.parametrize(
    "word", ["\x1b[2J\x1b]52;c;aGk=\x07.tar", "\x9b31m\x07", "\u202e\u2066txt.exe", "half\udcff"]
)
def test_error_about_a_name_moves_no_cursor(
    words: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from diag.cli.main import main

    try:
        code = main([word if one == "WORD" else one for one in words])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 2
    said = capsys.readouterr()

    assert code in (1, 2) and said.err
    assert not set("\x1b\x9b\x07\u202e\u2066") & set(said.err + said.out)


def test_name_of_a_file_in_a_folder_is_shown_without_what_it_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from diag.cli.main import main

    (tmp_path / "job.log").write_text("[INFO:swift] Start time of running main: 2026-11-20 23:38:14.422170\n")
    (tmp_path / "\x1b[2Jx\x9b.bin").write_bytes(b"?")
    (tmp_path / "pyspy_rank0\x1b]0;t\x07.json").write_bytes(b'[{"frames": 1, "thread_id": 2}')

    main(["replay", str(tmp_path)])

    said = capsys.readouterr()
    assert "not used" in said.err
    assert not set("\x1b\x9b\x07") & set(said.err + said.out)


# --- time
# --------------------------------------------------------------------------------------------------------

COSTLY_LINES = {
    "oom": "[rank{n}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total\n",
    "errors": "[rank{n}]: RuntimeError: number {n}\n",
    "frames": '[rank0]:   File "/app/a{n}.py", line {n}, in f{n}\n[rank0]:     f()\n',
    "ranks": "node:{n}:{n} [0] NCCL INFO ncclCommInitRank comm 0x{n:x} rank {n} nranks 300000 cudaDev 0 nvmlDev 0 busId 1000 "
    "commId 0x1 - Init START\n",
    "secrets": "see https://me:pw{n}@host/ password=abc{n}def Authorization: Bearer t{n}aaaaaaaa\n",
    "empty": "\n",
}


@pytest.mark.parametrize("kind", COSTLY_LINES)
def test_time_of_a_hostile_log_grows_in_proportion_and_not_faster(kind: str, tmp_path: Path) -> None:
    def seconds(count: int) -> float:
        log = tmp_path / f"{count}.log"
        log.write_text(
            "Traceback (most recent call last):\n"
            + "".join(COSTLY_LINES[kind].format(n=n) for n in range(count))
        )
        began = time.process_time()
        replay([log])
        return time.process_time() - began

    seconds(500)  # what is imported and compiled once
    few, many = seconds(1_500), seconds(9_000)

    assert many < 6 * few * 2.5 + 1.0  # in the square of the lines it would be 36 times
