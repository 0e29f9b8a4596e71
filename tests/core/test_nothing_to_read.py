"""Evidence that cannot be read is an error, and evidence that tells nothing of a job never a healthy one."""

from __future__ import annotations

import gzip
import io
import json
import random
import sys
from pathlib import Path

import pytest

from diag.cli.main import main

LOG = "[INFO:swift] The training of Epoch 0 starts...\nstep 1\n" * 400


def noise(size: int) -> bytes:
    return random.Random(7).randbytes(size)


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("name", "content", "why"), [
    ("empty.log", b"", "empty.log is empty"),
    ("empty.log.gz", gzip.compress(b"", mtime=0), "empty.log.gz is empty"),
    ("model.bin", noise(1 << 20), "model.bin is not text"),
    ("few.bin", noise(700), "few.bin is not text"),
    ("zeros.log", bytes(5000), "zeros.log holds nothing but zeros"),
    ("log.gz", LOG.encode(), "log.gz is damaged: Not a gzipped file"),
    ("noise.gz", gzip.compress(noise(5000), mtime=0), "noise.gz is not text"),
])  # fmt: skip
@pytest.mark.parametrize("verb", ["replay", "top --once", "replay --json"])
def test_what_cannot_be_read_is_an_error_with_a_hint(
    name: str, content: bytes, why: str, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(name).write_bytes(content)

    assert main([*verb.split(), name]) == 2

    said = capsys.readouterr()
    assert (
        said.out == ""
        and said.err.startswith(f"error: {why}")
        and "hint: give what the job printed as text" in said.err
    )


def test_empty_stdin_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))

    assert main(["replay", "-"]) == 2

    assert "error: stdin is empty" in capsys.readouterr().err


def test_one_unreadable_log_of_several_is_said_and_the_others_are_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("rank0.log").write_text(LOG)
    Path("rank1.log").write_bytes(b"")

    assert main(["replay", "rank0.log", "rank1.log"]) == 0

    assert "diag: rank1.log is empty" in capsys.readouterr().err


def test_packed_log_that_was_cut_off_is_read_as_far_as_it_goes(capsys: pytest.CaptureFixture[str]) -> None:
    packed = gzip.compress(random.Random(7).randbytes(20_000).hex().encode() + b"\n" + LOG.encode())
    Path("cut.log.gz").write_bytes(packed[: len(packed) - 100])

    assert main(["replay", "--json", "cut.log.gz"]) == 0

    said = capsys.readouterr()
    assert "cut.log.gz is damaged: " in said.err and "; what came before is used" in said.err
    assert json.loads(said.out)["log"]["lines"] > 0


@pytest.mark.parametrize("text", [
    "hi\n", "no trainer wrote this\n" * 50, "数据\n".encode("gbk").decode("latin-1") * 50, "\x1b[31mred\x1b[0m\r\n" * 9,
])  # fmt: skip
def test_text_that_says_nothing_of_a_job_is_neither_starting_nor_healthy(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("some.log").write_bytes(text.encode("latin-1", "ignore"))

    assert main(["replay", "--json", "some.log"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert main(["replay", "some.log"]) == 0

    assert document["job"]["state"] == "unknown"
    assert document["not_checked"][0]["what"] == "progress of the job"
    assert capsys.readouterr().out.startswith("Job state unknown; nothing found; 1 not checked.\n")


def test_log_of_a_job_that_starts_is_still_one_that_starts(capsys: pytest.CaptureFixture[str]) -> None:
    Path("some.log").write_text(LOG)

    assert main(["replay", "some.log"]) == 0

    assert capsys.readouterr().out.startswith("The log does not tell how the job ended; phase ")
