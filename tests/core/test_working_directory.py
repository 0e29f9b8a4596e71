"""The working directory of CMD, and the job's own code as it is shown from there."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from diag.cli.watch import cwd_of
from diag.detectors import make_detectors
from diag.detectors.precedence import PRECEDENCE
from diag.engine.engine import Engine
from diag.model import Record
from diag.model.observations import RunStarted
from diag.outputs.http.flame import merged_profile
from diag.outputs.view.classes import stack_classes
from diag.outputs.view.view import stacks_json
from diag.sources.host import run
from diag.sources.parsers import PARSERS
from tests.facts import ALL_REDUCE, TRAIN, Story
from tests.liverun import DIAG

READS = (
    *TRAIN,
    "read /app/data/shards.py:12",
    "get /opt/venv/lib/python3.12/site-packages/fsspec/spec.py:9",
    "wait_for /srv/shared/locks.py:4",
)


def hung(cwd: str) -> Story:
    story = Story(world=2)
    story.tell(RunStarted(None, ("torchrun", "train.py"), 999, "node-0", 2, cwd))
    story.still(400.0, {0: ALL_REDUCE, 1: READS}, step=4.0)
    return story


def excerpt(story: Story) -> str:
    """The stack of the rank that is blamed, innermost frame first."""
    return next(piece.excerpt for piece in story.hang().evidence if "shards.py" in piece.excerpt)


def test_a_finding_shows_the_jobs_own_code_from_its_working_directory_and_other_code_whole() -> None:
    assert excerpt(hung("/app")).startswith(
        "wait_for (/srv/shared/locks.py:4) < get (fsspec/spec.py:9) < read (data/shards.py:12) < train (train.py:200)"
    )
    assert "(/app/" not in "".join(map(str, hung("/app").findings()))


@pytest.mark.parametrize("cwd", ["", "/", "/ap", "/app/other"])
def test_paths_stay_whole_where_the_directory_is_not_known_or_does_not_hold_them(cwd: str) -> None:
    assert "read (/app/data/shards.py:12) < train (/app/train.py:200)" in excerpt(hung(cwd))


def test_stacks_and_flame_graphs_show_the_same_path_as_findings() -> None:
    engine = hung("/app").engine

    assert {frame for one in stack_classes(engine) for frame in one.to_json()["frames"]} >= {
        "read (data/shards.py:12)"
    }
    assert "in wait_for (/srv/shared/locks.py:4)" in "".join(one.title() for one in stack_classes(engine))
    frame = stacks_json(engine, 1)["main"]["threads"][0]["frames"][3]
    assert (frame["text"], frame["file"]) == ("read (data/shards.py:12)", "/app/data/shards.py")
    assert any("read (data/shards.py:12)" in sample.path for sample in merged_profile(engine).samples)


def test_record_of_an_older_version_has_no_directory() -> None:
    old = Record(run.SOURCE, {"event": "started", "argv": ["a"], "pid": 1, "world_size": 0}, host="n")

    assert list(run.parse(old)) == [RunStarted(None, ("a",), 1, "n", 0, "")]


def test_the_directory_reaches_the_state_of_the_job() -> None:
    engine = Engine(PARSERS, make_detectors(), PRECEDENCE)
    engine.feed(run.started(["a"], 1, "n", cwd="/app"))

    assert engine.job.run.cwd == "/app"


def test_directory_of_a_process_that_is_watched_is_its_own(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, cwd=tmp_path) as process:
        assert cwd_of(process.pid) == str(tmp_path.resolve())
        assert process.stdin is not None
        process.stdin.write(b"\n")
    assert cwd_of(process.pid) == ""  # it has ended


def test_run_records_where_cmd_was_started_though_it_goes_elsewhere(tmp_path: Path) -> None:
    here = tmp_path / "job"
    here.mkdir()

    done = subprocess.run(
        [*DIAG, "run", "--no-http", "--run-root", str(tmp_path / "runs"), "--", "sh", "-c", "cd /; pwd"],
        cwd=here, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip

    assert done.stdout == "/\n"
    (journal,) = (tmp_path / "runs").glob("*/journal-*.jsonl.gz")
    (started,) = [
        line for line in gzip.decompress(journal.read_bytes()).decode().splitlines() if '"started"' in line
    ]
    assert json.dumps(str(here.resolve())) in started
