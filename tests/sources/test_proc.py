from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.model import Record
from diag.model.observations import LimitsSeen, ProcessTree, Unparsed
from diag.sources.host.proc import ProcessGone, ProcessReader, parse

CAPTURES = Path(__file__).parents[1] / "captures" / "sources" / "proc"


def tree_of(payload: Any, rank: int | None = 0) -> ProcessTree:
    (tree,) = parse(Record("proc", payload, rank=rank, emitted=7.0))
    assert isinstance(tree, ProcessTree)
    return tree


@contextmanager
def started(code: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def captured_root(tmp_path: Path, rank: int) -> tuple[int, Path]:
    """A /proc with one process: that of a real rank on an H200 machine."""
    stat = (CAPTURES / f"stat_rank{rank}").read_text()
    pid = stat.split()[0]
    (tmp_path / pid / "task" / pid).mkdir(parents=True)
    for name in ("stat", "io", "status", "wchan", "limits"):
        if (source := CAPTURES / f"{name}_rank{rank}").exists():
            shutil.copy(source, tmp_path / pid / name)
    shutil.copy(CAPTURES / f"stat_rank{rank}", tmp_path / pid / "task" / pid / "stat")
    (tmp_path / pid / "task" / pid / "children").write_text("")
    return int(pid), tmp_path


def test_rank_of_a_real_megatron_job_is_understood(tmp_path: Path) -> None:
    # given rank 1 of a hung DPO job on H200: blocked in its DataLoader
    pid, root = captured_root(tmp_path, 1)

    tree = tree_of(ProcessReader(pid, root).sample(), rank=1)

    assert (tree.rank, tree.emitted) == (1, 7.0)
    main = tree.main
    assert (main.pid, main.ppid, main.comm, main.state, main.threads) == (2238, 2221, "python3", "S", 67)
    assert main.cpu_seconds == pytest.approx((1644 + 139) / 100)
    assert main.rss_bytes == 433701 * os.sysconf("SC_PAGE_SIZE")
    assert main.start_ticks == 20487
    assert main.wchan == "futex_do_wait"
    assert main.read_chars is not None and main.write_chars is not None
    assert tree.peak_rss_bytes is not None and tree.peak_rss_bytes > 1 << 30
    assert tree.pinned_bytes == 0 and tree.locked_bytes == 0
    assert tree.main_thread_cpu_seconds == pytest.approx(17.83)


def test_running_rank_has_no_wchan(tmp_path: Path) -> None:
    # given rank 0 of the same job, spinning in NCCL: wchan reads "0"
    pid, root = captured_root(tmp_path, 0)

    assert tree_of(ProcessReader(pid, root).sample()).main.wchan == ""


def test_limits_of_a_real_rank_are_understood(tmp_path: Path) -> None:
    pid, root = captured_root(tmp_path, 1)
    (root / str(pid) / "root" / "dev" / "infiniband").mkdir(parents=True)
    (root / str(pid) / "root" / "dev" / "infiniband" / "uverbs0").touch()

    (limits,) = parse(Record("proc", ProcessReader(pid, root).limits(), rank=1))

    assert isinstance(limits, LimitsSeen)
    assert limits.get("Max open files") == 20000
    assert limits.get("Max locked memory") is None and ("Max locked memory", None) in limits.soft
    assert limits.get("Max core file size") == 0
    assert limits.get("Max nice priority") == 0  # has no unit
    assert limits.rdma_devices


def test_machine_without_rdma_devices_says_so() -> None:
    payload = ProcessReader(os.getpid()).limits()

    (limits,) = parse(Record("proc", payload))

    assert isinstance(limits, LimitsSeen)
    assert limits.rdma_devices == any(Path("/dev/infiniband").glob("*"))


def test_children_are_sampled_with_io_when_asked_for_detail() -> None:
    code = """
import subprocess
child = subprocess.Popen(["sleep", "60"])
print(child.pid, flush=True)
input()
"""
    with started(code) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        reader = ProcessReader(process.pid)
        plain = tree_of(reader.sample())
        while not (detail := tree_of(reader.sample(detail=True))).children[0].wchan:
            pass  # it is not asleep yet
        os.kill(child, signal.SIGKILL)

    assert [(c.pid, c.ppid) for c in plain.children] == [(child, process.pid)]
    assert detail.children[0].comm == "sleep"
    assert plain.children[0].read_chars is None
    assert detail.children[0].read_chars is not None
    assert plain.open_files is not None and plain.open_files >= 3


def test_comm_with_spaces_and_parentheses_is_read_whole() -> None:
    code = """
open("/proc/self/comm", "w").write(") R 1 (a) x")
print(flush=True)
input()
"""
    with started(code) as process:
        assert process.stdout is not None
        process.stdout.readline()
        tree = tree_of(ProcessReader(process.pid).sample())

    assert (tree.main.comm, tree.main.ppid) == (") R 1 (a) x", os.getpid())


def test_dead_child_is_seen_as_zombie_with_its_exit_code_kept() -> None:
    code = """
import os, subprocess
child = subprocess.Popen(["sh", "-c", "exit 3"])
os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
print(child.pid, flush=True)
input()
"""
    with started(code) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        payload = ProcessReader(process.pid).sample()
        tree = tree_of(payload)

    assert [(c.pid, c.state) for c in tree.children] == [(child, "Z")]
    assert payload["children"][0]["stat"].split()[-1] == str(3 << 8)


def test_stopped_process_is_seen_as_stopped() -> None:
    with started("print(flush=True); input()") as process:
        assert process.stdout is not None
        process.stdout.readline()
        reader = ProcessReader(process.pid)
        before = tree_of(reader.sample())
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        after = tree_of(reader.sample())

    assert before.main.state in "RS"
    assert after.main.state == "T"


def test_vanished_process_is_gone_also_for_its_open_files() -> None:
    with started("print(flush=True); input()") as process:
        reader = ProcessReader(process.pid)
        reader.sample()

    with pytest.raises(ProcessGone) as gone:
        reader.sample()
    with pytest.raises(ProcessGone):
        reader.limits()
    with pytest.raises(ProcessGone):
        ProcessReader(process.pid)
    assert gone.value.pid == process.pid


def test_reused_pid_is_told_by_its_start_time(tmp_path: Path) -> None:
    pid, root = captured_root(tmp_path, 1)
    ProcessReader(pid, root, start_ticks=20487).sample()
    with pytest.raises(ProcessGone):
        ProcessReader(pid, root, start_ticks=20486)

    # and while it is being watched
    reader = ProcessReader(pid, root)
    stat = root / str(pid) / "stat"
    stat.write_text(stat.read_text().replace(" 20487 ", " 20999 "))
    with pytest.raises(ProcessGone):
        reader.sample()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_what_another_user_may_not_read_is_none() -> None:
    # given a reader without rights on the target (us); imported before it gives up its rights
    code = f"""
import json, os
from diag.sources.host.proc import ProcessReader
os.setgroups([]); os.setgid(65534); os.setuid(65534)
reader = ProcessReader({os.getpid()})
print(json.dumps([reader.sample(detail=True), reader.limits()]))
"""
    home = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": home},
    )
    sample, limits = json.loads(done.stdout)
    tree = tree_of(sample)

    assert (tree.main.read_chars, tree.main.wchan) == (None, "")
    assert tree.peak_rss_bytes is not None  # status is open to all
    assert limits["rdma"] is None


