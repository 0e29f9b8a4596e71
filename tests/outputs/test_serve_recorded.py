"""`diag replay PATH --serve` as a process: it answers, and ends by the signals that people send."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

HANG = Path(__file__).parent.parent / "captures/gpu-drills/data-hang-TP2-PP2-EP2"
DIAG = [sys.executable, "-m", "diag"]


@contextmanager
def served(*words: str, **variables: str) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """The process, the address of its page, and the line that told it."""
    environment = {**os.environ, **variables}
    process = subprocess.Popen(
        [*DIAG, "replay", str(HANG), "--serve", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        address = re.search(r"http://\S+?(?=[ ;])", line)
        assert address, line + process.stderr.read()
        yield process, address[0], line
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()


def answer(address: str, path: str = "/findings") -> int:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(address + path, timeout=30) as got:
            return int(got.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_page_of_recorded_evidence_ends_when_it_is_told_to(number: signal.Signals) -> None:
    with served("--port", "0") as (process, address, _):
        assert answer(address) == 200

        process.send_signal(number)

        assert process.wait(30) == 0
        assert process.stdout is not None
        assert process.stdout.read().startswith("The job is held-up; phase steady")


def test_beyond_loopback_it_has_the_token_of_the_setting_or_says_the_one_that_it_made_up() -> None:
    with served("--port", "0", "--host", "0.0.0.0", DIAG_TOKEN="of-the-setting") as (_, address, line):
        assert "any user name, password the token that was given" in line and "of-the-setting" not in line
        assert (answer(address), answer(address, "/metrics")) == (401, 200)
    with served("--port", "0", "--host", "0.0.0.0", DIAG_TOKEN="") as (_, address, line):
        assert re.search(r"password [\w-]{20,}", line)


@pytest.mark.parametrize(
    "words", [["--port", "9"], ["--host", "::1"], ["--serve", "--json"], ["--serve", "--changes"]]
)
def test_options_that_do_not_go_together_are_refused(words: list[str]) -> None:
    done = subprocess.run(
        [*DIAG, "replay", str(HANG), *words], capture_output=True, text=True, check=False, timeout=60
    )

    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and "hint: " in done.stderr
