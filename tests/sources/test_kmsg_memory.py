"""Kernel lines about memory: kills of a cgroup and of the host, refused allocations and forks."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from diag.model import Record
from diag.model.observations import KernelLine, KernelOomKill, KernelRefusal, Observation
from diag.sources.host.kmsg import parse

CAPTURES = Path(__file__).parents[1] / "captures" / "sources" / "kmsg"
KIB, MIB = 1 << 10, 1 << 20

# Linux 6.1 in a virtual machine, cgroup v2, 2026-11-21
V2_KILL = """[   32.889110] python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0
[   32.890164]  oom_kill_process.cold+0xb/0x10
[   32.895574] memory: usage 65536kB, limit 65536kB, failcnt 48
[   32.895913] [  pid  ]   uid  tgid total_vm      rss pgtables_bytes swapents oom_score_adj name
[   32.896183] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/t,task_memcg=/t/a,\
task=python3,pid=188,uid=0
[   32.911273] Memory cgroup out of memory: Killed process 188 (python3) total-vm:79692kB, anon-rss:67492kB, file-rss:4kB, \
shmem-rss:2508kB, UID:0 pgtables:192kB oom_score_adj:0"""
GROUP_KILL = """\
[   34.000460] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/t,task_memcg=/t,\
task=python3,pid=197,uid=0
[   34.000926] Memory cgroup out of memory: Killed process 197 (python3) total-vm:79692kB, anon-rss:67480kB, file-rss:4kB, \
shmem-rss:2684kB, UID:0 pgtables:192kB oom_score_adj:0
[   34.001288] Tasks in /t are going to be killed due to memory.oom.group set
[   34.002573] Memory cgroup out of memory: Killed process 196 (python3) total-vm:13900kB, anon-rss:2676kB, file-rss:4kB, \
shmem-rss:5476kB, UID:0 pgtables:64kB oom_score_adj:0
[   34.002839] Memory cgroup out of memory: Killed process 197 (python3) total-vm:79692kB, anon-rss:67480kB, file-rss:4kB, \
shmem-rss:2684kB, UID:0 pgtables:192kB oom_score_adj:0"""
GLOBAL_KILL = """[   57.407564] [  pid  ]   uid  tgid total_vm      rss pgtables_bytes swapents oom_score_adj name
[   57.407639] oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/,task=python3,\
pid=216,uid=0
[   57.407793] Out of memory: Killed process 216 (python3) total-vm:2144204kB, anon-rss:2124616kB, file-rss:4kB, \
shmem-rss:5288kB, UID:0 pgtables:4220kB oom_score_adj:0"""


def read(text: str) -> list[Observation]:
    told = parse(Record("kmsg", {"lines": text.splitlines()}))
    return [fact for fact in told if not isinstance(fact, KernelLine)]


def kills(text: str) -> list[KernelOomKill]:
    return [fact for fact in read(text) if isinstance(fact, KernelOomKill)]


def test_kill_tells_whose_limit_was_met_where_the_victim_lived_and_what_it_held() -> None:
    (kill,) = kills(V2_KILL)

    assert (kill.pid, kill.comm, kill.cgroup, kill.victim_cgroup) == (188, "python3", "/t", "/t/a")
    assert (kill.usage_bytes, kill.limit_bytes) == (64 * MIB, 64 * MIB)
    assert (kill.anon_bytes, kill.file_bytes, kill.shmem_bytes) == (67492 * KIB, 4 * KIB, 2508 * KIB)
    assert kill.text.startswith("[   32.911273] Memory cgroup out of memory")


def test_whole_report_of_a_v1_kill_tells_what_filled_the_cgroup_and_its_biggest_tasks() -> None:
    (kill,) = kills((CAPTURES / "v1-cgroup-kill-6.18.txt").read_text())

    assert (kill.cgroup, kill.usage_bytes, kill.limit_bytes) == ("/docker/4d27/trainer", 48 * MIB, 48 * MIB)
    assert dict(kill.breakdown) == {"anon": 50225152, "cache": 0, "shmem": 0, "dirty": 0}
    assert kill.tasks == ((kill.pid, "python", 14438 * 4096),)


def test_all_victims_of_a_group_kill_are_told_once() -> None:
    assert [(kill.pid, kill.cgroup) for kill in kills(GROUP_KILL)] == [(197, "/t"), (196, "/t")]


def test_kill_for_the_host_names_no_cgroup_even_after_one_that_did() -> None:
    found = kills(f"{GROUP_KILL}\n{GLOBAL_KILL}")

    assert [kill.cgroup for kill in found] == ["/t", "/t", ""]


def test_kill_without_its_report_does_not_take_over_the_one_before() -> None:
    # given many kills in a row, of which the kernel writes only the last line
    last = V2_KILL.splitlines()[-1].replace("188", "300")

    assert [(kill.pid, kill.cgroup, kill.usage_bytes) for kill in kills(f"{V2_KILL}\n{last}")] == [
        (188, "/t", 64 * MIB),
        (300, "?", None),
    ]


def test_kill_of_an_old_kernel_names_the_parent_whose_limit_was_met() -> None:
    # the format of mm/memcontrol.c and mm/oom_kill.c of Linux 4.18
    (kill,) = kills(
        "[  100.000001] Task in /docker/4d27 killed as a result of limit of /docker\n"
        "[  100.000002] memory: usage 65536kB, limit 65536kB, failcnt 48\n"
        "[  100.000003] Killed process 9012 (python3) total-vm:142280kB, anon-rss:129996kB, file-rss:2544kB, shmem-rss:0kB"
    )

    assert (kill.pid, kill.cgroup, kill.victim_cgroup) == (9012, "/docker", "/docker/4d27")


def test_times_of_dmesg_t_of_syslog_and_of_callers_are_passed_by() -> None:
    line = V2_KILL.splitlines()[2].partition("] ")[2]
    kill = V2_KILL.splitlines()[-1].partition("] ")[2]
    for prefix in (
        "[Sat Nov 21 19:45:00 2026] ",
        "Nov 21 19:45:00 node-0 kernel: [   32.895574] ",
        "[   32.895574][ T1844] ",
    ):
        (found,) = kills(f"{prefix}{line}\n{prefix}{kill}")
        assert found.usage_bytes == 64 * MIB, prefix


def test_refusals_tell_who_was_refused() -> None:
    # Linux 6.1, and 6.10 as posted to the kernel's list; the pids controller of 6.1
    found = read(
        "[   42.626833] __vm_enough_memory: pid: 212, comm: python3, no enough memory for the allocation\n"
        "[  332.079333] __vm_enough_memory: pid: 18440, comm: sshd, bytes: 1073741824 not enough memory for the allocation\n"
        "[  400.000000] cgroup: fork rejected by pids controller in /docker/4d27\n"
    )

    refusals = [fact for fact in found if isinstance(fact, KernelRefusal)]
    assert [(fact.what, fact.pid, fact.comm, fact.size_bytes, fact.cgroup) for fact in refusals] == [
        ("overcommit", 212, "python3", None, ""),
        ("overcommit", 18440, "sshd", 1 << 30, ""),
        ("pids", None, "", None, "/docker/4d27"),
    ]


def test_other_kernel_lines_tell_nothing() -> None:
    lines = "[   12.3] EXT4-fs (vda): mounted\n[   13.4] anon 12\n[   14.5] [  188]     0   188    19923 a b c 0 0 python3\n"

    assert read(lines) == []


@settings(deadline=None, max_examples=200)
@given(
    st.lists(
        st.text()
        | st.sampled_from([*V2_KILL.splitlines(), *GROUP_KILL.splitlines(), *GLOBAL_KILL.splitlines()])
    )
)
def test_reading_raises_for_no_lines(lines: list[str]) -> None:
    list(parse(Record("kmsg", {"lines": lines})))
