"""Limits before the run, as a shell sets them; and NPUs by the words of npu-smi."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from diag.launch.launchers.command import read_command
from diag.preflight.gpus import parse_list
from diag.preflight.machine import needed_processes


def doctor_after(setup: str, *words: str, path: str = "") -> dict[str, Any]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "VIRTUAL_ENV") if name in os.environ}
    kept["PATH"] = ":".join(filter(None, (path, kept["PATH"])))
    done = subprocess.run(
        ["bash", "-c", f'{setup} && exec "$0" -m diag doctor --json -- "$@"', sys.executable, *words],
        env=kept, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode in (0, 10), done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def said(document: dict[str, Any], what: str) -> list[tuple[str, str]]:
    return [(line["status"], line["said"]) for line in document["checks"] if line["what"] == what]


def test_limits_that_end_a_training_are_told() -> None:
    found = said(doctor_after("ulimit -f 2097152; ulimit -v 20971520", "python", "t.py"), "limits")

    assert ("problem", "limit of the size of a file is 2 GiB (`ulimit -f`): a checkpoint file that exceeds it kills the "
            "rank") in found  # fmt: skip
    assert any(
        status == "problem" and "address space is 20 GiB (`ulimit -v`)" in words for status, words in found
    )


def test_machine_without_such_limits_is_ok() -> None:
    assert said(doctor_after("ulimit -c 0", "python", "t.py"), "limits") == [
        ("ok", "no limit of address space, data or file size")
    ]


def test_processes_that_ranks_and_workers_need() -> None:
    launch = read_command(["torchrun", "--nproc_per_node", "8", "t.py", "--dataloader_num_workers", "10"], {})

    assert needed_processes(launch, 8) == 8 * (150 + 30) and needed_processes(None, 1) == 162


@pytest.mark.skipif(os.geteuid() != 0, reason="a cgroup of its own needs root")
def test_cgroup_with_too_few_processes_for_the_ranks() -> None:
    for parent in (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")):
        group = parent / f"diag-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        if (group / "pids.max").exists():
            break
        group.rmdir()
    else:
        pytest.skip("no pids cgroup may be made here")
    try:
        (group / "pids.max").write_text("300")
        document = doctor_after(
            f"echo $$ > {group}/cgroup.procs", "torchrun", "--nproc_per_node", "8", "t.py"
        )
    finally:
        group.rmdir()

    ((status, words),) = said(document, "processes")
    assert (
        status == "problem"
        and "pids.max 300 of cgroup" in words
        and "8 ranks and their workers need about 1296" in words
    )
    assert "pids-limit" in [one["id"] for one in document["findings"]]


# hiascend.com, HDK 26.1.0, Atlas A3: `npu-smi info -l`
A3 = "Total Count                    : 1\nNPU ID                         : 0\nChip Count                     : 2\n"


def test_npus_are_counted_by_their_chips() -> None:
    assert parse_list(A3) == 2 and parse_list("\tTotal Count                    : 8\n") == 8
    assert parse_list("dcmi module initialize failed. ret is -8005") is None


def npu_smi(folder: Path, script: str) -> str:
    program = folder / "npu-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return str(folder)


def test_npus_that_npu_smi_shows_are_held_against_the_ranks(tmp_path: Path) -> None:
    path = npu_smi(tmp_path, f"cat <<'E'\n{A3}E")

    document = doctor_after("true", "torchrun", "--nproc_per_node", "4", "t.py", path=path)

    assert said(document, "NPUs") == [("ok", "npu-smi shows 2 NPUs")]
    assert any(
        status == "problem" and "2 NPUs are here" in words for status, words in said(document, "launch")
    )


def test_npu_smi_that_fails_is_not_checked(tmp_path: Path) -> None:
    path = npu_smi(tmp_path, "echo 'dcmi module initialize failed. ret is -8005'; exit 1")

    ((status, words),) = said(doctor_after("true", "python", "t.py", path=path), "NPUs")

    assert status == "not checked" and "dcmi module initialize failed" in words
