"""Where a token comes from, who is told that others can read it, and where it must not appear."""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from diag.cli.client.endpoint import endpoint
from diag.launch import tokens
from diag.launch.rundir import RunDir
from diag.settings import load
from diag.text.errors import DiagError
from tests.liverun import DIAG


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No token of the environment, nothing said yet. pytest's own folders are for their user alone: these are
    not."""
    monkeypatch.setattr(tokens, "_warned", set())
    for name in ("DIAG_TOKEN", "DIAG_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user comes into, also through those above it."""
    folder = Path(tempfile.mkdtemp(prefix="public-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def file(public: Path) -> Path:
    path = public / "token"
    path.write_text("  the-token-of-the-job\n")
    path.chmod(0o600)
    return path


def asked(**options: str | None) -> str | None:
    defaults = {
        "endpoint": "http://127.0.0.1:1",
        "run_dir": None,
        "token": None,
        "token_file": None,
        "tls_ca": None,
    }
    return endpoint(argparse.Namespace(**{**defaults, **options}))[1]


def test_token_comes_from_the_option_then_the_variable_then_the_file_of_the_settings(
    file: Path, fresh: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked() is None
    (fresh / "diag.toml").write_text(f'token_file = "{file}"\n')
    assert asked() == "the-token-of-the-job"
    (fresh / "diag.toml").unlink()
    monkeypatch.setenv("DIAG_TOKEN_FILE", str(file))
    assert asked() == "the-token-of-the-job"
    monkeypatch.setenv("DIAG_TOKEN", "of-the-variable")
    assert asked() == "of-the-variable"
    assert asked(token_file=str(file)) == "the-token-of-the-job"
    assert asked(token="a-word") == "a-word"
    assert capsys.readouterr().err.count("ps") == 1  # of the word alone


def test_token_as_a_word_works_and_is_warned_of_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert [asked(token="a-word"), asked(token="a-word")] == ["a-word"] * 2

    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert "--token-file" in said.err and "ps" in said.err and "a-word" not in said.err


@pytest.mark.parametrize("mode, whom", [(0o600, ""), (0o400, ""), (0o640, "its group"), (0o644, "all users of this machine"),
                                        (0o604, "all users of this machine"), (0o620, "")])  # fmt: skip
def test_file_that_others_can_read_is_warned_of_and_taken(
    file: Path, mode: int, whom: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file.chmod(mode)

    assert tokens.read_token(str(file)) == tokens.read_token(str(file)) == "the-token-of-the-job"

    said = capsys.readouterr().err
    assert said == (f"diag: the token in {file} can be read by {whom}: chmod 600 {file}\n" if whom else "")


def test_file_in_a_folder_that_nobody_else_enters_is_not_warned_of(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.chmod(0o644)
    inner = file.parent / "mine"
    inner.mkdir(mode=0o700, exist_ok=True)

    assert tokens.read_token(str(file.rename(inner / "token"))) == "the-token-of-the-job"

    assert capsys.readouterr().err == ""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount")
def test_secret_that_kubernetes_mounts_is_not_warned_of(tmp_path: Path) -> None:
    """As the kubelet makes it: a tmpfs, read-only for the container, the file 0644 behind two links."""
    script = f"""
set -e
mkdir -p /tmp/diag-secret-{os.getpid()}; cd /tmp/diag-secret-{os.getpid()}
mount -t tmpfs none . && cd "$PWD"
mkdir ..2026; echo from-kubernetes > ..2026/token; chmod 0644 ..2026/token; ln -s ..2026 ..data; ln -s ..data/token token
mount -o remount,ro .
{sys.executable} -c 'from diag.launch.tokens import read_token; print(read_token("/tmp/diag-secret-{os.getpid()}/token"))'
"""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
        env=env,
    )
    Path(f"/tmp/diag-secret-{os.getpid()}").rmdir()
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no mount here: {done.stderr.strip()}")

    assert (done.stdout, done.stderr) == ("from-kubernetes\n", "")


def test_token_may_come_through_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    """`--token-file <(pass show diag)`"""
    reader, writer = os.pipe()
    os.write(writer, b"of-a-pipe\n")
    os.close(writer)

    assert tokens.read_token(f"/dev/fd/{reader}") == "of-a-pipe"
    os.close(reader)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("content, words", [(b"", "it is empty"), (b" \n", "it is empty"), (b"two words", "more than one word"),
                                            (b"a\r\nX-Evil: 1", "more than one word"), (b"x" * 5000, "more than one word"),
                                            (b"\xff\xfe", "cannot be read")])  # fmt: skip
def test_file_without_a_token_is_refused_and_its_content_not_told(
    file: Path, content: bytes, words: str
) -> None:
    file.write_bytes(content)

    with pytest.raises(DiagError, match=words) as error:
        tokens.read_token(str(file))

    assert error.value.exit_code == 2 and "X-Evil" not in str(error.value) and str(file) in str(error.value)


def test_setting_reads_the_same_file_with_the_same_word(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.chmod(0o644)

    assert load(token_file=file).token == "the-token-of-the-job"
    assert "can be read by all users" in capsys.readouterr().err


def test_option_reaches_the_hub_and_stands_in_no_argument_list(file: Path) -> None:
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        words: list[bytes] = []

        def hear() -> None:
            connection = listener.accept()[0]
            with connection:
                heard.append(connection.recv(4096))
                words.append(Path(f"/proc/{process.pid}/cmdline").read_bytes())

        process = subprocess.Popen([*DIAG, "dump", "--endpoint", f"http://127.0.0.1:{port}", "--token-file", str(file)],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)  # fmt: skip
        thread = threading.Thread(target=hear, daemon=True)
        thread.start()
        said = process.communicate(timeout=30)[1]
        thread.join(10)

    assert b"Authorization: Bearer the-token-of-the-job\r\n" in heard[0] and heard[0].startswith(
        b"POST /dump?"
    )
    assert words and b"the-token-of-the-job" not in b"".join(words) and "the-token-of-the-job" not in said


def test_no_command_takes_the_token_where_it_is_sent_on_to(file: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        second.settimeout(0)
        there = second.getsockname()[1]

        def send_on() -> None:
            connection = first.accept()[0]
            with connection:
                connection.recv(4096)
                connection.sendall(
                    b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:%d/\r\nContent-Length: 0\r\n\r\n"
                    % there
                )

        for words in (["flame", "all"], ["dump"], ["top", "--once"]):
            thread = threading.Thread(target=send_on, daemon=True)
            thread.start()
            asked = [
                *DIAG,
                *words,
                "--endpoint",
                f"http://127.0.0.1:{first.getsockname()[1]}",
                "--token-file",
                str(file),
            ]
            done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=60)
            thread.join(10)
            assert done.returncode == 1 and "the-token-of-the-job" not in done.stderr, done.stderr
            with pytest.raises(BlockingIOError):
                second.accept()


def test_token_that_diag_makes_is_long_and_in_a_file_for_its_user_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        run, _ = RunDir.create(tmp_path / "runs")
        (run.path / ".run.json").symlink_to(tmp_path / "elsewhere")
        run.publish({"pid": os.getpid(), "token": "x" * 32})
    finally:
        os.umask(old)

    assert stat.S_IMODE((run.path / "run.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(run.path.stat().st_mode) == 0o700
    assert not (tmp_path / "elsewhere").exists()
