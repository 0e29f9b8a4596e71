"""diag.toml in a folder of somebody else's, and in evidence that one unpacked oneself: it opens nothing and
writes nothing."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.liverun import DIAG
from tests.otheruser import NOBODY, as_root

# It stays until there is a page: of a command that has ended before, none is made.
_JOB = [
    sys.executable,
    "-c",
    "import glob, os, time\n"
    "until = time.monotonic() + 60\n"
    "while not any('http://' in open(one).read() for one in glob.glob(os.environ['RUNS'] + '/*/run.json')):\n"
    "    assert time.monotonic() < until\n"
    "    time.sleep(0.05)\n"
    "print('the job ran'); raise SystemExit(7)",
]


@pytest.fixture
def theirs(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Another user's folder that we work in, with settings for us."""
    for name in [name for name in os.environ if name.startswith("DIAG_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DIAG_RUN_ROOT", str(place / "runs"))
    monkeypatch.setenv("RUNS", str(place / "runs"))
    folder = place / "theirs"
    folder.mkdir()
    (folder / "diag.toml").write_text(
        f'sd_file = "{place}/secret"\nhost = "0.0.0.0"\ntoken = "they-know-it-as-well-123456"\n'
    )
    os.chown(folder, NOBODY, NOBODY)
    os.chown(folder / "diag.toml", NOBODY, NOBODY)
    return folder


def diag(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DIAG, *words], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


@as_root
def test_job_runs_without_the_settings_of_another_user_and_one_line_says_so(
    theirs: Path, place: Path
) -> None:
    done = diag(theirs, "run", "--port", "0", "--", *_JOB)

    assert (done.returncode, done.stdout) == (7, "the job ran\n")
    assert done.stderr.count("is ignored") == 1 and f"it belongs to user {NOBODY}" in done.stderr
    assert "page http://127.0.0.1:" in done.stderr and "settings of" not in done.stderr
    assert (place / "secret").read_text() == "of root alone"
    told = json.loads(next((place / "runs").glob("*/run.json")).read_text())
    assert told["settings_file"] is None and told["token"] is None


@as_root
@pytest.mark.parametrize(
    "words", [["watch", "--pid", str(os.getpid()), "--seconds", "1"], ["dump"], ["top", "--once"]]
)
def test_command_that_it_would_tell_where_to_listen_or_whom_to_ask_ends_with_a_usage_error(
    theirs: Path, place: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DIAG_RUN_ROOT")

    done = diag(theirs, *words)

    assert (
        done.returncode == 2 and "is ignored: it belongs to user" in done.stderr and "hint: " in done.stderr
    )
    assert (place / "secret").read_text() == "of root alone"


@as_root
@pytest.mark.parametrize("words", [["explain", "hang"], ["replay", "train.log"]])
def test_command_over_evidence_goes_on_without_it_and_one_line_says_so(
    theirs: Path, words: list[str]
) -> None:
    (theirs / "train.log").write_text("step 1\n")

    done = diag(theirs, *words)

    assert done.returncode == 0 and done.stdout
    assert done.stderr.count("is ignored") == 1


@as_root
def test_file_of_ours_is_named_where_the_watch_begins(theirs: Path, place: Path) -> None:
    os.chown(theirs / "diag.toml", 0, 0)
    (theirs / "diag.toml").write_text(f'sd_file = "{place}/secret"\n')

    done = diag(theirs, "run", "--port", "0", "--", *_JOB)

    assert done.returncode == 7 and f", settings of {theirs / 'diag.toml'}" in done.stderr
    assert "was not written by diag" in done.stderr and (place / "secret").read_text() == "of root alone"
    told = json.loads(next((place / "runs").glob("*/run.json")).read_text())
    assert told["settings_file"] == str(theirs / "diag.toml")


def test_page_over_unpacked_evidence_listens_where_its_folder_does_not_say(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one unpacks is one's own: who wrote it cannot be seen any more."""
    monkeypatch.delenv("DIAG_PORT", raising=False)
    folder = place / "evidence"
    folder.mkdir()
    (folder / "train.log").write_text("[rank0]: RuntimeError: no\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "diag.toml").write_text(
        f'host = "0.0.0.0"\nport = {port}\ntoken = "they-know-it-as-well-123456"\n'
    )
    words = [*DIAG, "replay", "--serve", "."]
    serving = subprocess.Popen(
        words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        assert serving.stderr is not None
        lines = []
        while not any("diag: page" in line for line in lines):
            line = serving.stderr.readline()
            assert line, lines
            lines.append(line)
        listening = [
            found.laddr
            for found in psutil.Process(serving.pid).net_connections("inet")
            if found.status == "LISTEN"
        ]
    finally:
        serving.kill()
        serving.wait()

    assert [(address.ip, address.port != port) for address in listening] == [("127.0.0.1", True)]
    assert any("host, port, token of" in line and "ignored" in line for line in lines)
