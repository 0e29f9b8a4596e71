"""Nothing that a test started lives on: not what lost its parents, and not without a word."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

from tests.leftovers import described, end_all, started
from tests.liverun import live_run

ROOT = Path(__file__).parents[2]
# A rank that is killed while its writer, in a session of its own, lives on: init adopts it.
ORPHANS = ["sh", "-c", "setsid sleep 1000 & echo orphan=$!; kill -9 $$"]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_what_a_killed_rank_left_behind_ends_with_its_run(tmp_path: Path) -> None:
    with live_run(tmp_path, ORPHANS) as run:
        run.wait(60)
        orphan = int(run.text.partition("orphan=")[2].split()[0])
        assert is_alive(orphan)

    assert not is_alive(orphan)


def test_run_leaves_nothing_in_the_temporary_directory(tmp_path: Path) -> None:
    script = "import tempfile; print('made=' + tempfile.mkdtemp(prefix='torchelastic_'))"
    with live_run(tmp_path, [sys.executable, "-c", script]) as run:
        run.wait(60)
        made = Path(run.text.partition("made=")[2].split()[0])
        assert made.is_dir()

    assert not made.exists() and not made.parent.exists()


def test_processes_are_known_by_their_mark_alone() -> None:
    mark, other = uuid.uuid4().hex, uuid.uuid4().hex
    mine, his = (
        subprocess.Popen(ORPHANS, stdout=subprocess.PIPE, env={**os.environ, "MARK": one})
        for one in (mark, other)
    )
    try:
        assert mine.stdout is not None and his.stdout is not None
        orphan, spared = (int(job.stdout.readline().partition(b"=")[2]) for job in (mine, his))
        mine.wait()

        (found,) = started("MARK", mark)
        assert found.pid == orphan and "sleep 1000" in described(found)
        end_all("MARK", mark)
        assert not is_alive(orphan) and is_alive(spared)
    finally:
        end_all("MARK", mark)
        end_all("MARK", other)
        for job in (mine, his):
            job.communicate()


def test_session_fails_for_what_its_tests_left_running_and_ends_it(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    (tmp_path / "test_careless.py").write_text(
        "import subprocess\n"
        "def test_careless():\n"
        f"    with open({str(note)!r}, 'wb') as note:\n"
        f"        subprocess.run({ORPHANS!r}, stdout=note)\n"
    )
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
    ]

    done = subprocess.run(
        [*words, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )

    orphan = int(note.read_text().partition("=")[2])
    assert done.returncode == 1, done.stdout
    assert (
        f"{orphan} (parent" in done.stdout
        and "sleep 1000" in done.stdout
        and "::test_careless" in done.stdout
    )
    assert not is_alive(orphan)
