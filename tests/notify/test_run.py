"""`diag run --notify` with real processes: who is told what, also when diag and the job are killed."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cgroups import memory_cgroup
from tests.leftovers import end_all
from tests.notify.services import Services

DIAG = [sys.executable, "-m", "diag"]
NOTIFIER = "diag.outputs.notify.process"
# torch 2.13, of a job on an H100
OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which "
    "1.20 GiB is free."
)


class Runs:
    """Starts `diag run`, and knows every process that came of it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.environment = {**os.environ, "DIAG_RUN_ROOT": str(folder / "runs"), "DIAG_PORT": "0", "STARTED_BY_RUN": self.mark,
                            "DIAG_LONE_PROCESS_SECONDS": "0", "LC_ALL": "C.UTF-8"}  # fmt: skip

    def start(
        self, *options: str, job: str, inside: Path | None = None, **variables: str
    ) -> subprocess.Popen[bytes]:
        entering = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(inside / "cgroup.procs")] if inside else []
        return subprocess.Popen(
            [*entering, *DIAG, "run", *options, "--", "sh", "-c", job], env={**self.environment, **variables}, cwd=self.folder,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=open(self.folder / "terminal", "wb"),
        )  # fmt: skip

    @property
    def terminal(self) -> str:
        return (self.folder / "terminal").read_text()

    @property
    def run_dir(self) -> Path:
        return next((self.folder / "runs").iterdir())

    def is_published(self) -> bool:
        return any(self.folder.glob("runs/*/run.json"))

    def processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if (
                    process.environ().get("STARTED_BY_RUN") == self.mark
                    and process.status() != psutil.STATUS_ZOMBIE
                ):
                    found.append(process)
        return found

    def named(self, word: str) -> list[psutil.Process]:
        return [process for process in self.processes() if word in " ".join(_words(process))]

    def kill_all_but_the_notifier(self, and_not: int = 0) -> None:
        spared = {and_not, *(process.pid for process in self.named(NOTIFIER))}
        for process in self.processes():
            if process.pid not in spared:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(signal.SIGKILL)


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    made = Runs(tmp_path, monkeypatch)
    yield made
    end_all("STARTED_BY_RUN", made.mark)


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not come to that")


def webhook(services: Services) -> str:
    return f"http://127.0.0.1:{services.port}/hook-of-mine"


def ended(services: Services) -> Any:
    return services.wait(lambda all_: any(one.json["event"] == "end" for one in all_))[-1].json


def test_critical_finding_and_end_are_told_and_the_command_gets_the_finding(
    runs: Runs, standins: Services
) -> None:
    command = f"{sys.executable} -c \"import sys; open('found', 'a').write(sys.stdin.read())\""

    process = runs.start(
        "--on-finding", command, job=f"echo '{OUT_OF_MEMORY}' >&2; exit 1", DIAG_NOTIFY=webhook(standins)
    )

    end = ended(standins)
    assert process.wait(60) == 1
    messages = [request.json for request in standins.requests]
    assert [one["event"] for one in messages] == ["finding", "end"]
    assert messages[0]["title"].startswith("CRITICAL cuda-oom")
    assert end["title"].startswith("the job failed (exit 1) after ")
    assert end["outcome"]["open"][0]["finding"]["id"] == "cuda-oom"
    assert f"diag replay {runs.run_dir}" in end["text"]
    (line,) = until(
        lambda: (runs.folder / "found").exists() and (runs.folder / "found").read_text().splitlines()
    )
    assert json.loads(line)["finding"]["id"] == "cuda-oom"
    until(lambda: not runs.named(NOTIFIER))


def test_job_without_a_finding_is_told_once_and_starts_no_command(runs: Runs, standins: Services) -> None:
    process = runs.start("--on-finding", "touch found", job="exit 0", DIAG_NOTIFY=webhook(standins))

    assert process.wait(60) == 0
    until(lambda: not runs.named(NOTIFIER))
    (message,) = standins.requests
    assert message.json["title"].startswith("the job finished (exit 0) after ")
    assert not (runs.folder / "found").exists()


def test_message_comes_when_all_but_the_notifier_is_killed(runs: Runs, standins: Services) -> None:
    process = runs.start(job="echo hello; sleep 300", DIAG_NOTIFY=webhook(standins))
    until(lambda: runs.is_published() and runs.named(NOTIFIER))

    runs.kill_all_but_the_notifier()

    assert process.wait(60) == -signal.SIGKILL
    message = ended(standins)
    assert message["title"].endswith(f", exit code not known - {runs.run_dir.name}, {os.uname().nodename}")
    assert message["returncode"] is None
    assert "diag itself was ended before" in message["text"] and "Page:" not in message["text"]
    until(lambda: not runs.processes())


