"""The short form of `python -m tests.labs.fuzz`: some inputs for each target, by a fixed seed; and that a fault
would be found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.labs.fuzz import __main__ as command
from tests.labs.fuzz import guard as guard_module
from tests.labs.fuzz.guard import Forbidden, Guard
from tests.labs.fuzz.mutate import mutated
from tests.labs.fuzz.targets import TARGETS, Target
from tests.labs.fuzz.targets.config import end_what_was_started
from tests.labs.fuzz.worker import Trial, seeded

ROOT = Path(__file__).parents[3]
_INPUTS = 75  # of each target: a number, not a time, so that every machine tries the same


@pytest.fixture(scope="session")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Guard, Path]]:
    """One for all tests: an audit hook stays for good."""
    home = tmp_path_factory.mktemp("home")
    yield Guard(home), home
    end_what_was_started()


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "kept"


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_does_more_than_a_reader_may(name: str, watched: tuple[Guard, Path], kept: Path) -> None:
    trial = Trial(TARGETS[name], watched[1], kept, guard=watched[0])

    seeded(trial, 7, lambda done: done < _INPUTS)

    assert trial.executions == _INPUTS
    assert trial.faults == {}, "\n".join(path.read_text() for path in kept.glob("*.txt"))


def test_every_parser_is_a_target() -> None:
    from diag.sources.parsers import PARSERS

    assert {f"record-{source.replace('_', '-')}" for source in PARSERS} <= set(TARGETS)


# --- that it would be found
# ----------------------------------------------------------------------------------------


def of(run: Any) -> Target:
    return Target("planted", "x", "bytes", lambda: [b"a" * 20], run)


def broken(data: bytes, home: Path) -> None:
    if 0xFF in data:
        raise KeyError("planted")


def test_planted_fault_is_found_and_kept_and_happens_again(watched: tuple[Guard, Path], kept: Path) -> None:
    trial = Trial(of(broken), watched[1], kept, guard=watched[0])

    seeded(trial, 1, lambda done: done < 400)

    (file,) = map(Path, trial.faults.values())
    assert 0xFF in file.read_bytes() and "KeyError: 'planted'" in Path(f"{file}.txt").read_text()
    assert isinstance(Trial(of(broken), watched[1], kept, guard=watched[0]).one(file.read_bytes()), KeyError)


OUTSIDE = Path("/tmp/diag-fuzz-must-not-be")


@pytest.mark.parametrize(
    "what",
    [
        lambda data, home: OUTSIDE.write_text("x"),
        lambda data, home: os.system("true"),
        lambda data, home: OUTSIDE.mkdir(),
        lambda data, home: subprocess.run(["true"], check=False),
        lambda data, home: os.kill(0, 0),
        lambda data, home: (home / "x").symlink_to("/etc/passwd") or (home / "x").rename(OUTSIDE),
        lambda data, home: __import__("pickle").loads(b"cos\nsystem\n."),
    ],
    ids=[
        "writes a file",
        "calls a shell",
        "makes a folder",
        "starts a process",
        "signals",
        "moves a file",
        "unpickles a name",
    ],
)
def test_what_no_reader_may_do_is_a_fault_even_where_it_is_caught(
    what: Any, watched: tuple[Guard, Path], kept: Path
) -> None:
    def hidden(data: bytes, home: Path) -> None:
        (home / "x").unlink(missing_ok=True)
        try:
            what(data, home)
        except (Exception, Forbidden):
            pass

    error = Trial(of(hidden), watched[1], kept, guard=watched[0]).one(b"")

    assert isinstance(error, Forbidden)
    assert not OUTSIDE.exists()


def test_slow_and_hungry_inputs_are_faults(
    watched: tuple[Guard, Path], kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard_module, "LONGEST_SECONDS", 0.05)
    monkeypatch.setattr(guard_module, "MOST_BYTES", 1)

    def slow(data: bytes, home: Path) -> None:
        end = time.process_time() + 0.06
        while time.process_time() < end:
            pass

    def hungry(data: bytes, home: Path) -> None:
        held.append(b"x" * (guard_module._peak() + (64 << 20) - _resident()))

    held: list[bytes] = []
    assert isinstance(Trial(of(slow), watched[1], kept, guard=watched[0]).one(b""), TimeoutError)
    monkeypatch.setattr(guard_module, "LONGEST_SECONDS", 60)
    assert isinstance(Trial(of(hungry), watched[1], kept, guard=watched[0]).one(b""), MemoryError)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_changed_input_is_the_same_for_the_same_seed_and_stays_within_its_size() -> None:
    import random

    for form, data in (
        ("json", b'{"a": [1, "x", {"b": null}]}'),
        ("text", b"one 12\ntwo\n" * 9),
        ("bytes", bytes(range(256))),
    ):
        made = [
            [mutated(data, form, [data], random.Random(seed), 5000) for seed in range(80)] for _ in range(2)
        ]  # type: ignore[arg-type]
        assert made[0] == made[1]
        assert len(set(made[0])) > 50 and all(len(one) <= 5000 for one in made[0])


# --- the command
# ---------------------------------------------------------------------------------------------------


def test_command_runs_targets_in_processes_of_their_own_and_writes_its_tables(tmp_path: Path) -> None:
    """With atheris where it is installed: branches guide the search."""
    words = [
        "--only",
        "nccl-lines,run-json",
        "--runs",
        "1000",
        "--seconds",
        "20",
        "--seed",
        "7",
        "--out",
        str(tmp_path),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tests.labs.fuzz", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    told = {row["target"]: row for row in json.loads((tmp_path / "fuzz.json").read_text())["targets"]}
    assert set(told) == {"nccl-lines", "run-json"}
    assert all(row["executions"] >= 100 and row["crashes"] == {} for row in told.values()), told
    assert (tmp_path / "fuzz.md").read_text().strip() == done.stdout.strip()


def test_command_ends_with_1_and_says_how_to_repeat_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = command.Row(
        "run-json", "x", 3, "seeded", 1, 0.1, 1.0, {"KeyError at runs.py:3": "/x/run-json@1234"}
    )
    monkeypatch.setattr(command, "_one", lambda *words: row)
    monkeypatch.setattr(sys, "argv", ["fuzz", "--only", "run-json", "--out", str(tmp_path)])

    assert command.main() == 1
    said = capsys.readouterr().out
    assert "KeyError at runs.py:3" in said and "python -m tests.labs.fuzz --repeat /x/run-json@1234" in said
    assert json.loads((tmp_path / "fuzz.json").read_text())["targets"][0]["crashes"] == row.crashes


def test_kept_input_is_repeated_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "run-json@1").write_bytes(b"{}")

    done = subprocess.run(
        [sys.executable, "-m", "tests.labs.fuzz", "--repeat", str(tmp_path / "run-json@1")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0 and "no fault" in done.stdout, done.stderr
