"""What fuzzing found in readers: the smallest input of each."""

from __future__ import annotations

import gzip
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from diag.agent.cluster.roster import checked
from diag.agent.samplers.kernel import KmsgLines
from diag.engine.importers.pyspy_text import threads_of_text
from diag.engine.journal import SCHEMA, JournalReader
from diag.model import Record
from diag.model.observations import CheckpointFolder, Unparsed
from diag.sources.host import shm, slurm
from diag.sources.parsers import PARSERS
from diag.sources.storage import checkpoint, disk
from diag.state.gpustate import device_of
from tests.labs.fuzz.targets.base import told

HUGE = 10**400
FOLDER = {
    "name": "checkpoint-5",
    "changed": 1.0,
    "count": 1,
    "bytes": 2,
    "empty": 0,
    "files": [["a.safetensors", 2]],
    "heads": {},
}


def save(**changed: Any) -> Record:
    payload = {
        "root": "/save",
        "role": "save",
        "flag": "",
        "exists": True,
        "tracker": None,
        "folders": [{**FOLDER, **changed}],
    }
    return Record(checkpoint.SOURCE, payload, None, "node0", 1010.0, 1010.0)


@pytest.mark.parametrize("name", ["changed", "count", "bytes", "empty"])
def test_folder_of_a_checkpoint_with_a_number_beyond_any_disk_is_left_out(name: str) -> None:
    told([save(**{name: HUGE})])

    facts = list(PARSERS[checkpoint.SOURCE](save(**{name: HUGE})))
    assert not any(
        isinstance(folder, CheckpointFolder) for fact in facts for folder in getattr(fact, "folders", ())
    )
    assert any(getattr(fact, "folders", ()) for fact in PARSERS[checkpoint.SOURCE](save()))


@pytest.mark.parametrize("name", ["frsize", "blocks", "bavail"])
def test_shared_memory_of_impossible_size_is_not_understood(name: str) -> None:
    payload = {"view": "rank", "frsize": 4096, "blocks": 100, "bavail": 50, name: HUGE}
    record = Record(shm.SOURCE, payload, 0, "node0", 1010.0, 1010.0)

    assert [type(fact) for fact in PARSERS[shm.SOURCE](record)] == [Unparsed]
    told([record])


def test_kernel_line_with_a_time_of_thousands_of_digits_is_a_line_without_one() -> None:
    (line,) = KmsgLines().take(
        b"3,561," + b"9" * 5000 + b",-;Out of memory: Killed process 216 (python3) total-vm:1kB\n"
    )

    assert line.startswith("[    0.000000] Out of memory")


def test_pid_of_thousands_of_digits_is_none_of_slurms() -> None:
    lines = f"{'9' * 5000} 2 0 0 0\n7 2 {'1' * 5000} 0 0\n25630 2 0 1 0\n"

    assert [task.pid for task in slurm.parse_pids(lines)] == [25630]


def test_line_longer_than_any_of_ours_is_passed_over_whole_and_counted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(JournalReader, "MAX_LINE", 1 << 20)
    good = json.dumps({"at": 1.0, "source": "x", "payload": 1})
    text = "\n".join([json.dumps({"schema": SCHEMA}), good, "a" * (20 << 20), good, ""])
    reader = JournalReader([])

    found = list(reader.read(io.BytesIO(gzip.compress(text.encode(), 1)), "journal"))

    assert len(found) == 2
    assert (reader.notes.bad_lines, reader.notes.torn) == (1, 0)


def test_run_file_that_holds_anything_is_refused_in_a_line(tmp_path: Path) -> None:
    from diag.launch.runs import read_run
    from diag.text.errors import DiagError

    for content in (b"\xff", b"[", b"[" * 100_000, b"9" * 5000, b"null", b'{"schema": 5}'):
        (tmp_path / "run.json").write_bytes(content)
        with pytest.raises(DiagError):
            read_run(str(tmp_path))


def test_run_file_without_an_end_is_not_read(tmp_path: Path) -> None:
    """`diag replay` of a folder with a link to a device under this name took all memory of the machine."""
    from diag.launch.runs import read_run
    from diag.text.errors import DiagError

    run = tmp_path / "run.json"
    for make in (
        lambda: run.symlink_to("/dev/zero"),
        lambda: os.mkfifo(run),
        lambda: (run.touch(), os.truncate(run, 1 << 40)),
    ):
        make()
        with pytest.raises(DiagError, match=r"cannot be read"):
            read_run(str(tmp_path))
        run.unlink()


def test_kernel_table_with_pages_of_thousands_of_digits_is_passed_over() -> None:
    lines = KmsgLines()
    lines.take(
        b"4,450,1,-;python3 invoked oom-killer: gfp_mask=0x140dca(GFP_HIGHUSER_MOVABLE), order=0, oom_score_adj=0\n"
    )

    assert (
        lines.take(
            b"6,3,3,-;[   216]     0   216   "
            + b"9" * 5000
            + b"    "
            + b"9" * 5000
            + b"   1   0   0 python3\n"
        )
        == []
    )


def test_thread_id_with_a_leading_zero_is_a_number() -> None:
    read = threads_of_text('Process 1: python\nThread 01674 (idle): "MainThread"\n    main (a.py:1)\n')

    assert read is not None and read[1][0]["thread_id"] == 1674


def test_settings_file_of_endless_brackets_is_an_error_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from diag.settings import load
    from diag.text.errors import DiagError

    (tmp_path / "diag.toml").write_text("rules = " + "[" * 5000)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DiagError, match=r"diag\.toml cannot be read"):
        load()


@pytest.mark.parametrize("place", [[], [0], [0, 0, 1, 2, 3], 7])
def test_roster_with_a_rank_that_has_no_place_is_refused(place: Any) -> None:
    words = {"run_id": "a", "host": "b", "url": "", "rendezvous": ""}
    entry = {**words, "node_rank": 0, "nodes": 2, "world_size": 2, "ranks": [place]}

    with pytest.raises((TypeError, ValueError)):
        checked(entry)


def test_disk_of_impossible_size_is_not_understood() -> None:
    numbers = {"frsize": HUGE, "blocks": 1, "bfree": 1, "bavail": 1, "files": 1, "favail": 1}
    record = Record(disk.SOURCE, {"path": "/save", **numbers}, None, "node0", 1010.0, 1010.0)

    assert [type(fact) for fact in PARSERS[disk.SOURCE](record)] == [Unparsed]


def test_local_rank_beyond_any_list_of_devices_has_none() -> None:
    assert device_of("0,1", -(10**30)) == device_of("0,1", 10**30) == device_of("0,1", -1) == ""
