"""`diag run`, `dump`, `watch` and `replay` on real processes: what a user sees, and that the job never pays
for it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.liverun import DIAG, live_run

pytestmark = pytest.mark.live
RANKS = [sys.executable, str(Path(__file__).parent / "ranks.py")]


def diag(
    *words: str, env: dict[str, str] | None = None, timeout: float = 60, **kwargs: Any
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DIAG, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        env={**os.environ, **(env or {})},
        **kwargs,
    )


def fetch(url: str) -> Any:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=15) as answer:
        body = answer.read()
    return (
        json.loads(body) if answer.headers["content-type"].startswith("application/json") else body.decode()
    )


@contextlib.contextmanager
def ready_fifo(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "ready"
    os.mkfifo(path)
    yield path


def test_exit_code_and_output_are_those_of_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)"]

    answer = diag("run", "-q", "--port", "0", "--run-root", str(tmp_path), "--", *command)

    assert (answer.returncode, answer.stdout, answer.stderr) == (7, "out\n", "err\n")


@pytest.mark.parametrize(("command", "code"), [("/no/such/command", 127), ("/etc/passwd", 126)])
def test_command_that_cannot_start_has_the_shells_exit_code_and_one_line(
    tmp_path: Path, command, code
) -> None:
    answer = diag("run", "-q", "--port", "0", "--run-root", str(tmp_path), "--", command)

    assert answer.returncode == code
    assert command in answer.stderr and len(answer.stderr.strip().splitlines()) <= 3


def test_no_command_is_a_usage_error() -> None:
    answer = diag("run", "--")

    assert answer.returncode == 2
    assert "no command given" in answer.stderr and "hint:" in answer.stderr


def test_dump_answers_in_ten_seconds_with_gil_held_stopped_dead_and_zombie_ranks(tmp_path: Path) -> None:
    with (
        ready_fifo(tmp_path) as fifo,
        live_run(
            tmp_path,
            [*RANKS, "wait", "gil", "stop", "die", "zombie", "wait"],
            env={"READY": str(fifo), "DIE_WHEN": str(tmp_path / "end")},
        ) as run,
    ):
        with open(os.open(fifo, os.O_RDWR)) as ready:  # O_RDWR: no end of file while writers come and go
            assert {ready.readline().strip() for _ in range(4)} == {"0", "1", "2", "5"}
        url = run.until(lambda: run.run_json().get("url"), 30)
        run.until(lambda: len(fetch(f"{url}/ranks")["ranks"]) == 6, 60)
        (tmp_path / "end").touch()
        run.until(lambda: len([r for r in fetch(f"{url}/ranks")["ranks"] if r["exit"]]) == 2, 60)
        run.until(lambda: [r for r in fetch(f"{url}/ranks")["ranks"] if r["process_state"] in ("T", "t")], 30)
        run.until(lambda: [f for f in fetch(f"{url}/findings")["findings"] if f["id"] == "rank-died"], 30)

        began = time.monotonic()
        answer = diag("dump", "--all-ranks", "--run-dir", str(run.run_dir), "--json")
        seconds = time.monotonic() - began

        document = json.loads(answer.stdout)
        assert seconds < 10, f"took {seconds:.1f} s"
        assert document["schema"] == "diag.report/1"
        missing = document["dump"]["missing"]
        with_stack = {
            rank for item in document["dump"]["classes"] if item["kind"] == "rank" for rank in item["ranks"]
        }
        assert {0, 1, 2, 5} <= with_stack, document["dump"]["classes"]
        assert {"3", "4"} <= set(missing)
        stopped = next(r["pid"] for r in document["dump"]["ranks"] if r["rank"] == 2)
        assert document["dump"]["next_command"] == f"kill -CONT {stopped}"
        probes = [probe for probe in document["dump"]["probes"] if probe["rank"] in (0, 1, 2, 5)]
        assert probes and all(probe["ok"] for probe in probes), probes
        read = {row["rank"]: row for row in document["dump"]["processes"]}
        assert {0, 1, 2, 5} <= set(read)
        assert all(row["open_files"]["count"] and row["memory_map"]["bytes"] for row in read.values()), read
        assert read[2]["threads"]["listed"][0]["state"] == "T"
        with tarfile.open(document["dump"]["bundle"]) as tar:
            text = tar.extractfile("proc/rank1.txt").read().decode()
        assert all(part in text for part in ("clock_nanosleep(", "Max open files", "/libc.so"))
        both = [item for item in document["dump"]["classes"] if item["ranks"] == [0, 5]]
        assert both and "waits_for_the_others" in str(both[0]["frames"])
        assert any(finding["id"] == "rank-died" for finding in document["findings"])
        assert answer.returncode == 10

        bundle = Path(document["dump"]["bundle"])
        again = diag("replay", str(bundle), "--json")
        assert {f["id"] for f in json.loads(again.stdout)["findings"]} >= {"rank-died"}


def test_kill_of_every_diag_process_leaves_the_job_running_to_its_end(tmp_path: Path) -> None:
    done = tmp_path / "done"
    script = (
        "import time, pathlib\nfor i in range(60): print('line', i, flush=True); time.sleep(0.1)\n"
        f"pathlib.Path({str(done)!r}).write_text('end')"
    )
    env = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    with live_run(tmp_path, [sys.executable, "-c", script], env=env) as run:
        url = run.until(lambda: run.run_json().get("url"), 30)
        run.until(lambda: fetch(f"{url}/ranks")["ranks"], 30)
        run.until(lambda: "line 5" in run.text, 30)
        family = [run.process, *run.process.children(recursive=True)]
        job = next(p for p in family if p.cmdline()[1:] == ["-c", script])
        diags = [p for p in family if p != job]
        assert any("diag.agent.sidecar" in p.cmdline() for p in diags)

        for process in diags:
            process.kill()

        assert not done.exists()
        job.wait(30)
        assert done.read_text() == "end"
        assert run.run_dir is not None
        assert (run.run_dir / "output.log").read_text().count("line") == 60


def test_command_without_ranks_is_watched_as_rank_0_and_told_so(tmp_path: Path) -> None:
    script = "import time\nfor i in range(300): time.sleep(0.1)"
    with live_run(tmp_path, [sys.executable, "-c", script], env={"DIAG_LONE_PROCESS_SECONDS": "2"}) as run:
        run.until(lambda: "as rank 0" in run.text, 30)
        url = run.run_json()["url"]
        run.until(lambda: fetch(f"{url}/ranks/0/stacks")["main"] is not None, 30)


def test_watch_attaches_to_a_running_process_and_reports_at_the_end(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*RANKS, "work", "work"], stdout=subprocess.DEVNULL, env={**os.environ, "STEPS": "400"}
    )
    try:
        answer = diag(
            "watch",
            "--pid",
            str(process.pid),
            "--port",
            "0",
            "--run-root",
            str(tmp_path),
            "--json",
            timeout=90,
        )
    finally:
        process.kill()
        process.wait()

    document = json.loads(answer.stdout)
    assert document["job"]["ranks_seen"] == 2
    assert document["findings"] == []
    assert answer.returncode == 0


def test_replay_of_a_live_run_gives_the_changes_that_were_said_live(tmp_path: Path) -> None:
    with live_run(tmp_path, [*RANKS, "wait", "die"], env={"DIE_WHEN": str(tmp_path / "end")}) as run:
        url = run.until(lambda: run.run_json().get("url"), 30)
        run.until(lambda: len(fetch(f"{url}/ranks")["ranks"]) == 2, 60)
        (tmp_path / "end").touch()
        run.until(lambda: run.opened("rank-died"), 60)
        for process in run.tree():
            with contextlib.suppress(psutil.Error):
                if "ranks.py" in " ".join(process.cmdline()):
                    process.send_signal(signal.SIGKILL)
        run.wait(30)
        live = run.changes()
        answer = diag("replay", str(run.run_dir), "--changes")

    replayed = [json.loads(line) for line in answer.stdout.splitlines()]
    assert replayed == live


def test_stacks_come_by_signal_where_ptrace_is_denied(tmp_path: Path) -> None:
    """A rank that made itself undumpable, and a diag without CAP_SYS_PTRACE: the real refusal of the kernel."""
    if os.geteuid() == 0 and not Path("/usr/bin/setpriv").exists():
        pytest.skip("needs setpriv (util-linux) to drop CAP_SYS_PTRACE")
    script = "import ctypes, time\nctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\ndef stands_here():\n    time.sleep(3600)\nstands_here()"
    env = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    drop = (
        ["setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace"] if os.geteuid() == 0 else []
    )
    command = [
        *drop,
        *DIAG,
        "run",
        "--port",
        "0",
        "--run-root",
        str(tmp_path / "runs"),
        "--",
        sys.executable,
        "-c",
        script,
    ]
    process = psutil.Popen(
        command,
        env={**os.environ, **env},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        url = _wait(
            lambda: next(
                (json.loads(p.read_text()).get("url") for p in (tmp_path / "runs").glob("*/run.json")), None
            ),
            30,
        )
        stacks = _wait(lambda: (s := fetch(f"{url}/ranks/0/stacks"))["main"] and s, 60)
        notes = fetch(f"{url}/findings")["not_checked"]
    finally:
        for child in [*process.children(recursive=True), process]:
            with contextlib.suppress(psutil.NoSuchProcess):  # one may end with another
                child.kill()
        process.wait(10)

    assert stacks["main"]["how"] == "faulthandler"
    assert "stands_here" in json.dumps(stacks)
    assert any("ptrace" in note["reason"] for note in notes)


def _wait(condition: Any, seconds: float) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            value = condition()
            if value:
                return value
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds:g} s")


def test_two_runs_do_not_disturb_each_other(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    with live_run(tmp_path / "a", [*RANKS, "wait"]) as one, live_run(tmp_path / "b", [*RANKS, "wait"]) as two:
        first, second = (run.until(lambda run=run: run.run_json().get("url"), 30) for run in (one, two))
        assert first != second
        assert fetch(f"{first}/healthz") and fetch(f"{second}/healthz")


def test_run_directory_that_cannot_be_made_there_is_made_elsewhere_and_the_job_runs(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")

    answer = diag(
        "run", "--port", "0", "--run-root", str(blocked / "x"), "--", "sh", "-c", "echo fine; exit 5"
    )

    assert (answer.returncode, answer.stdout) == (5, "fine\n")
    assert "because" in answer.stderr and str(blocked) in answer.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="hiding the temporary folders needs a mount namespace (root)")
def test_without_any_run_directory_the_job_keeps_its_own_output_and_is_told(tmp_path: Path) -> None:
    """All candidates on a read-only file system, in a mount namespace of the test's own."""
    inner = ["run", "--port", "0", "--run-root", "/mnt/x", "--", "sh", "-c", "echo fine; exit 5"]
    read_only = " && ".join(
        f"mount --bind {path} {path} && mount -o remount,bind,ro {path}" for path in ("/tmp", "/var/tmp")
    )
    script = f'mount -t tmpfs -o ro none /mnt && {read_only} && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", script, "sh", *DIAG, *inner]

    answer = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        cwd="/",
        env={**os.environ, "XDG_STATE_HOME": "/mnt", "TMPDIR": "/mnt"},
    )

    assert (answer.returncode, answer.stdout) == (5, "fine\n"), answer.stderr
    assert "no run directory can be made" in answer.stderr and "--run-root" in answer.stderr


