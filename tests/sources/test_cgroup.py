from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.model import Record
from diag.model.observations import (
    CgroupLevel,
    HostMemory,
    SourceFailed,
)
from diag.sources.host.cgroup import CgroupReader, parse
from tests.sources.cgroups import GIB, NO_LIMIT_V1, V1_STAT, V2_MOUNT, cgroup_of, look, machine, v1, v2


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
