"""A real hang: what is kept of it by itself, before anybody ends the job, and how a person hears of it."""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.liverun import DIAG, JOB, LiveRun, live_run
from tests.security.bundleshape import MEMBERS, PATHS, paths

pytest.importorskip("torch", reason="needs torch (make test installs it)")
pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

# Both ranks wait for each other, for ever: critical, on the ground of calls that do not fit.
FAULT = {"DIAG_FAULT": "opposite-groups:rank=1,step=3", "DIAG_EVIDENCE_NATIVE": "true"}
KEPT = re.compile(r"^diag: evidence of hang is kept \((\S+ KiB)\): diag replay (\S+)$", re.MULTILINE)


def read_bundle(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar.getmembers()}  # type: ignore[union-attr]


def fetched(url: str) -> bytes:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=30) as answer:
        data: bytes = answer.read()
    return data


def report_of(url: str) -> Any:
    return json.loads(fetched(f"{url}/findings"))


def test_evidence_is_on_disk_before_anybody_ends_the_job_and_is_named_wherever_one_looks(
    tmp_path: Path,
) -> None:
    with live_run(tmp_path, JOB, env=FAULT) as run:
        # when the hang is told, then a line says where its evidence is
        path = Path(run.until(lambda: KEPT.search(run.text), 150)[2])
        url = run.run_json()["url"]

        # with the frames of C of two ranks, which no reading took for a stop of theirs
        held = read_bundle(path)
        document = json.loads(held["dump.json"])
        natives = {one["rank"]: one for one in document["native"]}
        assert set(natives) == {0, 1}, natives
        for native in natives.values():
            assert native["reason"] == "" and native["seconds"] < 6
            assert any("c10d" in frame for thread in native["threads"] for frame in thread["frames"])
        assert not [one for one in run.changes() if one["finding"]["class"] == "stopped"]
        assert {"log.txt", "kernel.txt", "proc/rank0.txt", "proc/rank1.txt", "stacks.txt"} <= set(held)
        assert b"'iteration': '3/" in held["log.txt"]
        assert [name for name in held if not MEMBERS.fullmatch(name)] == []
        found = {one for name in ("dump.json", "manifest.json") for one in paths(name, held[name])}
        assert sorted(one for one in found if not PATHS.fullmatch(one)) == []

        # and it is in run.json, on the page with a link, and in the report
        assert run.run_json()["evidence"] == [str(path)]
        [hang] = [one for one in report_of(url)["findings"] if one["id"] == "hang"]
        assert hang["bundle"] == str(path)
        assert fetched(f"{url}/bundles/{path.name}") == path.read_bytes()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            fetched(f"{url}/bundles/run.json")
        assert b"diag-saved" in fetched(f"{url}/report.html")

        # and the run's last line says it again
        run.process.terminate()
        run.wait(60)
        assert f"; evidence kept when it was told: {path}; look again: " in run.text
    assert [path] == list(path.parent.iterdir())

    # and the bundle alone tells the same
    told = subprocess.run([*DIAG, "replay", "--json", str(path)], capture_output=True, text=True, check=False)
    assert told.returncode == 10
    assert [one["class"] for one in json.loads(told.stdout)["findings"]] == ["collective_order_deadlock"]


def is_told(run: LiveRun) -> bool:
    return bool((change := run.hang()) and change["finding"]["severity"] == "critical")


def test_nothing_is_kept_where_it_is_switched_off(tmp_path: Path) -> None:
    with live_run(tmp_path, JOB, "--no-auto-evidence", env=FAULT) as run:
        run.until(lambda: is_told(run), 150)
        run.process.terminate()
        run.wait(60)

        assert run.run_dir is not None
        assert not KEPT.search(run.text) and list((run.run_dir / "dumps").iterdir()) == []
