"""Memory troubles of a job that `diag run` watches inside the machine, and what it must find. Read by the
machine (to make them) and by the tests (to judge them), so standard library only.

Each job has two ranks, in cgroups /NAME/rank0 and /NAME/rank1 below its "pod" /NAME. After some steps both
save a checkpoint, and in it rank 1 does what makes the trouble. To add one: an entry of SCENARIOS.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.vm.wanted import Wanted

MIB = 1 << 20
NOBODY = 65534
FOR_ALL = ("strict", "scarce")  # what is done to the whole machine: such a job has it alone


@dataclass(frozen=True, slots=True)
class Scenario:
    """`wanted` must all open, and besides `also` nothing else of level warning or above.

    `does`: what rank 1 does in its save (guest/deeds.py). `limits`: (cgroup below the pod's, file, value).
    `diag_inside`: diag and the launcher live where the ranks do, all in one cgroup, as in a container; else
    outside of all of these. `address_space`: limit of rank 1 in bytes. `shm`: size of rank 1's own /dev/shm
    in bytes. `goes_on`: the job outlives it, and is ended by us. `host`: what is done outside of the job
    meanwhile (guest/host.py). `peak`: the cgroup, below the pod's, whose memory.peak the finding must tell.
    `warned`: causes that may be told before the wanted one.
    """

    name: str
    does: str
    wanted: tuple[Wanted, ...] = ()
    also: tuple[str, ...] = ()
    limits: tuple[tuple[str, str, str], ...] = ()
    diag_inside: bool = False
    address_space: int = 0
    shm: int = 0
    goes_on: bool = False
    host: str = ""
    peak: str | None = None
    warned: tuple[str, ...] = ()


_SAVE = "while saving a checkpoint"


def _oom(cause: str, ranks: tuple[int, ...] = (1,)) -> tuple[Wanted, ...]:
    return (Wanted("host-oom", cause, ranks, _SAVE),)


_KILLED = ("rank-died",)
_RANK = (("rank1", "memory.max", str(64 * MIB)),)

SCENARIOS = (
    Scenario("rank_limit", "grow", _oom("cgroup_limit"), _KILLED, _RANK, peak="rank1"),
    Scenario(
        "pod_limit",
        "grow",
        _oom("parent_cgroup_limit"),
        _KILLED,
        (("", "memory.max", str(112 * MIB)),),
        peak="",
    ),
    # one container for all, as `docker run IMAGE diag run -- torchrun ...`; the rank holds more than half of
    # it in the end, or the kernel would take diag's sidecars first
    Scenario(
        "container_limit",
        "grow",
        _oom("cgroup_limit"),
        _KILLED,
        (("main", "memory.max", str(320 * MIB)),),
        diag_inside=True,
        peak="main",
    ),
    # kubelet sets it since 1.28: all of the container is killed at once
    Scenario(
        "group_kill",
        "grow",
        _oom("cgroup_limit", (0, 1)),
        _KILLED,
        (("main", "memory.max", str(112 * MIB)), ("main", "memory.oom.group", "1")),
        peak="main",
    ),
    # ... and diag with it, where it lives there: nobody is left to say anything
    Scenario(
        "group_kill_with_diag",
        "grow",
        (),
        (),
        (("main", "memory.max", str(320 * MIB)), ("main", "memory.oom.group", "1")),
        diag_inside=True,
    ),
    Scenario("writer_killed", "grow_in_writer", _oom("cgroup_limit"), _KILLED, _RANK, peak="rank1"),
    Scenario("address_space", "grow", _oom("rlimit_as"), _KILLED, address_space=400 * MIB),
    Scenario("too_much_at_once", "ask_for_too_much", _oom("allocation_refused"), _KILLED),
    Scenario(
        "pids_limit",
        "fork_writers",
        (Wanted("pids-limit", "cgroup_pids", (1,), _SAVE),),
        _KILLED,
        (("rank1", "pids.max", "24"),),
        warned=("nearly_full",),
    ),
    Scenario(
        "shm_full", "fill_shm", (Wanted("shm-too-small", "exhausted", (1,), "SIGBUS"),), _KILLED, shm=16 * MIB
    ),
    Scenario(
        "held_up",
        "grow_slowly",
        (Wanted("host-oom", "reclaim_stall", (1,), _SAVE), Wanted("held-up", "memory_high", (1,))),
        limits=(("rank1", "memory.high", str(48 * MIB)),),
        goes_on=True,
    ),
    # nothing is wrong with the memory of these
    Scenario(
        "cache_at_the_limit",
        "write_and_read_file",
        (),
        (),
        (("rank1", "memory.max", str(64 * MIB)),),
        goes_on=True,
    ),
    Scenario("killed_by_hand", "kill_itself", (Wanted("rank-died", "signal_9", (1,)),)),
    Scenario("neighbour_killed", "wait", goes_on=True, host="neighbour"),
    Scenario(
        "neighbour_killed_and_killed_by_hand",
        "kill_itself",
        (Wanted("rank-died", "signal_9", (1,)),),
        host="neighbour",
    ),
    # of the whole machine
    Scenario("fork_refused", "fork_writers", _oom("fork_overcommit"), _KILLED, host="strict"),
    Scenario("host_runs_out", "grow", _oom("global_oom"), _KILLED, host="scarce"),
)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
