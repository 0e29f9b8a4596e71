"""Nothing that diag keeps, sends or shows has a secret of the job or of diag in it; what it keeps is its
user's alone."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.liverun import DIAG, LiveRun, live_run
from tests.security.secretrun import TOKEN, get, kept, processes

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("secrets")]


def test_nothing_that_is_kept_has_a_secret_in_it(run: LiveRun) -> None:
    assert run.run_dir is not None
    found = dict(kept(run.run_dir))
    assert any("journal" in name for name in found) and any(name.startswith("dump-") for name in found)

    telling = {name for name, body in found.items() if b"s3cretvalue" in body}
    with_token = {name for name, body in found.items() if TOKEN.encode() in body}

    assert telling == set()
    assert with_token == {"run.json"}


@pytest.mark.parametrize(
    "path",
    [
        "/state",
        "/findings",
        "/ranks",
        "/metrics",
        "/nodes",
        "/sd",
        "/timeline",
        "/dump?columns=100",
        "/ranks/0/stacks",
    ],
)
def test_nothing_that_is_answered_has_a_secret_in_it(run: LiveRun, path: str) -> None:
    body = get(run, path, TOKEN)

    assert body and b"s3cretvalue" not in body and TOKEN.encode() not in body


def test_no_process_of_diag_has_the_token_among_its_arguments(run: LiveRun) -> None:
    words = []
    for process in processes(run):
        with contextlib.suppress(psutil.NoSuchProcess):  # a zombie has none any more
            words.append(" ".join(process.cmdline()))

    assert len(words) > 3
    assert not [line for line in words if TOKEN in line]
    assert TOKEN not in run.text


def test_run_directory_is_its_users_alone(run: LiveRun) -> None:
    assert run.run_dir is not None
    assert stat.S_IMODE(run.run_dir.stat().st_mode) == 0o700
    assert stat.S_IMODE((run.run_dir / "run.json").stat().st_mode) == 0o600
    sockets = [path for path in run.run_dir.rglob("*") if path.is_socket()]
    # Below a directory that nobody else may enter; a socket's own mode counts only where it can be reached.
    assert all(run.run_dir in path.parents for path in sockets)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_can_neither_read_the_run_nor_talk_to_its_ranks(run: LiveRun) -> None:
    assert run.run_dir is not None
    sockets = [str(path) for path in run.run_dir.rglob("*") if path.is_socket()]
    pid = run.run_json()["pid"]
    program = f"""
import os, signal, socket
os.setgroups([]); os.setgid(65534); os.setuid(65534)
def refused(what, act):
    try:
        act()
    except PermissionError:
        print("refused", what)
    else:
        print("ALLOWED", what)
refused("list", lambda: os.listdir({str(run.run_dir)!r}))
refused("read", lambda: open({str(run.run_dir / "run.json")!r}))
refused("signal", lambda: os.kill({pid}, signal.SIGRTMIN + 16))
for path in {sockets!r}:
    refused("connect", lambda: socket.socket(socket.AF_UNIX).connect(path))
"""
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60, cwd="/"
    )

    assert said.stdout.splitlines() == [
        "refused list",
        "refused read",
        "refused signal",
        *["refused connect"] * len(sockets),
    ]


PRINTED = "loading https://me:s3cretvalue@host/a with hf_s3cretvalues3cretvalues3cretvalue"
JOB = f"""
import os
print("{PRINTED}", flush=True)
open(os.environ["GO"]).read()
raise RuntimeError("401 for Authorization: Bearer s3cretvalue, api_key='s3cretvalue'; max_tokens=4096")
"""


def test_secret_that_the_job_prints_is_in_its_own_output_alone(tmp_path: Path) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    as_rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "GO": str(go)}
    with live_run(tmp_path, [sys.executable, "-c", JOB], env=as_rank) as run:
        run.until(lambda: run.run_json().get("url"), 60)
        run.until(lambda: b'"stack_at":1' in get(run, "/ranks"), 60)
        go.write_text("")
        assert run.wait(120) == 1
        assert run.run_dir is not None
        found = dict(kept(run.run_dir))
        replayed = subprocess.run([*DIAG, "replay", "--changes", str(run.run_dir)], capture_output=True, text=True, check=False,
                                  timeout=60)  # fmt: skip
        live = run.changes()

    # what the terminal gets is as the job printed it, twice the traceback's source
    assert run.text.count("s3cretvalue") >= 5
    output = b"".join(body for name, body in found.items() if name.startswith("output"))
    assert f"{PRINTED}\n".encode() in output  # byte for byte
    telling = {
        name for name, body in found.items() if b"s3cretvalue" in body and not name.startswith("output")
    }
    journal = b"".join(body for name, body in found.items() if name.startswith("journal"))
    # The command line is code here, and its words stand in it as any text of the user's own.
    assert (
        b"https://me:***@host/a with ***" in journal
        and b"Bearer ***, api_key='***'; max_tokens=4096" in journal
    )
    assert telling == set()
    told = [json.loads(line) for line in replayed.stdout.splitlines()]
    assert [(each["change"], each["finding"]["id"], each["finding"]["summary"]) for each in told] == [
        (each["change"], each["finding"]["id"], each["finding"]["summary"]) for each in live]  # fmt: skip
    assert live and "s3cretvalue" not in replayed.stdout
