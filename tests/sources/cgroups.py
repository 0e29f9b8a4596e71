"""Files of cgroups and of /proc as kernels write them, and what a reader finds in them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from diag.model import Record
from diag.model.observations import (
    CgroupMemory,
    Observation,
)
from diag.sources.host.cgroup import CgroupReader, parse

CAPTURES = Path(__file__).parents[1] / "captures" / "sources" / "cgroup"


GIB = 1 << 30


# Linux 6.18, memory.stat of a v1 cgroup, trimmed
V1_STAT = """cache 5881856
shmem 0
inactive_file 3141632
hierarchical_memory_limit 9223372036854771712
total_cache 5881856
total_rss 12320768
total_shmem 4096
total_inactive_file 3141632
total_active_file 2740224
"""


NO_LIMIT_V1 = "9223372036854771712\n"


def v2(directory: Path, usage: int, limit: str, kills: int = 0, high: int = 0) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "memory.current").write_text(f"{usage}\n")
    (directory / "memory.max").write_text(f"{limit}\n")
    (directory / "memory.peak").write_text(f"{usage + 1}\n")
    (directory / "memory.events").write_text(
        f"low 0\nhigh {high}\nmax 7\noom {kills}\noom_kill {kills}\noom_group_kill 0\n"
    )
    shutil.copy(CAPTURES / "memory.stat", directory)


def v1(directory: Path, usage: int, limit: str, kills: int = 0) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "memory.usage_in_bytes").write_text(f"{usage}\n")
    (directory / "memory.limit_in_bytes").write_text(limit)
    (directory / "memory.max_usage_in_bytes").write_text(f"{usage + 1}\n")
    (directory / "memory.oom_control").write_text(f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n")
    (directory / "memory.stat").write_text(V1_STAT)


def machine(tmp_path: Path, cgroup: str, mountinfo: str, own_mountinfo: str = "") -> Path:
    """A /proc with process 7 and ourselves, and the memory of a real host."""
    for who, mounts in (("7", mountinfo), ("self", own_mountinfo)):
        (tmp_path / who).mkdir()
        (tmp_path / who / "cgroup").write_text(cgroup)
        (tmp_path / who / "mountinfo").write_text(mounts)
        ids = "\t".join([str(os.geteuid())] * 4)
        (tmp_path / who / "status").write_text(f"Uid:\t{ids}\nGid:\t{ids}\n")
    shutil.copy(CAPTURES / "meminfo", tmp_path / "meminfo")
    (tmp_path / "vmstat").write_text("nr_free_pages 1\noom_kill 5\nnuma_hit 2\n")
    return tmp_path


def look(reader: CgroupReader) -> list[Observation]:
    return list(parse(Record("cgroup", reader.sample(), rank=1)))


def cgroup_of(reader: CgroupReader) -> CgroupMemory:
    (found,) = [item for item in look(reader) if isinstance(item, CgroupMemory)]
    return found


V2_MOUNT = "30 25 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
