"""What to do about a hang, by the cause that the verdict found."""

from __future__ import annotations

from diag.detectors.hang.verdict import Verdict
from diag.model import format_ranks
from diag.state.job import JobState

__all__ = ["advice_for"]

_ADVICE = {
    "dataloader_worker_blocked": "Look at what the worker reads (file, network file system, URL, lock) at the line shown; "
    "`ls -l /proc/{child}/fd` names the open file. To go on without it: --dataloader_num_workers 0 shows the error in "
    "the rank itself, a DataLoader timeout= turns the wait into an error.",
    "dataloader_worker_stopped": "DataLoader worker {child} is stopped by a signal (state T): `kill -CONT {child}` lets the job "
    "go on; find who sent SIGSTOP (a debugger, a cgroup freezer, job control).",
    "dataloader_main_process": "The rank itself waits for its batch at the line shown: check the data source there, and whether "
    "its DataLoader workers still live (`diag dump --all-ranks` lists them).",
    "checkpoint_writer_blocked": "The writer process {child} cannot finish its write: check the file system of the output "
    "directory (`df`, `stat -f`, server messages in dmesg), or save to a local disk.",
    "checkpoint_write_blocked": "The write of the checkpoint does not go on: check the file system of the output directory "
    "(`df`, `stat -f`, server messages in dmesg), or save to a local disk.",
    "threads_wait_for_each_other": "Two threads of this rank wait for locks at the lines shown: take the locks in one order, or "
    "do not hold one while taking the other.",
    "child_waits_for_lock": "Process {child}, which this rank started and waits for, stands in a lock that it inherited held: "
    "it was forked while another thread held it. Start such processes with the spawn method, or before threads are started.",
    "lock_not_released": "The main thread waits for a lock, queue or thread at the line shown, and nothing in this process "
    "moves: find the thread that should release it (`diag dump --all-ranks` shows all threads).",
    "stale_file_lock": "A lock file of a killed job is left over: no compiler runs, yet the rank waits for one. Delete the lock "
    "in the extension or cache directory shown (torch_extensions, triton cache) and start again.",
    "gil_held": "The main thread sleeps in a C extension without releasing the GIL: the line shown calls it. Update or patch the "
    "extension; other threads of the rank (watchdog, data, log) cannot run meanwhile.",
    "memory_high": "The memory cgroup of this rank is above memory.high: the kernel throttles it to a crawl. Raise the memory "
    "limit of the pod or container, or lower host memory use (fewer DataLoader workers, no optimizer offload).",
    "memory_reclaim": "The memory cgroup of rank {ranks} is full, and its processes mostly wait for the kernel to take memory "
    "back: this is want of memory, not a hang of NCCL. See the host-oom finding; raise the memory limit of the pod or container, "
    "or lower host memory use (fewer DataLoader workers, no optimizer offload).",
    "open_files": "The rank is at its limit of open files: raise it (`ulimit -n 65536`, or LimitNOFILE / the container's "
    "ulimits).",
    "dev_shm_full": "/dev/shm is full: give the container more (docker --shm-size=16g, Kubernetes: emptyDir medium Memory on "
    "/dev/shm), or use fewer DataLoader workers.",
    "external_service": "Rank {ranks} waits for an answer over HTTP at the line shown (a rollout server, a download, a "
    "tracker): see whether that service lives and answers.",
    "rank_left_early": "Rank {ranks} finished and left while the others still wait for it: look for a loop that is one step "
    "shorter there (uneven data, drop_last, an early break).",
    "sigstop": "Rank {ranks} is stopped by a signal (state T): `kill -CONT {pids}` lets the job go on; find who sent SIGSTOP "
    "(a debugger, a cgroup freezer, job control).",
    "rank_exited": "Find why rank {ranks} ended: its last lines are in the rank-died finding. The others wait for it for ever: "
    "end the job and start it again from the last checkpoint.",
    "ras_dead": "NCCL's own RAS network cannot reach the process of rank {ranks} any more: see whether it, or its node, lives. "
    "The others wait for it for ever: end the job and start it again from the last checkpoint.",
    "node_silent": "The node of rank {ranks} does not answer any more (see the node-failure finding): look whether it lives "
    "(console, `ping`, `kubectl get node`, `sinfo`). The others wait for it for ever: end the job and start it again without "
    "that node, from the last checkpoint.",
    "this_node_cut_off": "All other nodes fell silent at once: look at the network of this node first (see the node-failure "
    "finding), and at what `diag` says on the others.",
    "not_in_collective": "Rank {ranks} is in its own code at the line shown and has not joined the call the others wait in: "
    "look for a branch only this rank takes (if rank == ..., an early continue, a wait for an event or a service).",
    "calls_differ": "The ranks call different collectives at the same point (the evidence shows both): look for a branch that "
    "depends on the rank, on the data, or on a shape that differs, at the lines their stacks show.",
    "call_unanswered": "Rank {ranks} is in a send, receive or collective at the line shown that no other rank has come to: look "
    "for a call that only this rank makes, or a peer number that is wrong.",
    "groups_in_opposite_order": "Ranks {ranks} use two process groups in opposite order, each waiting for the other: issue "
    "the collectives of all groups in one order on all ranks.",
    "preprocess_blocked": "Data preparation on rank {ranks} does not move: check the data source and its worker processes.",
    "compiler_stalled": "The compilation on rank {ranks} has no running compiler process: look at the cache directory and its "
    "locks.",
    "teardown_blocked": "Rank {ranks} is ending and cannot: read its last lines for an exception that was hidden by the "
    "shutdown.",
    "ranks_missing": "Ranks {ranks} never appeared: check that every node was started with the same world size, MASTER_ADDR and "
    "MASTER_PORT, and that the address is reachable from all (`diag doctor` on the missing node).",
    "not_all_joined": "Not all ranks came to the process group's initialisation: see which one is late and why in "
    "`diag dump --all-ranks`.",
    "no_stack": "Let diag read the stacks of these ranks (see `not checked`), then look again.",
    "all_ranks_wait": "All ranks wait in the call shown and none stands apart: suspect the network or a GPU. Run "
    "`diag dump --all-ranks`; look for port errors, Xid messages and a GPU with no power draw.",
    "culprit_not_seen": "Every rank seen here waits; the one they wait for is on a node that this diag does not see. Run "
    "`diag dump --all-ranks` on the other nodes.",
    "gpu_idle_among_waiting": "The GPU of rank {ranks} runs nothing while those of all others wait in a collective: look for "
    "Xid lines in `dmesg`, `nvidia-smi -q` on that GPU (ECC, remapped rows, NVLink), and run `diag dump --native` to see in "
    "which CUDA call the rank stands.",
    "kernel_does_not_end": "The GPU of rank {ranks} runs a kernel that is none of NCCL's and does not end; the others wait for "
    "it, NCCL is not at fault. Where the evidence does not name it: `cuda-gdb --pid PID` (pid {pids}; it stops the process), "
    "then `info cuda kernels`, and `py-spy dump --native --pid PID` for what was called last. Suspect your own kernels before "
    "that call (Triton, a CUDA extension) and those that wait for other GPUs themselves (symmetric memory, NVSHMEM, DeepEP). "
    "With CUDA_LAUNCH_BLOCKING=1 a run stops at the line that launches it, `compute-sanitizer` finds races and stray accesses "
    "in it; where it is a library's, update that and the driver.",
    "transport_error": "NCCL reported an error of the network on rank {ranks} (the evidence shows the line): check that port and "
    "its cable (`ibstat`, `ibv_devinfo`, switch counters), and the peer it names; start again without that node if it comes "
    "back.",
    "rank_says_nothing": "The other ranks' watchdogs gave up on a call, that of rank {ranks} says nothing: see whether the "
    "process lives, and take its stack (`py-spy dump`).",
    "xid": "NVIDIA's driver reported {cause} on the GPU of rank {ranks}: drain that node, and reset the GPU or reboot (79: the "
    "GPU fell off the bus; 48, 64, 95: memory; 74, 144-150: NVLink; 119, 120: firmware). `nvidia-smi -q` and the vendor's "
    "field diagnostics tell whether to replace it.",
}


def advice_for(verdict: Verdict, job: JobState) -> str:
    cause = "xid" if verdict.cause.startswith("xid_") else verdict.cause
    text = _ADVICE.get(cause, "Run `diag dump --all-ranks` and look at the ranks that stand apart.")
    pids = [job.ranks[rank].placement.pid for rank in verdict.culprits if rank in job.ranks]
    return text.format(
        child=verdict.blamed_child or "PID",
        ranks=format_ranks(verdict.culprits),
        pids=" ".join(map(str, pids)),
        cause=verdict.cause.replace("xid_", "Xid "),
    )