def test_hub_that_is_killed_is_told_and_the_exit_code_all_the_same(runs: Runs, standins: Services) -> None:
    os.mkfifo(runs.folder / "go")
    process = runs.start(job="read line < go; exit 7", DIAG_NOTIFY=webhook(standins))
    until(lambda: runs.is_published() and runs.named(NOTIFIER))
    (hub,) = runs.named("diag.agent.hub_process")

    hub.send_signal(signal.SIGKILL)

    standins.wait(lambda all_: any(one.json["event"] == "unwatched" for one in all_))
    (runs.folder / "go").write_text("go\n")
    assert process.wait(60) == 7
    assert ended(standins)["returncode"] == 7
    until(lambda: not runs.processes())


def test_job_that_is_killed_for_memory_without_diag_is_told_with_the_reason(
    runs: Runs, standins: Services
) -> None:
    os.mkfifo(runs.folder / "go")
    job = f"exec {sys.executable} -c \"open('go').read(); taken = bytes(1) * (3 << 30)\""
    with memory_cgroup(1 << 30) as cgroup:
        process = runs.start(job=job, inside=cgroup, DIAG_NOTIFY=webhook(standins))
        until(lambda: runs.is_published() and runs.named(NOTIFIER))
        pid = json.loads((runs.run_dir / "run.json").read_text())["pid"]

        runs.kill_all_but_the_notifier(and_not=pid)
        standins.wait(lambda all_: any(one.json["event"] == "unwatched" for one in all_))
        (runs.folder / "go").write_text("go\n")

        message = ended(standins)
        assert message["returncode"] is None
        assert "Processes of this cgroup that the OOM killer ended since diag began: 1" in message["text"]
        process.wait(60)
        until(lambda: not runs.processes())


def test_watch_that_stops_before_the_job_says_so(runs: Runs, standins: Services) -> None:
    with subprocess.Popen(["sleep", "300"], env=runs.environment) as job:
        watch = [*DIAG, "watch", "--pid", str(job.pid), "--seconds", "1", "--no-http"]
        variables = {**runs.environment, "DIAG_NOTIFY": webhook(standins)}
        subprocess.run(watch, env=variables, cwd=runs.folder, capture_output=True, timeout=60, check=False)

        standins.wait(bool)
        (message,) = [request.json for request in standins.requests]
        job.kill()

    assert message["event"] == "unwatched"
    assert message["text"].startswith(
        f"CMD (pid {job.pid}) goes on; diag watch --pid {job.pid} watches it again."
    )


def test_nothing_is_started_without_the_setting(runs: Runs) -> None:
    os.mkfifo(runs.folder / "go")
    process = runs.start(job="read line < go")
    until(runs.is_published)

    assert not runs.named("notify")
    (runs.folder / "go").write_text("go\n")
    assert process.wait(60) == 0
    assert not (runs.run_dir / "notify.log").exists()


def test_address_is_nowhere_but_in_what_needs_it(runs: Runs, standins: Services) -> None:
    (runs.folder / "diag.toml").write_text(f'[notify]\nurls = ["{webhook(standins)}"]\nper_hour = 5\n')
    (runs.folder / "diag.toml").chmod(0o600)
    os.mkfifo(runs.folder / "go")
    process = runs.start(job="read line < go; exit 1")
    until(lambda: runs.is_published() and runs.named(NOTIFIER))

    assert not [words for words in map(_words, runs.processes()) if "hook-of-mine" in " ".join(words)]
    (runs.folder / "go").write_text("go\n")
    assert process.wait(60) == 1
    ended(standins)
    until(lambda: not runs.named(NOTIFIER))
    files = [path for path in runs.run_dir.rglob("*") if path.is_file()]
    kept = b"".join(
        gzip.decompress(one.read_bytes()) if one.suffix == ".gz" else one.read_bytes() for one in files
    )
    assert b"read line" in kept and b"hook-of-mine" not in kept + runs.terminal.encode()
    assert "messages to webhook" in runs.terminal


def test_address_in_the_command_line_is_warned_of_and_a_wrong_one_does_not_stop_the_job(runs: Runs) -> None:
    process = runs.start("--notify", "no-address-at-all", job="exit 5")

    assert process.wait(60) == 5
    assert "diag: no message will be sent: address 1 of `notify` is none" in runs.terminal
    assert "no-address-at-all" not in runs.terminal
    assert "--notify shows the address to all users of this machine" in runs.terminal


def test_command_that_does_not_end_is_ended(tmp_path: Path) -> None:
    from diag.outputs.notify.hook import run

    said = run(["sh", "-c", "sleep 300 & wait"], {}, str(tmp_path), seconds=0.2)

    assert said == "sh: ended after 0.2 s"
    assert not [
        process for process in psutil.Process().children(recursive=True) if "sleep" in _words(process)
    ]


def test_command_that_fails_is_told(tmp_path: Path) -> None:
    from diag.outputs.notify.hook import run

    assert (
        run(["sh", "-c", "echo no such pager >&2; exit 4"], {}, str(tmp_path))
        == "sh: exit code 4: no such pager"
    )
    assert run(["/no/such"], {}, str(tmp_path)) == "/no/such: No such file or directory"
    assert run(["sh", "-c", "grep -q '\"a\": 1'"], {"a": 1}, str(tmp_path)) == ""
