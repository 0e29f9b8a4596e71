"""What a person is told of the page: an address that works, how to log in, and who has the port. With real
processes."""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from diag.outputs.http.serving import refuse_taken_port
from diag.settings import load
from diag.text.errors import DiagError
from tests.liverun import DIAG, live_run

HANG = Path(__file__).parent.parent / "captures/gpu-drills/data-hang-TP2-PP2-EP2"


def answer(address: str, password: str | None = None) -> int:
    headers = (
        {"Authorization": "Basic " + base64.b64encode(f"me:{password}".encode()).decode()} if password else {}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(f"{address}/findings", headers=headers), timeout=30) as got:
            return int(got.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which this process listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


def done(tmp_path: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "DIAG_RUN_ROOT": str(tmp_path / "runs"), **variables}
    return subprocess.run([*DIAG, *words], capture_output=True, text=True, check=False, timeout=90, env=env, cwd=tmp_path,
                          stdin=subprocess.DEVNULL)  # fmt: skip


def test_run_beyond_loopback_says_the_address_and_how_to_log_in(tmp_path: Path) -> None:
    with live_run(tmp_path, ["sleep", "100"], "--host", "0.0.0.0") as run:
        said = run.until(
            lambda: re.search(r"page (http://\S+) \(any user name, password the token in (\S+)\)", run.text),
            60,
        )
        token = json.loads(Path(said[2]).read_text())["token"]

        assert "127.0.0.1" not in said[1]
        assert (answer(said[1]), answer(said[1], "wrong"), answer(said[1], token)) == (401, 401, 200)
        assert token not in run.text


def test_run_on_loopback_says_the_address_alone(tmp_path: Path) -> None:
    with live_run(tmp_path, ["sleep", "100"]) as run:
        said = run.until(lambda: re.search(r"page (http://127.0.0.1:\d+)(.)", run.text), 60)

        assert said[2] == "," and answer(said[1]) == 200


def test_port_that_was_asked_for_and_is_taken_is_an_error_before_cmd_starts(
    tmp_path: Path, taken: int
) -> None:
    made = tmp_path / "made"

    ended = done(tmp_path, "run", "--port", str(taken), "--", "touch", str(made))

    assert ended.returncode == 2 and not made.exists()
    assert (
        ended.stderr.startswith(f"error: port {taken} is taken by pid {os.getpid()} (")
        and "hint: " in ended.stderr
    )


def test_port_of_a_variable_that_is_taken_does_not_keep_cmd_from_running(tmp_path: Path, taken: int) -> None:
    ended = done(
        tmp_path,
        "run",
        "--",
        sys.executable,
        "-c",
        "import time; print('ran'); time.sleep(3)",
        DIAG_PORT=str(taken),
    )

    assert ended.returncode == 0 and ended.stdout == "ran\n"
    assert re.search(
        rf"page http://127.0.0.1:\d+ \(port {taken} is taken by pid {os.getpid()} ", ended.stderr
    ), ended.stderr


WATCH, REPLAY = ["watch", "--seconds", "1", "--pid", str(os.getpid())], ["replay", "--serve", str(HANG)]


@pytest.mark.parametrize("words, how", [(WATCH, "flag"), (WATCH, "variable"), (WATCH, "diag.toml"), (REPLAY, "flag"),
                                        (REPLAY, "variable")])  # fmt: skip
def test_watch_and_replay_refuse_a_taken_port_however_given(
    tmp_path: Path, taken: int, words: list[str], how: str
) -> None:
    if how == "diag.toml":
        (tmp_path / "diag.toml").write_text(f"port = {taken}\n")
    flag = ["--port", str(taken)] if how == "flag" else []

    ended = done(tmp_path, *words, *flag, **({"DIAG_PORT": str(taken)} if how == "variable" else {}))

    assert ended.returncode == 2
    assert f"error: port {taken} is taken by pid {os.getpid()} (" in ended.stderr and "hint: " in ended.stderr


def test_port_without_a_page_is_nobodys_matter(tmp_path: Path, taken: int) -> None:
    ended = done(tmp_path, "run", "--no-http", "--port", str(taken), "--", "echo", "ran")

    assert (ended.returncode, ended.stdout) == (0, "ran\n")


def test_port_that_the_run_before_is_about_to_leave_is_awaited() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    leaving = threading.Timer(0.4, listener.close)
    leaving.start()

    refuse_taken_port(load(port=port), asked_for=True)  # raises nothing

    leaving.join()
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(DiagError, match=f"port {port} is taken by pid"),
    ):
        refuse_taken_port(load(port=port), asked_for=True)


def test_default_port_that_is_taken_is_said(tmp_path: Path) -> None:
    try:
        holder = socket.create_server(("127.0.0.1", 9095))
    except OSError:
        holder = None  # taken, as it is to be
    env = {name: value for name, value in os.environ.items() if name != "DIAG_PORT"}
    process = subprocess.Popen(
        [*DIAG, *REPLAY], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=env, cwd=tmp_path
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
    finally:
        process.kill()
        process.wait()
        process.stderr.close()  # type: ignore[union-attr]
        if holder is not None:
            holder.close()

    assert re.search(r"page http://127.0.0.1:\d+ \(port 9095 is taken", line), line
