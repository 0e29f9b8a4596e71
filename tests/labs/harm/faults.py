"""All faults, by name. What they do is in `strikes`."""

from __future__ import annotations

import os

from tests.labs.harm.fault import Fault
from tests.labs.harm.strikes import clients, disk, nodes, output, processes, world

__all__ = ["FAULTS"]

# a sidecar each: 17 MB and a third of a second of a core to start
_MANY = int(os.environ.get("HARM_RANKS", "64"))
_LAB = ("root", "lab")

_ALL: tuple[Fault, ...] = (
    Fault("none", "nothing is done", world.nothing),
    # processes
    Fault("sidecar-killed", "SIGKILL of one sidecar", processes.kill_one),
    Fault("sidecars-killed", "SIGKILL of all sidecars", processes.kill_all_sidecars),
    Fault("sidecars-stopped", "SIGSTOP of sidecars, for good", processes.stop_some),
    Fault("sidecars-paused", "SIGSTOP and SIGCONT of sidecars", processes.stop_and_go),
    Fault("carrier-killed", "SIGKILL of diag run itself", processes.kill_carrier, harms_carrier=True),
    Fault("carrier-paused", "SIGSTOP and SIGCONT of diag run itself", processes.stop_carrier),
    Fault("hub-killed", "SIGKILL of the hub beside it", processes.kill_hub, harms_hub=True),
    Fault(
        "all-killed",
        "SIGKILL of diag run, its signal witness, its sidecars and what they started, at one moment",
        processes.kill_everything,
        harms_carrier=True,
    ),
    Fault("hub-paused", "SIGSTOP and SIGCONT of the hub", processes.stop_hub),
    Fault("hub-paused-over-end", "the hub stopped while the job ends", processes.stop_hub_over_end),
    Fault(
        "hub-no-memory", "RLIMIT_AS of the hub at what it has", processes.hub_without_memory, harms_hub=True
    ),
    Fault("hub-no-files", "EMFILE in the hub", processes.hub_without_files),
    Fault(
        "hub-no-processes",
        "RLIMIT_NPROC of the hub at what it has: no sidecar and no thread can be started",
        processes.hub_without_processes,
        prefix=processes.other_user,
        needs=("root", "setpriv", "prlimit"),
        job=("churn",),
    ),
    Fault(
        "hub-oom",
        "the kernel's OOM killer takes the hub, in a cgroup of its own",
        processes.hub_out_of_memory,
        harms_hub=True,
        needs=("root", "memcg"),
        seconds=3.0,
    ),
    Fault(
        "sidecar-oom",
        "the kernel's OOM killer takes a sidecar, in a cgroup of its own",
        processes.sidecar_out_of_memory,
        needs=("root", "memcg"),
        seconds=3.0,
    ),
    Fault(
        "pid-reused",
        "a rank ends and another process gets its pid, with its sidecar stopped, killed or well",
        processes.reuse_pid,
        prefix=processes.own_pids,
        job=("reuse",),
        needs=("root", "pids"),
        seconds=4.0,
        check=processes.stranger_unharmed,
    ),
    Fault(
        "diag-removed",
        "diag's package is removed or replaced under a running job",
        processes.remove_package,
        before=processes.own_copy,
    ),
    # disk
    Fault(
        "disk-full",
        "the disk of the run directory fills",
        disk.fill,
        before=disk.memory_disk("size=80m"),
        needs=("root",),
        no_journal=True,
    ),
    Fault(
        "no-inodes",
        "the disk of the run directory has no inode left",
        disk.use_up_inodes,
        before=disk.memory_disk("size=200m,nr_inodes=2k"),
        needs=("root",),
        job=("churn",),
    ),
    Fault(
        "disk-read-only",
        "it is remounted read-only",
        disk.read_only,
        before=disk.memory_disk("size=80m"),
        needs=("root",),
        no_journal=True,
    ),
    Fault(
        "disk-frozen",
        "it stands still for seconds (fsfreeze), the job's own output with it",
        disk.freeze,
        before=disk.real_disk,
        needs=("root", "loop", "mkfs.ext4", "fsfreeze"),
        gap=3.5,
    ),
    Fault(
        "disk-slow",
        "each of diag's own writes takes up to 4 s",
        disk.slow,
        before=disk.slow_disk,
        needs=("gcc",),
    ),
    Fault(
        "terminal-disk-full",
        "`diag run > FILE` on a disk that is full for a while",
        disk.fill_terminal,
        before=disk.memory_disk("size=4m", "out"),
        needs=("root",),
    ),
    Fault("files-removed", "somebody cleans the run directory", disk.remove, no_journal=True),
    Fault("run-directory-removed", "somebody removes the run directory", disk.remove_all, no_journal=True),
    Fault(
        "output-rotated",
        "output.log is renamed, removed or replaced by somebody's log rotation",
        disk.rotate_output,
    ),
    Fault(
        "output-cut",
        "output.log is copied and cut (copytruncate)",
        disk.cut_output,
        lines="none",
        check=disk.output_cut_whole,
    ),
    Fault(
        "rank-logs-rotated",
        "files that ranks print to are renamed, cut, removed, replaced",
        disk.rotate_rank_logs,
        before=disk.log_folder,
        job=("files", "{folder}/log"),
        lines="none",
        check=disk.rank_logs_whole,
    ),
    # the world around
    Fault(
        "clock-jumps",
        "the wall clock jumps by hours and months",
        world.jump,
        before=world.clock,
        needs=("gcc",),
    ),
    Fault(
        "clocks-apart",
        "the sidecars' wall clocks are not the hub's",
        world.set_sidecars_apart,
        before=world.clock,
        needs=("gcc",),
    ),
    Fault(
        "nvml-hangs",
        "nvmlInit never returns",
        world.nothing,
        needs=("gcc",),
        before=world.library("libnvidia-ml.so.1", world.NVML_HANGS),
    ),
    Fault(
        "nvml-crashes",
        "nvmlInit aborts",
        world.nothing,
        needs=("gcc",),
        harms_hub=True,
        before=world.library("libnvidia-ml.so.1", world.NVML_CRASHES),
    ),
    Fault(
        "pyspy-hangs",
        "py-spy never ends",
        clients.dumps,
        before=world.bad_pyspy("#!/bin/sh\nexec sleep 1000\n"),
    ),
    Fault(
        "pyspy-garbage",
        "py-spy prints garbage",
        clients.dumps,
        before=world.bad_pyspy("#!/bin/sh\nhead -c 3000000 /dev/urandom\n"),
    ),
    # clients
    Fault("deaf-listeners", "clients of /events, /state and /dump that never read", clients.deaf_listeners),
    Fault(
        "slow-listeners",
        "clients of /events that read some bytes a second, while ranks come and go",
        clients.slow_listeners,
        job=("churn",),
    ),
    Fault("half-requests", "garbage and half requests at the HTTP port", clients.half_requests),
    Fault("many-dumps", "a dozen dumps at once", clients.dumps),
    # the job and who reads it
    Fault("log-burst", "100 MB of output at once", world.nothing, job=("burst", "100"), seconds=3.0),
    Fault(
        "log-flood",
        "200 MB a second for 4 s; then the same without diag, to compare",
        world.nothing,
        job=("flood", "200", "4"),
        seconds=8.0,
        gap=60.0,
        check=output.flood_ratio,
    ),
    Fault("rank-churn", "ranks that end and come again", processes.kill_one, job=("churn",)),
    Fault(
        "many-ranks",
        f"{_MANY} ranks at once",
        output.wait_for_all,
        ranks=_MANY,
        job=("every", "0.5", "light"),
        seconds=20.0,
        gap=4.0,
        env={"DIAG_STACK_SECONDS": "5"},
        check=output.all_ranks_seen,
    ),
    Fault("reader-gone", "`diag run ... | head -1`", output.close_reader, output="pipe", lines="kept"),
    Fault(
        "terminal-gone",
        "the terminal is closed under diag run (SIGHUP)",
        output.close_terminal,
        output="terminal",
        lines="kept",
        job=("hup",),
        check=output.hangup_of_leader,
    ),
    Fault(
        "hangup",
        "SIGHUP to the process group, as a shell sends it",
        output.hang_up,
        job=("hup",),
        check=output.one_hangup_each,
    ),
    # several nodes
    Fault(
        "nodes-partitioned",
        "diag's port is cut off between nodes, for a while or for good",
        nodes.partition,
        nodes=3,
        needs=_LAB,
    ),
    Fault("nodes-cable", "cables of nodes are pulled", nodes.pull_cables, nodes=3, needs=_LAB),
    Fault("nodes-reset", "the job hub's machine answers by resets", nodes.reset, nodes=2, needs=_LAB),
    Fault("nodes-slow-link", "a node's link has 1 KB a second", nodes.slow_link, nodes=2, needs=_LAB),
    Fault(
        "job-hub-killed",
        "SIGKILL of the job hub while the others report to it",
        nodes.kill_job_hub,
        nodes=3,
        needs=_LAB,
    ),
    Fault("job-hub-paused", "SIGSTOP and SIGCONT of the job hub", nodes.stop_job_hub, nodes=3, needs=_LAB),
    Fault(
        "job-hub-paused-over-end",
        "the job hub stopped while the job ends on all nodes",
        nodes.stop_job_hub_over_end,
        nodes=2,
        needs=_LAB,
    ),
    Fault(
        "node-hub-killed", "SIGKILL of the hub of another node", nodes.kill_hub_of_node, nodes=3, needs=_LAB
    ),
)
FAULTS = {fault.name: fault for fault in _ALL}
