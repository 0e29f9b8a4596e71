"""Keeps what the machine shows as captures for ordinary tests: `python -m tests.vm.memory.record [ANSWERS]` (else it boots).

Writes below tests/captures/memory/v2.
"""

from __future__ import annotations

import base64
import io
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.vm import image, machine
from tests.vm.memory.scenarios import SCENARIOS

FOLDER = image.REPOSITORY / "tests" / "captures" / "memory" / "v2"
# Whose report in the kernel's log is kept whole, line by line.
_KERNEL = ("rank_limit", "pod_limit", "container_limit", "group_kill", "host_runs_out", "fork_refused", "pids_limit")


def main(words: list[str]) -> None:
    if words:
        parts = machine.read(Path(words[0]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            parts = machine.run(image.image(), Path(folder), 1500, ["memory"]).parts
    FOLDER.mkdir(parents=True, exist_ok=True)
    for scenario in SCENARIOS:
        part = parts[f"memory:{scenario.name}"]
        run = part["result"]
        if run["problem"]:
            sys.exit(f"{scenario.name}: {run['problem']}")
        (FOLDER / f"journal-{scenario.name}.jsonl.gz").write_bytes(_journal(run["run"]))
        if scenario.name in _KERNEL:
            (FOLDER / f"kmsg-{scenario.name}.txt").write_text("".join(f"{line}\n" for line in _own(run, scenario.name)))


def _own(run: dict[str, Any], name: str) -> Iterator[str]:
    """Of a log to which other jobs gave rise too: the reports and lines that name this job's cgroups, or no cgroup of a job."""
    reports: list[list[str]] = [[]]
    for line in run["kernel"]:
        if "invoked oom-killer" in line:
            reports.append([])
        elif "fork rejected" in line or "enough memory" in line:
            reports += [[line], []]
            continue
        reports[-1].append(line)
    for report in reports:
        if any(f"/{name}" in line or "global_oom" in line or "enough memory" in line for line in report):
            yield from report


def _journal(packed: str) -> bytes:
    """A run of a minute has one journal file."""
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(packed))) as tar:
        (member,) = [member for member in tar if Path(member.name).name.startswith("journal-")]
        file = tar.extractfile(member)
        assert file is not None
        return file.read()


if __name__ == "__main__":
    main(sys.argv[1:])
