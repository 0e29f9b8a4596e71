"""Cgroups and their processes: how many there may be, and one that is killed, gone or moved."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from diag.model.observations import (
    CgroupMemory,
    CgroupPids,
    HostMemory,
    SourceFailed,
)
from diag.sources.host.cgroup import CgroupReader
from tests.sources.cgroups import GIB, V2_MOUNT, cgroup_of, look, machine, v1, v2


def pids(directory: Path, current: int, limit: str, refused: int, local: int | None = None) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "pids.current").write_text(f"{current}\n")
    (directory / "pids.max").write_text(f"{limit}\n")
    (directory / "pids.events").write_text(f"max {refused}\n")
    if local is not None:
        (directory / "pids.events.local").write_text(f"max {local}\n")


def pids_of(reader: CgroupReader) -> CgroupPids:
    (found,) = [item for item in look(reader) if isinstance(item, CgroupPids)]
    return found


def test_tightest_limit_of_processes_is_told_on_v2_and_a_refusal_once(tmp_path: Path) -> None:
    # given a kernel (6.11 and later) that counts a refusal where the limit is, and in all parents of it
    proc = machine(tmp_path, "0::/pod/main\n", V2_MOUNT)
    top = tmp_path / "7/root/sys/fs/cgroup"
    pids(top / "pod/main", 90, "max", 0, 0)
    pids(top / "pod", 100, "104", 2, 2)

    assert pids_of(CgroupReader(7, proc)) == CgroupPids(1, "/sys/fs/cgroup/pod", 100, 104, 2)


def test_limit_of_processes_of_v1_is_read_beside_the_memory_of_v1(tmp_path: Path) -> None:
    proc = machine(
        tmp_path,
        "8:pids:/docker/1\n4:memory:/docker/2\n0::/\n",
        "33 25 0:29 / /sys/fs/cgroup/memory rw - cgroup - rw,memory\n39 31 0:36 / /sys/fs/cgroup/pids rw - cgroup - rw,pids\n",
    )
    v1(tmp_path / "7/root/sys/fs/cgroup/memory/docker/2", GIB, f"{2 * GIB}\n")
    pids(tmp_path / "7/root/sys/fs/cgroup/pids/docker/1", 40, "64", 1)
    pids(tmp_path / "7/root/sys/fs/cgroup/pids/docker", 50, "max", 0)

    found = pids_of(CgroupReader(7, proc))

    assert found == CgroupPids(1, "/sys/fs/cgroup/pids/docker/1", 40, 64, 1)


def test_no_limit_of_processes_is_none(tmp_path: Path) -> None:
    proc = machine(tmp_path, "0::/a\n", V2_MOUNT)
    pids(tmp_path / "7/root/sys/fs/cgroup/a", 7, "max", 0)

    assert pids_of(CgroupReader(7, proc)) == CgroupPids(1, "/sys/fs/cgroup/a", 7, None, 0)


def test_cgroup_that_went_with_its_process_is_no_reading_and_no_damage(tmp_path: Path) -> None:
    proc = machine(tmp_path, "0::/a\n", V2_MOUNT)
    directory = tmp_path / "7/root/sys/fs/cgroup/a"
    v2(directory, GIB, str(2 * GIB))
    reader = CgroupReader(7, proc)
    before = cgroup_of(reader)
    shutil.rmtree(directory)

    after = look(reader)

    assert before.limit_bytes == 2 * GIB
    assert [type(item) for item in after] == [HostMemory]


def test_counter_is_read_after_the_process_is_gone(tmp_path: Path) -> None:
    proc = machine(tmp_path, "0::/a\n", V2_MOUNT)
    directory = tmp_path / "7/root/sys/fs/cgroup/a"
    v2(directory, GIB, str(2 * GIB))
    reader = CgroupReader(7, proc)
    before = cgroup_of(reader)
    v2(directory, GIB, str(2 * GIB), kills=1)
    (tmp_path / "7").rename(tmp_path / "gone")

    assert (before.oom_kills, cgroup_of(reader).oom_kills) == (0, 1)


def test_process_that_was_never_seen_is_a_failed_source(tmp_path: Path) -> None:
    proc = machine(tmp_path, "0::/\n", V2_MOUNT)

    failed = look(CgroupReader(8, proc))[0]

    assert isinstance(failed, SourceFailed) and failed.reason == "process 8 is gone"


def test_real_oom_kill_raises_the_counter_of_the_real_cgroup(small_cgroup: Path) -> None:
    # given a process in a cgroup of 48 MiB, with no swap to escape to
    eater = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input(); b'x' * (200 << 20)"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert eater.stdout is not None
    eater.stdout.readline()
    (small_cgroup / "cgroup.procs").write_text(str(eater.pid))
    reader = CgroupReader(eater.pid)
    before = cgroup_of(reader)
    host_before = [item for item in look(reader) if isinstance(item, HostMemory)]

    # when it eats 200 MiB
    eater.communicate(b"\n")

    # then the kernel killed it, and said so where we look, though the process is gone
    after = cgroup_of(reader)
    host_after = [item for item in look(reader) if isinstance(item, HostMemory)]
    reader.close()
    assert eater.returncode == -9
    assert (before.limit_bytes, after.limit_bytes) == (48 << 20, 48 << 20)
    assert before.path == str(small_cgroup)
    assert after.oom_kills > before.oom_kills == 0
    assert after.peak_bytes is None or after.peak_bytes > 40 << 20
    assert (host_after[0].oom_kills or 0) >= (host_before[0].oom_kills or 0)


def test_process_that_nobody_reaped_yet_has_not_moved(small_cgroup: Path) -> None:
    # given a process that ended, and of which cgroup v1 shows "/" from then on
    ended = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert ended.stdout is not None and ended.stdin is not None
    ended.stdout.readline()
    (small_cgroup / "cgroup.procs").write_text(str(ended.pid))
    reader = CgroupReader(ended.pid)
    before = cgroup_of(reader)
    ended.stdin.close()
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)

    # when its cgroup is read once more
    after = cgroup_of(reader)
    ended.wait()
    reader.close()

    # then it is the one that it lived in
    assert (after.path, after.limit_bytes) == (before.path, 48 << 20)


def test_process_that_was_moved_is_followed(small_cgroup: Path) -> None:
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    reader = CgroupReader(process.pid)
    before = [item for item in look(reader) if isinstance(item, CgroupMemory)]

    (small_cgroup / "cgroup.procs").write_text(str(process.pid))
    after = cgroup_of(reader)
    process.communicate()
    reader.close()

    assert after.limit_bytes == 48 << 20
    assert not before or before[0].path != after.path
