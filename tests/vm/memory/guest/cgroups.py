"""The machine's cgroups: a "pod" for each job, and in it one for each rank or one "container" for all."""

from __future__ import annotations

import re
from pathlib import Path

from tests.vm.memory.scenarios import Scenario

ROOT = Path("/sys/fs/cgroup")
_CONTROLLERS = "+memory +pids"
_TOLD = ("memory.current", "memory.max", "memory.high", "memory.peak", "memory.events", "memory.events.local", "memory.oom.group",
         "memory.pressure", "memory.stat", "memory.swap.max", "pids.current", "pids.max", "pids.peak", "pids.events")  # fmt: skip


def prepare() -> None:
    (ROOT / "cgroup.subtree_control").write_text(_CONTROLLERS)


def leaves(scenario: Scenario) -> tuple[Path, Path]:
    """Where the two ranks live: in one, where a limit is set on `main`."""
    pod = ROOT / scenario.name
    if any(name == "main" for name, _, _ in scenario.limits):
        return pod / "main", pod / "main"
    return pod / "rank0", pod / "rank1"


def make(scenario: Scenario) -> None:
    pod = ROOT / scenario.name
    pod.mkdir()
    (pod / "cgroup.subtree_control").write_text(_CONTROLLERS)
    for leaf in leaves(scenario):
        leaf.mkdir(exist_ok=True)
    for name, file, value in scenario.limits:
        (pod / name / file).write_text(value)


def inside(folder: Path) -> list[str]:
    """What is put before a command so that it runs in this cgroup."""
    return ["sh", "-c", f'echo $$ >{folder}/cgroup.procs && exec "$@"', "sh"]


def told(scenario: Scenario) -> dict[str, dict[str, str]]:
    """What the kernel says of the pod and what is in it; of files that it lacks nothing."""
    found = {}
    for folder in dict.fromkeys((ROOT / scenario.name, *leaves(scenario))):
        files = {name: (folder / name).read_text() for name in _TOLD if (folder / name).exists()}
        found[str(folder.relative_to(ROOT / scenario.name))] = files
    return found


def oom_kills() -> int:
    """Of the whole machine, since it started."""
    found = re.search(r"^oom_kill (\d+)", Path("/proc/vmstat").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])
