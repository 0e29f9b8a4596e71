"""The file that NVRx 0.7 looks at: any content means unhealthy, none that the allocation may be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from diag.outputs.feeds.feed import Telling, Told
from diag.outputs.feeds.nvrx import FEED
from tests.feeds.facts import GPU, HANG, change, opened, over

JOB = {"SLURM_JOB_ID": "4711"}


def tell(telling: Telling, folder: Path, environment: dict[str, str] = JOB) -> Told:
    options = {"dir": str(folder)}
    payload = FEED.payload(telling, options, environment)
    assert payload is not None
    return FEED.send(payload, options, environment)


def test_certain_fault_of_this_node_marks_its_allocation(tmp_path: Path) -> None:
    (tmp_path / "health").mkdir()

    told = tell(opened(change(GPU)), tmp_path / "health")

    (file,) = (tmp_path / "health").iterdir()
    assert told == Told(True, f"written: {file}")
    assert file.name == "segment_health_check.4711.4711"
    (line,) = map(json.loads, file.read_text().splitlines())
    assert (line["by"], line["host"], line["finding"]) == ("diag", "gpu-17", "gpu-fault: rank 1")


def test_of_an_array_the_task_is_marked(tmp_path: Path) -> None:
    array = {"SLURM_JOB_ID": "4713", "SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": "2"}

    tell(opened(change(GPU)), tmp_path, array)

    assert [file.name for file in tmp_path.iterdir()] == ["segment_health_check.4711.2"]


def test_mark_is_taken_back_when_it_is_over_and_of_another_node_it_stays(tmp_path: Path) -> None:
    tell(opened(change(GPU), host="gpu-18"), tmp_path)
    tell(opened(change(GPU)), tmp_path)
    tell(over(change(GPU, "resolved", at=1010.0)), tmp_path)

    (file,) = tmp_path.iterdir()
    assert [json.loads(line)["host"] for line in file.read_text().splitlines()] == ["gpu-18"]


def test_file_of_the_last_one_that_takes_its_mark_back_is_empty(tmp_path: Path) -> None:
    tell(opened(change(GPU)), tmp_path)
    tell(over(change(GPU, "resolved", at=1010.0)), tmp_path)

    (file,) = tmp_path.iterdir()
    assert file.stat().st_size == 0


def test_what_a_scheduler_wrote_stays(tmp_path: Path) -> None:
    (tmp_path / "segment_health_check.4711.4711").write_text("node gpu-19 drained\n")

    tell(opened(change(GPU)), tmp_path)
    tell(over(change(GPU, "resolved", at=1010.0)), tmp_path)

    assert (tmp_path / "segment_health_check.4711.4711").read_text() == "node gpu-19 drained\n"


@pytest.mark.parametrize("doubt", [{"confidence": "medium"}, {"severity": "warning"}])
def test_doubt_marks_nothing(doubt: dict[str, Any], tmp_path: Path) -> None:
    assert tell(opened(change(GPU, **doubt)), tmp_path).text == "nothing to take back"
    assert not [*tmp_path.iterdir()]


def test_mark_stays_where_another_finding_took_its_place(tmp_path: Path) -> None:
    replaced = {**change(GPU, "resolved", at=1010.0), "replaced": True}

    assert FEED.payload(over(replaced), {"dir": str(tmp_path)}, JOB) is None


def test_hang_of_the_job_is_no_fault_of_the_node() -> None:
    assert FEED.payload(opened(change(HANG)), {"dir": "/shared"}, JOB) is None


def test_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    told = tell(opened(change(GPU)), tmp_path / "not-mounted")

    assert told.text.endswith("cannot be written: No such file or directory") and told.again


def test_what_is_lacking_is_said() -> None:
    assert FEED.lacking({"dir": "/shared"}, JOB) == ""
    assert FEED.lacking({}, JOB).startswith("the directory is not given: nvrx:dir=DIR")
    assert FEED.lacking({"dir": "shared"}, JOB) == "shared is not absolute, as NVRx wants it"
    assert FEED.lacking({"dir": "/shared"}, {}) == "this is no job of Slurm: SLURM_JOB_ID is not set"
