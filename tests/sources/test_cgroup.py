from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.model import Record
from diag.model.observations import (
    CgroupLevel,
    CgroupMemory,
    CgroupPids,
    HostMemory,
    Observation,
    SourceFailed,
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


def test_tightest_of_own_and_parents_limits_is_told_on_v2(tmp_path: Path) -> None:
    # given a pod of 100 GiB, all but 1 used by two containers, one of them ours with 80 GiB and half of it
    # used
    proc = machine(tmp_path, "0::/pod/main\n", V2_MOUNT)
    top = tmp_path / "7" / "root" / "sys" / "fs" / "cgroup"
    v2(top / "pod" / "main", 40 * GIB, str(80 * GIB), kills=2, high=9)
    v2(top / "pod", 99 * GIB, str(100 * GIB), kills=4)
    (top / "cgroup.controllers").write_text("cpu memory\n")  # the top has no memory.max

    found = cgroup_of(CgroupReader(7, proc))

    assert (found.version, found.path) == (2, "/sys/fs/cgroup/pod")
    assert (found.usage_bytes, found.limit_bytes, found.peak_bytes) == (99 * GIB, 100 * GIB, 99 * GIB + 1)
    assert (found.oom_kills, found.high_events) == (2, 9)  # our own, not those of the neighbour
    assert found.cache_bytes == 2946433024 + 1464356864 and found.shmem_bytes == 50184192


def test_breakdown_events_and_all_limits_are_told_on_v2(tmp_path: Path) -> None:
    # given a container under memory.high inside a pod with a limit, in between a level without any
    proc = machine(tmp_path, "0::/pod/mid/main\n", V2_MOUNT)
    top = tmp_path / "7" / "root" / "sys" / "fs" / "cgroup"
    v2(top / "pod" / "mid" / "main", 40 * GIB, str(80 * GIB), high=291)
    v2(top / "pod" / "mid", 40 * GIB, "max")
    v2(top / "pod", 50 * GIB, str(100 * GIB), kills=4)
    (top / "pod/mid/main/memory.high").write_text(f"{60 * GIB}\n")
    (top / "pod/memory.events.local").write_text(
        "low 0\nhigh 0\nmax 3\noom 0\noom_kill 0\noom_group_kill 0\n"
    )
    (top / "pod/mid/main/memory.pressure").write_text(
        "some avg10=36.74 avg60=7.41 avg300=1.57 total=5370698\nfull avg10=35.17 avg60=7.01 avg300=1.49 total=4819855\n"
    )

    found = cgroup_of(CgroupReader(7, proc))

    assert (found.anon_bytes, found.dirty_bytes) == (4239376384, 417792)
    assert (found.high_events, found.max_events, found.pressure_full_ratio) == (291, 7, 0.3517)
    assert found.levels == (
        CgroupLevel("/sys/fs/cgroup/pod/mid/main", 40 * GIB, 80 * GIB, 40 * GIB + 1, 60 * GIB, 0, 7),
        CgroupLevel("/sys/fs/cgroup/pod", 50 * GIB, 100 * GIB, 50 * GIB + 1, None, 4, 3),
    )
    assert found.needed_bytes == 40 * GIB - (2946433024 + 1464356864 - 417792)


def test_breakdown_of_a_v1_cgroup_is_with_those_below_it(tmp_path: Path) -> None:
    proc = machine(
        tmp_path, "4:memory:/a\n", "33 25 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    )
    directory = tmp_path / "7/root/sys/fs/cgroup/memory/a"
    v1(directory, GIB, f"{2 * GIB}\n")
    (directory / "memory.stat").write_text(
        f"dirty 1\nwriteback 1\n{V1_STAT}total_dirty 8192\ntotal_writeback 4096\n"
    )
    (directory / "memory.failcnt").write_text("19\n")

    found = cgroup_of(CgroupReader(7, proc))

    assert (found.anon_bytes, found.dirty_bytes, found.max_events) == (12320768, 12288, 19)


def test_parent_as_full_as_its_child_is_named_when_the_limit_is_its_own(tmp_path: Path) -> None:
    # given v1, where the child tells its parent's limit too
    proc = machine(
        tmp_path, "4:memory:/pod/main\n", "33 25 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    )
    top = tmp_path / "7/root/sys/fs/cgroup/memory/pod"
    for directory, limit in ((top, f"{2 * GIB}\n"), (top / "main", NO_LIMIT_V1)):
        v1(directory, GIB, limit)
        (directory / "memory.stat").write_text(V1_STAT.replace("9223372036854771712", str(2 * GIB)))

    found = cgroup_of(CgroupReader(7, proc))

    assert (found.path, found.limit_bytes) == ("/sys/fs/cgroup/memory/pod", 2 * GIB)
    assert [level.limit_bytes for level in found.levels] == [None, 2 * GIB]


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


def test_reading_is_asked_for_more_often_only_where_a_limit_is_near(tmp_path: Path) -> None:
    proc = machine(tmp_path, "0::/a\n", V2_MOUNT)
    directory = tmp_path / "7/root/sys/fs/cgroup/a"
    reader = CgroupReader(7, proc)
    crowded = []
    for usage, limit in ((GIB, "max"), (GIB, str(2 * GIB)), (GIB, str(GIB + 1))):
        v2(directory, usage, limit)
        reader.sample()
        crowded.append(reader.crowded)

    assert crowded == [False, False, True]


def test_no_limit_on_v2_is_no_limit(tmp_path: Path) -> None:
    proc = machine(tmp_path, "0::/user.slice\n", V2_MOUNT)
    v2(tmp_path / "7/root/sys/fs/cgroup/user.slice", 5 * GIB, "max")

    found = cgroup_of(CgroupReader(7, proc))

    assert (found.usage_bytes, found.limit_bytes) == (5 * GIB, None)


def test_kernel_without_peak_and_counters_gives_the_rest(tmp_path: Path) -> None:
    proc = machine(tmp_path, "0::/a\n", V2_MOUNT)
    directory = tmp_path / "7/root/sys/fs/cgroup/a"
    v2(directory, GIB, str(2 * GIB))
    for name in ("memory.peak", "memory.events", "memory.stat"):
        (directory / name).unlink()

    found = cgroup_of(CgroupReader(7, proc))

    assert (found.usage_bytes, found.limit_bytes, found.peak_bytes, found.oom_kills) == (
        GIB,
        2 * GIB,
        None,
        0,
    )


def test_private_cgroup_namespace_is_read_through_the_ranks_own_root(tmp_path: Path) -> None:
    # given a sidecar: it sees the rank beside itself, as /../ID, and its own limit is not the rank's
    proc = machine(
        tmp_path,
        "0::/../trainer\n",
        "30 25 0:26 /../trainer /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n",
        V2_MOUNT,
    )
    v2(tmp_path / "7/root/sys/fs/cgroup", GIB, str(300 << 20))
    own = tmp_path / "own"
    v2(own / "sys/fs/cgroup", GIB, str(128 << 20))

    reader = CgroupReader(7, proc, own=own)

    assert cgroup_of(reader).limit_bytes == 300 << 20
    assert reader.sample()["view"] == "rank"


def test_hybrid_takes_the_memory_controller_of_v1(tmp_path: Path) -> None:
    # given this project's own build machine (Linux 6.18), inside a Docker-like mount of one cgroup
    proc = machine(
        tmp_path,
        "5:devices:/\n4:memory:/docker/4d27\n1:cpu:/\n0::/\n",
        "33 25 0:29 /docker/4d27 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "40 25 0:36 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
    )
    v1(tmp_path / "7/root/sys/fs/cgroup/memory", 3 * GIB, f"{4 * GIB}\n", kills=1)

    found = cgroup_of(CgroupReader(7, proc))

    assert (found.version, found.path) == (1, "/sys/fs/cgroup/memory")
    assert (found.limit_bytes, found.oom_kills) == (4 * GIB, 1)
    assert (found.cache_bytes, found.shmem_bytes) == (3141632 + 2740224, 4096)


def test_no_limit_on_v1_is_no_limit_but_a_hidden_parents_is(tmp_path: Path) -> None:
    proc = machine(
        tmp_path, "4:memory:/a\n", "33 25 0:29 /a /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    )
    directory = tmp_path / "7/root/sys/fs/cgroup/memory"
    v1(directory, GIB, NO_LIMIT_V1)
    reader = CgroupReader(7, proc)
    unlimited = cgroup_of(reader)
    (directory / "memory.stat").write_text(V1_STAT.replace("9223372036854771712", str(6 * GIB)))

    assert unlimited.limit_bytes is None
    assert cgroup_of(reader).limit_bytes == 6 * GIB


def test_view_that_shows_more_parents_is_taken(tmp_path: Path) -> None:
    # given diag on the host, where the pod's limit above the container's own can be seen
    proc = machine(
        tmp_path, "0::/pod/main\n", "30 25 0:26 /pod/main /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n", V2_MOUNT
    )
    v2(tmp_path / "7/root/sys/fs/cgroup", GIB, "max")
    own = tmp_path / "own"
    v2(own / "sys/fs/cgroup/pod/main", GIB, "max")
    v2(own / "sys/fs/cgroup/pod", GIB, str(2 * GIB))

    assert cgroup_of(CgroupReader(7, proc, own=own)).limit_bytes == 2 * GIB


def test_counter_is_read_after_the_process_is_gone(tmp_path: Path) -> None:
    proc = machine(tmp_path, "0::/a\n", V2_MOUNT)
    directory = tmp_path / "7/root/sys/fs/cgroup/a"
    v2(directory, GIB, str(2 * GIB))
    reader = CgroupReader(7, proc)
    before = cgroup_of(reader)
    v2(directory, GIB, str(2 * GIB), kills=1)
    (tmp_path / "7").rename(tmp_path / "gone")

    assert (before.oom_kills, cgroup_of(reader).oom_kills) == (0, 1)


def test_host_memory_is_told_beside_the_cgroup_and_without_it(tmp_path: Path) -> None:
    # given the top cgroup of v2, which has no limit and no usage of its own
    proc = machine(tmp_path, "0::/\n", V2_MOUNT)
    (tmp_path / "7/root/sys/fs/cgroup").mkdir(parents=True)

    found = look(CgroupReader(7, proc))

    assert found == [
        HostMemory(
            1,
            263998500 * 1024,
            258786572 * 1024,
            oom_kills=5,
            commit_limit_bytes=131999248 * 1024,
            committed_bytes=83700292 * 1024,
            shmem_bytes=49008 * 1024,
            dirty_bytes=244 * 1024,
        )
    ]


def test_cgroup_that_cannot_be_seen_is_a_failed_source_with_a_reason(tmp_path: Path) -> None:
    # given no mount of cgroups anywhere
    proc = machine(tmp_path, "0::/a/b\n", "")

    failed, host = look(CgroupReader(7, proc))

    assert isinstance(failed, SourceFailed) and isinstance(host, HostMemory)
    assert failed.reason == "no cgroup mount shows /a/b" and failed.remedy


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


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
NUMBERS = st.text("0123456789 \nmax") | JSON
LEVEL = st.fixed_dictionaries(
    {},
    optional={
        "path": JSON,
        "usage": NUMBERS,
        "limit": NUMBERS,
        "peak": NUMBERS,
        "events": JSON,
        "stat": JSON,
    },
)
PAYLOAD = st.fixed_dictionaries(
    {},
    optional={
        "version": JSON,
        "levels": st.lists(LEVEL | JSON) | JSON,
        "missing": JSON,
        "meminfo": JSON | st.just("MemTotal: 5 kB\n"),
        "vmstat": JSON,
    },
)


@settings(deadline=None, max_examples=60)
@given(PAYLOAD | JSON)
def test_parse_raises_for_nothing(payload: Any) -> None:
    assert list(parse(Record("cgroup", payload)))


@settings(deadline=None, max_examples=60)
@given(cgroup=st.text(), mountinfo=st.text() | st.just(V2_MOUNT))
def test_reader_raises_for_no_contents_of_proc(
    tmp_path_factory: pytest.TempPathFactory, cgroup: str, mountinfo: str
) -> None:
    tmp_path = tmp_path_factory.mktemp("proc")
    for who in ("7", "self"):
        (tmp_path / who).mkdir()
        (tmp_path / who / "cgroup").write_bytes(cgroup.encode(errors="replace"))
        (tmp_path / who / "mountinfo").write_bytes(mountinfo.encode(errors="replace"))

    assert look(CgroupReader(7, tmp_path, own=tmp_path))
