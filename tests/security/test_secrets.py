"""Nothing that diag keeps, sends or shows has a secret of the job or of diag in it; what it keeps is its user's alone."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import tarfile
import urllib.request
import zlib
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.liverun import DIAG, LiveRun, live_run

pytestmark = pytest.mark.live
RANKS = [sys.executable, str(Path(__file__).parent.parent / "live/ranks.py")]
TOKEN = "diagtoken-5f1c0e"
IN_ENVIRONMENT = {
    "HF_TOKEN": "hf_s3cretvalue", "WANDB_API_KEY": "wandb-s3cretvalue", "AWS_SECRET_ACCESS_KEY": "aws-s3cretvalue",
    "NCCL_AUTH_SECRET": "nccl-s3cretvalue", "MY_PASSWORD": "pass-s3cretvalue", "HTTPS_PROXY": "http://user:proxy-s3cretvalue@p:3128",
}  # fmt: skip
IN_WORDS = ["--hub_token", "word-s3cretvalue", "--wandb_api_key=key-s3cretvalue", "--dataset",
            "https://user:url-s3cretvalue@example.org/data"]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveRun]:
    """A run of three ranks with secrets all over, dumped once, still alive. Module-scoped: seconds of real start-up."""
    tmp_path = tmp_path_factory.mktemp("secrets")
    with live_run(tmp_path, [*RANKS, "work", "wait", "wait", *IN_WORDS], env={**IN_ENVIRONMENT, "DIAG_TOKEN": TOKEN}) as live:
        live.until(lambda: live.run_json().get("url"), 60)
        live.until(lambda: b'"stack_at":1' in get(live, "/ranks"), 60)
        env = {**os.environ, "DIAG_RUN_ROOT": str(live.root)}
        dumped = subprocess.run([*DIAG, "dump"], capture_output=True, text=True, check=False, timeout=60, env=env)
        assert "dumps/" in dumped.stdout, dumped.stderr
        (tmp_path / "dump.txt").write_text(dumped.stdout)
        yield live


def get(live: LiveRun, path: str) -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(live.run_json()["url"] + path, timeout=15) as answer:
        body: bytes = answer.read()
    return body


def unpacked(body: bytes) -> bytes:
    """What is there of a journal that is still written: it has no end yet."""
    return zlib.decompressobj(31).decompress(body)


def kept(folder: Path) -> Iterator[tuple[str, bytes]]:
    """All that lies in a run directory, unpacked. Sockets and FIFOs hold nothing."""
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        if path.name.endswith(".tar.gz"):
            with tarfile.open(path) as tar:
                for member in tar:
                    file = tar.extractfile(member)
                    body = file.read() if file else b""
                    yield f"{path.name}/{member.name}", unpacked(body) if member.name.endswith(".gz") else body
        elif path.name.endswith(".gz"):
            yield path.name, unpacked(path.read_bytes())
        else:
            yield path.name, path.read_bytes()


def test_nothing_that_is_kept_has_a_secret_in_it(run: LiveRun) -> None:
    assert run.run_dir is not None
    found = dict(kept(run.run_dir))
    assert any("journal" in name for name in found) and any(name.startswith("dump-") for name in found)

    telling = {name for name, body in found.items() if b"s3cretvalue" in body}
    with_token = {name for name, body in found.items() if TOKEN.encode() in body}

    assert telling == set()
    assert with_token == {"run.json"}


@pytest.mark.parametrize("path", ["/state", "/findings", "/ranks", "/metrics", "/nodes", "/sd", "/timeline",
                                  "/dump?columns=100", "/ranks/0/stacks"])
def test_nothing_that_is_answered_has_a_secret_in_it(run: LiveRun, path: str) -> None:
    body = get(run, path)

    assert body and b"s3cretvalue" not in body and TOKEN.encode() not in body


def test_no_process_of_diag_has_the_token_among_its_arguments(run: LiveRun) -> None:
    hub = psutil.Process(run.run_json()["hub_pid"])
    words = []
    for process in [hub, *hub.children(recursive=True)]:
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
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60, cwd="/")

    assert said.stdout.splitlines() == ["refused list", "refused read", "refused signal", *["refused connect"] * len(sockets)]


def test_only_this_machine_can_reach_the_hub(run: LiveRun) -> None:
    hub = psutil.Process(run.run_json()["hub_pid"])
    listening = {
        one.laddr.ip for process in [hub, *hub.children(recursive=True)] for one in process.net_connections("inet")
        if one.status == psutil.CONN_LISTEN
    }  # fmt: skip

    assert listening == {"127.0.0.1"}
