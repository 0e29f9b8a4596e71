"""Keeps what the machine shows as captures for ordinary tests: `python -m tests.vm.memory.record [ANSWERS
...]` (else it boots; of several the last that has a part counts).

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
from tests.vm.memory.scenarios import FOR_ALL, SCENARIOS, Scenario

FOLDER = image.REPOSITORY / "tests" / "captures" / "memory" / "v2"
# Whose report in the kernel's log is kept whole, line by line.
_KERNEL = (
    "rank_limit",
    "pod_limit",
    "container_limit",
    "group_kill",
    "host_runs_out",
    "fork_refused",
    "pids_limit",
)


def main(words: list[str]) -> None:
    parts: dict[str, dict[str, Any]] = {}
    for word in words:
        parts |= machine.read(Path(word))
    if not words:
        with tempfile.TemporaryDirectory() as folder:
            parts = machine.run(image.image(), Path(folder), 2400, ["memory"]).parts
    FOLDER.mkdir(parents=True, exist_ok=True)
    for scenario in SCENARIOS:
        part = parts[f"memory:{scenario.name}"]
        run = part["result"]
        if run["problem"]:
            sys.exit(f"{scenario.name}: {run['problem']}")
        (FOLDER / f"journal-{scenario.name}.jsonl.gz").write_bytes(_journal(run["run"]))
        if scenario.name in _KERNEL:
            (FOLDER / f"kmsg-{scenario.name}.txt").write_text(
                "".join(f"{line}\n" for line in _own(run, scenario))
            )


def _own(run: dict[str, Any], scenario: Scenario) -> Iterator[str]:
    """Of a log to which other jobs gave rise too: the reports and lines that name this job's cgroups; all, if
    it ran alone."""
    reports: list[list[str]] = [[]]
    for line in run["kernel"]:
        if "invoked oom-killer" in line:
            reports.append([])
        elif "fork rejected" in line or "enough memory" in line:
            reports += [[line], []]
            continue
        reports[-1].append(line)
    for report in reports:
        if scenario.host in FOR_ALL or any(f"/{scenario.name}" in line for line in report):
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
