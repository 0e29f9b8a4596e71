"""A bundle leaves the machine: what it holds is on a list, and nothing else is."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.liverun import LiveRun
from tests.security.bundleshape import ENVIRONMENT, MEMBERS, PATHS, paths
from tests.security.secretrun import TOKEN, unpacked

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("secrets")]


def members(run: LiveRun) -> dict[str, bytes]:
    assert run.run_dir is not None
    (bundle,) = run.run_dir.glob("dumps/dump-*.tar.gz")
    found = {}
    with tarfile.open(bundle) as tar:
        for member in tar:
            file = tar.extractfile(member)
            assert file is not None and (member.uid, member.gid, member.uname, member.mode) == (
                0,
                0,
                "",
                0o600,
            )
            body = file.read()
            found[member.name] = unpacked(body) if member.name.endswith(".gz") else body
    return found


def test_bundle_has_the_members_on_the_list_and_no_others(run: LiveRun) -> None:
    names = set(members(run))

    assert {"manifest.json", "dump.json", "stacks.txt", "journal-000001.jsonl.gz"} <= names
    assert [name for name in names if not MEMBERS.fullmatch(name)] == []


def test_every_value_of_a_bundle_is_under_a_name_on_the_list(run: LiveRun) -> None:
    found = {
        path
        for name, body in members(run).items()
        if not name.endswith(".txt")  # whose words are those of dump.json
        for path in paths(name, body)
    }

    assert len(found) > 150
    assert sorted(path for path in found if not PATHS.fullmatch(path)) == []


def test_variables_of_ranks_are_those_on_the_list(run: LiveRun) -> None:
    told = members(run)
    names = {name for each in json.loads(told["manifest.json"])["processes"] for name in each["environment"]}
    for line in told["journal-000001.jsonl.gz"].splitlines():
        names |= set((json.loads(line).get("payload") or {}).get("env") or ()) if b'"env"' in line else set()

    assert {"RANK", "WORLD_SIZE", "NCCL_DEBUG"} <= names
    assert sorted(name for name in names if not ENVIRONMENT.fullmatch(name)) == []


def test_list_would_notice_a_new_field_of_any_kind() -> None:
    for path in ("manifest.json.environment", "manifest.json.processes[].cwd", "dump.json.ranks[].locals.x", "dump.json.token",
                 "journal.output.cwd", "journal.proc.environ", "journal.new_source.x", "journal.run.environ.HOME"):  # fmt: skip
        assert not PATHS.fullmatch(path), path
    for name in (
        "HOME",
        "HF_TOKEN",
        "NCCL_AUTH_SECRET",
        "SLURM_JWT",
        "AWS_SECRET_ACCESS_KEY",
        "WANDB_API_KEY",
        "PATH",
    ):
        assert not ENVIRONMENT.fullmatch(name), name


def test_bundle_reads_back_and_tells_no_secret(run: LiveRun, tmp_path: Path) -> None:
    assert run.run_dir is not None
    (bundle,) = run.run_dir.glob("dumps/dump-*.tar.gz")
    done = subprocess.run([sys.executable, "-m", "diag", "replay", str(bundle), "--json"], capture_output=True, text=True,
                          check=False, timeout=60)  # fmt: skip

    assert json.loads(done.stdout)["schema"] == "diag.report/1"
    assert "s3cretvalue" not in done.stdout + done.stderr and TOKEN not in done.stdout + done.stderr


def test_variable_that_holds_a_secret_is_in_the_bundle_without_it(run: LiveRun) -> None:
    journal = b"".join(body for name, body in members(run).items() if name.startswith("journal"))
    rows = [line for line in journal.splitlines() if b'"source":"variables"' in line.replace(b" ", b"")]

    assert any(b'["hub_token","***"]' in row.replace(b" ", b"") for row in rows)
    assert not [row for row in rows if b"s3cretvalue" in row]
