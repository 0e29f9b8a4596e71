"""nccl.conf: real files, in the order and by the rules of NCCL's src/misc/param.cc."""

from __future__ import annotations

import os
from pathlib import Path

from diag.knowledge.nccl_filters import parse_conf as parse
from diag.preflight.plan import effective, read_conf_files


def test_environment_wins_then_the_users_file_then_the_machines(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/nccl.conf").write_text("NCCL_DEBUG=WARN\nNCCL_ALGO=Ring\nNCCL_PROTO=LL\n")
    (tmp_path / ".nccl.conf").write_text("NCCL_ALGO=Tree\nNCCL_DEBUG=INFO\n")

    files = read_conf_files({"NCCL_DEBUG": "VERSION"}, tmp_path, tmp_path)
    merged, origins = effective({"NCCL_DEBUG": "VERSION"}, files)

    assert merged == {"NCCL_DEBUG": "VERSION", "NCCL_ALGO": "Tree", "NCCL_PROTO": "LL"}
    assert origins == {"NCCL_ALGO": tmp_path / ".nccl.conf", "NCCL_PROTO": tmp_path / "etc/nccl.conf"}


def test_nccl_conf_file_replaces_the_users_file(tmp_path: Path) -> None:
    (tmp_path / ".nccl.conf").write_text("NCCL_ALGO=Tree\n")
    (tmp_path / "mine").write_text("NCCL_PROTO=LL\n")

    (found,) = read_conf_files({"NCCL_CONF_FILE": str(tmp_path / "mine")}, tmp_path, tmp_path)

    assert found == (tmp_path / "mine", {"NCCL_PROTO": "LL"})


def test_lines_are_taken_as_they_are() -> None:
    text = (
        "# NCCL_A=1\n #NCCL_B=2\nNCCL_C = 3\nNCCL_D='4'\nno equals sign\nNCCL_E==eth0\nNCCL_F=\nNCCL_E=later"
    )

    assert parse(text) == {" #NCCL_B": "2", "NCCL_C ": " 3", "NCCL_D": "'4'", "NCCL_E": "=eth0", "NCCL_F": ""}


def test_files_that_are_none_or_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".nccl.conf")  # reading it would wait for ever
    (tmp_path / "etc/nccl.conf").mkdir(parents=True)

    assert read_conf_files({}, tmp_path, tmp_path) == []


def test_bytes_that_are_no_text_do_not_break_it(tmp_path: Path) -> None:
    (tmp_path / ".nccl.conf").write_bytes(b"NCCL_X=\xff\x00\nNCCL_Y=1\n")

    (found,) = read_conf_files({}, tmp_path, tmp_path)

    assert found[1]["NCCL_Y"] == "1"