def test_replay_of_nothing_known_says_what_it_wants(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    empty = tmp_path / "empty"
    empty.mkdir()

    missing, nothing = diag("replay", str(tmp_path / "gone")), diag("replay", str(empty))

    assert missing.returncode == 2 and "does not exist" in missing.stderr
    assert nothing.returncode == 2 and "hint:" in nothing.stderr


def test_replay_of_plain_logs_finds_what_they_say(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_bytes(
        b"\xff\xfe garbage \x00\n"
        + b"x" * 10_000_000
        + b"\n[rank1]: OSError: [Errno 24] Too many open files: 'a'\n"
    )

    answer = diag("replay", str(log), "--json")

    document = json.loads(answer.stdout)
    assert [finding["id"] for finding in document["findings"]] == ["fd-limit"]
    assert document["findings"][0]["ranks"] == [1]
    assert answer.returncode == 10


def test_run_directory_of_another_version_is_refused_with_its_schema(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"schema": "diag.run/9"}))

    answer = diag("replay", str(tmp_path))

    assert answer.returncode == 1
    assert "diag.run/9" in answer.stderr


@pytest.mark.skipif(
    os.geteuid() != 0, reason="a full file system of the test's own needs a mount namespace (root)"
)
def test_disk_that_fills_up_during_the_run_costs_the_journal_and_nothing_of_the_job(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    job = tmp_path / "job.py"
    job.write_text(
        "import os, sys, time\n"
        "fill = open(sys.argv[1] + '/fill', 'wb', buffering=0)\n"
        "try:\n    while True: fill.write(os.urandom(1 << 20))\n"
        "except OSError: print('the disk is full', flush=True)\n"
        "for number in range(200):\n    print('line', number, 'x' * 2000, flush=True)\n    time.sleep(0.01)\n"
        "time.sleep(3)\nsys.exit(9)\n"
    )
    inner = [
        *DIAG,
        "run",
        "--port",
        "0",
        "--run-root",
        str(tmp_path / "disk"),
        "--",
        sys.executable,
        str(job),
        str(tmp_path / "disk"),
    ]
    script = f'mount -t tmpfs -o size=120m none {tmp_path / "disk"} && exec "$@"'

    answer = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", *inner],
        check=False,
        capture_output=True,
        text=True,
        timeout=90,
        env={**os.environ, "DIAG_PROC_SECONDS": "0.2", "DIAG_LONE_PROCESS_SECONDS": "0.5"},
    )

    assert answer.returncode == 9, answer.stderr[-2000:]
    assert [line.split()[1] for line in answer.stdout.splitlines() if line.startswith("line")] == [
        str(n) for n in range(200)
    ]
    assert "journal" in answer.stderr and "No space left" in answer.stderr


def test_python_found_by_a_relative_path_has_its_sidecars(tmp_path: Path) -> None:
    """`PATH=.venv/bin:$PATH python -m diag run`: sys.executable is relative then, and helpers start in
    another directory."""
    python = Path(sys.executable)
    env = {
        **os.environ,
        "PATH": f"{python.parent.name}:{os.environ['PATH']}",
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
    }
    words = [
        python.name,
        "-m",
        "diag",
        "run",
        "--port",
        "0",
        "--run-root",
        str(tmp_path),
        "--",
        python.name,
        "-c",
        "input()",
    ]
    run = psutil.Popen(
        words, cwd=python.parent.parent, env=env, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )

    def has_sidecar() -> bool:
        with contextlib.suppress(psutil.Error):
            return any("diag.agent.sidecar" in child.cmdline() for child in run.children(recursive=True))
        return False

    try:
        _wait(has_sidecar, 60)
    finally:
        _, said = run.communicate("\n", timeout=60)  # what CMD waits for: it ends

    assert run.returncode == 0
    assert "Traceback" not in said and "cannot be started" not in said