def test_old_kernel_with_short_stat_and_torn_children_gives_what_is_there() -> None:
    stat = (CAPTURES / "stat_rank1").read_text()
    payload = {"stat": stat, "children": [{"stat": "12 (x"}, None, {"stat": stat.replace("2238 (", "9 (")}]}

    found = list(parse(Record("proc", payload, rank=1)))

    assert [type(item) for item in found] == [Unparsed, Unparsed, ProcessTree]
    assert [child.pid for child in found[2].children] == [9]  # type: ignore[attr-defined]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
STAT = st.text() | st.lists(st.text("0123456789-. ()ZSR\n"), max_size=60).map(
    lambda p: "1 (a) S " + " ".join(p)
)
VALUE = JSON | STAT
PAYLOAD = JSON | st.fixed_dictionaries(
    {},
    optional={
        "pid": VALUE,
        "hz": VALUE,
        "page": VALUE,
        "stat": STAT,
        "main_stat": VALUE,
        "io": VALUE,
        "status": VALUE,
        "wchan": VALUE,
        "fds": VALUE,
        "children": st.lists(st.fixed_dictionaries({"stat": STAT}) | JSON) | JSON,
        "rdma": VALUE,
    },
)


@settings(deadline=None, max_examples=60)
@given(PAYLOAD | st.fixed_dictionaries({"limits": VALUE}))
def test_parse_raises_for_nothing(payload: Any) -> None:
    found = list(parse(Record("proc", payload)))

    assert found


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 400))
def test_torn_stat_of_a_real_rank_is_understood_or_unparsed(length: int) -> None:
    stat = (CAPTURES / "stat_rank1").read_text()[:length]

    (found,) = parse(Record("proc", {"stat": stat}))

    assert isinstance(found, (ProcessTree, Unparsed))
