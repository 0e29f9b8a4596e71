from __future__ import annotations

import json
import resource
import signal
from pathlib import Path
from typing import Any

import pytest

from diag.model import Change, ChangeKind, Evidence
from diag.outputs.files import JsonlOutput


def change(kit: Any, **changed: Any) -> Change:
    return Change(ChangeKind.OPENED, kit.finding(**changed), 1040.0, 1040.0)


def test_each_change_is_a_line_at_once(tmp_path: Path, kit: Any) -> None:
    output = JsonlOutput(tmp_path / "findings.jsonl")

    output.write([change(kit)])
    output.write([change(kit, evidence=(Evidence("log", "a\nb\udc80\u2028", 1.0),))])

    lines = (tmp_path / "findings.jsonl").read_bytes().splitlines()
    assert [json.loads(line)["change"] for line in lines] == ["opened", "opened"]
    assert json.loads(lines[1])["finding"]["evidence"][0]["excerpt"] == "a\nb\udc80\u2028"
    output.close()


def test_second_run_appends(tmp_path: Path, kit: Any) -> None:
    for _ in range(2):
        output = JsonlOutput(tmp_path / "findings.jsonl")
        output.write([change(kit)])
        output.close()

    assert len((tmp_path / "findings.jsonl").read_text().splitlines()) == 2


def test_folder_that_is_not_there_is_told_and_not_raised(tmp_path: Path, kit: Any) -> None:
    output = JsonlOutput(tmp_path / "gone" / "findings.jsonl")

    output.write([change(kit)])

    assert "No such file or directory" in output.problem
    assert output.lost == 1


def test_output_recovers_when_the_folder_comes_back(tmp_path: Path, kit: Any) -> None:
    output = JsonlOutput(tmp_path / "late" / "findings.jsonl")
    output.write([change(kit)])
    (tmp_path / "late").mkdir()

    output.write([change(kit)])

    assert (output.problem, output.lost) == ("", 1)


def test_full_disk_is_told_and_not_raised(kit: Any) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    output = JsonlOutput(Path("/dev/full"))

    output.write([change(kit)])
    output.close()

    assert "No space left on device" in output.problem


def test_line_cut_short_does_not_swallow_the_next(tmp_path: Path, kit: Any) -> None:
    output = JsonlOutput(tmp_path / "findings.jsonl")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
        output.write([change(kit)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
    output.write([change(kit)])

    torn, whole = (tmp_path / "findings.jsonl").read_text().splitlines()
    assert len(torn) == 100
    assert json.loads(whole)["change"] == "opened"


def test_writing_after_close_is_told_and_not_raised(tmp_path: Path, kit: Any) -> None:
    output = JsonlOutput(tmp_path / "findings.jsonl")
    output.close()

    output.write([change(kit)])

    assert output.lost == 1
