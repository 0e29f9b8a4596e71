"""What to do about a hang, by the cause that the verdict found, and by whether anybody is seen to wait for
the culprits."""

from __future__ import annotations

from diag.detectors.hang.kernel_causes import kernel_cause, placeholders
from diag.detectors.hang.messages import children_of
from diag.detectors.hang.rank_wait import WAITS, classify_rank
from diag.detectors.hang.verdict import Verdict
from diag.model import numbered
from diag.state.view import JobView
from diag.text.units import format_ranks

_ADVICE = {
    "dataloader_worker_blocked": "Look at what the worker reads (file, network file system, URL, lock) at the line shown; `ls "
    "-l /proc/{child}/fd` names the open file. To go on without it: --dataloader_num_workers 0 shows the error in the rank "
    "itself, a DataLoader timeout= turns the wait into an error.",
    "dataloader_worker_stopped": "DataLoader [worker|workers] {children} [is|are] stopped by a signal (state T): `kill -CONT "
    "{children}` lets the job go on; find who sent SIGSTOP (a debugger, a cgroup freezer, job control).",
    "dataloader_main_process": "{Ranks} [waits|wait] for [its|their] batch at the line shown, and no worker is seen to be "
    "stuck: check the data source there, and whether [its|their] DataLoader workers still live (`diag dump --all-ranks` lists "
    "them).",
    "checkpoint_writer_blocked": "The writer process {child} cannot finish its write: check the file system of the output "
    "directory (`df`, `stat -f`, server messages in dmesg), or save to a local disk.",
    "checkpoint_write_blocked": "The write of the checkpoint does not go on: check the file system of the output directory "
    "(`df`, `stat -f`, server messages in dmesg), or save to a local disk.",
    "threads_wait_for_each_other": "Two threads of {ranks} wait for locks at the lines shown: take the locks in one order, or "
    "do not hold one while taking the other.",
    "child_waits_for_lock": "Process {child}, which rank {first} started and waits for, is blocked in a lock that it inherited "
    "held: it was forked while another thread held it. Start such processes with the spawn method, or before threads are "
    "started.",
    "lock_not_released": "The main [thread|threads] of {ranks} [waits|wait] for a lock, queue or thread at the line shown, and "
    "nothing in [its process|their processes] moves: find the thread that should release it (`diag dump --all-ranks` shows all "
    "threads).",
    "stale_file_lock": "A lock file of a killed job is left over: no compiler runs, yet {ranks} [waits|wait] for one. Delete "
    "the lock in the extension or cache directory shown (torch_extensions, triton cache) and start again.",
    "gil_held": "The main [thread|threads] of {ranks} [sleeps|sleep] in a C extension without releasing the GIL: the line "
    "shown calls it. Update or patch the extension; other threads of [the rank|these ranks] (watchdog, data, log) cannot run "
    "meanwhile.",
    "memory_high": "The memory cgroup of {ranks} is above memory.high: the kernel throttles it to a crawl. Raise the memory "
    "limit of the pod or container, or lower host memory use (fewer DataLoader workers, no optimizer offload).",
    "memory_reclaim": "The memory cgroup of {ranks} is full, and its processes mostly wait for the kernel to take memory back: "
    "this is want of memory, not a hang of NCCL. See the host-oom finding; raise the memory limit of the pod or container, or "
    "lower host memory use (fewer DataLoader workers, no optimizer offload).",
    "open_files": "{Ranks} [is|are] at [its|their] limit of open files: raise it (`ulimit -n 65536`, or LimitNOFILE / the "
    "container's ulimits).",
    "dev_shm_full": "/dev/shm is full: give the container more (docker --shm-size=16g, Kubernetes: emptyDir medium Memory on "
    "/dev/shm), or use fewer DataLoader workers.",
    "external_service": "{Ranks} [waits|wait] for an answer over HTTP at the line shown (a rollout server, a download, a "
    "tracker): see whether that service lives and answers.",
    "rank_left_early": "{Ranks} finished and left while {victims} still {wait} for [it|them]: look for a loop that is one step "
    "shorter there (uneven data, drop_last, an early break).",
    "sigstop": "{Ranks} [is|are] stopped by a signal (state T): `kill -CONT {pids}` lets the job go on; find who sent SIGSTOP "
    "(a debugger, a cgroup freezer, job control).",
    "rank_exited": "Find why {ranks} ended: [its|their] last lines are in the rank-died finding. {Victims} {wait} for "
    "[it|them] for ever: end the job and start it again from the last checkpoint.",
    "ras_dead": "NCCL's own RAS network cannot reach the [process|processes] of {ranks} any more: see whether [it, or its "
    "node, lives|they, or their nodes, live]. {Victims} {wait} for [it|them] for ever: end the job and start it again from the "
    "last checkpoint.",
    "node_silent": "The node of {ranks} does not answer any more (see the node-failure finding): look whether it lives "
    "(console, `ping`, `kubectl get node`, `sinfo`). {Victims} {wait} for [that rank|those ranks] for ever: end the job and "
    "start it again without that node, from the last checkpoint.",
    "this_node_cut_off": "All other nodes fell silent at once: look at the network of this node first (see the node-failure "
    "finding), and at what `diag` says on the others.",
    "not_in_collective": "{Ranks} [is|are] in [its|their] own code at the line shown and [has|have] not joined the call that "
    "{victims} {wait} in: look for a branch that only [this rank takes|these ranks take] (if rank == ..., an early continue, a "
    "wait for an event or a service).",
    "calls_differ": "The ranks call different collectives at the same point (the evidence shows both): look for a branch that "
    "depends on the rank, on the data, or on a shape that differs, at the lines their stacks show.",
    "call_unanswered": "{Ranks} [is|are] in a send, receive or collective at the line shown that no other rank has come to: "
    "look for a call that only [this rank makes|these ranks make], or a peer number that is wrong.",
    "groups_in_opposite_order": "{Ranks} [uses|use] process groups in another order than [its peers|each other], each waiting "
    "for the other: issue the collectives of all groups in one order on all ranks.",
    "preprocess_blocked": "Data preparation on {ranks} does not move: check the data source and its worker processes.",
    "compiler_stalled": "The compilation on {ranks} has no running compiler process: look at the cache directory and its locks.",
    "teardown_blocked": "{Ranks} [is|are] ending and cannot: read [its|their] last lines for an exception that was hidden by "
    "the shutdown.",
    "ranks_missing": "{Ranks} never appeared: check that every node was started with the same world size, MASTER_ADDR and "
    "MASTER_PORT, and that the address is reachable from all (`diag doctor` on the missing node).",
    "not_all_joined": "Not all ranks came to the process group's initialisation: see which one is late and why in `diag dump "
    "--all-ranks`.",
    "no_stack": "Let diag read the [stack|stacks] of {ranks} (see `not checked`), then look again.",
    "all_ranks_wait": "Every rank waits in a call, and none stands apart: suspect the network or a GPU. Run `diag dump "
    "--all-ranks`; look for port errors, Xid messages and a GPU with no power draw.",
    "culprit_not_seen": "Every rank seen here waits; the one they wait for is on a node that this diag does not see. Run `diag "
    "dump --all-ranks` on the other nodes.",
    "gpu_idle_among_waiting": "The [GPU|GPUs] of {ranks} [runs|run] nothing while [that|those] of {victims} {wait} in a "
    "collective: look for Xid lines in `dmesg`, `nvidia-smi -q` there (ECC, remapped rows, NVLink), and run `diag dump "
    "--native` to see in which CUDA call [the rank is|these ranks are].",
    "kernel_does_not_end": "The [GPU|GPUs] of {ranks} [runs a kernel that is none of NCCL's and does|run kernels that are none "
    "of NCCL's and do] not end{so_victims}. Where the evidence does not name it: `cuda-gdb --pid PID` (pid {pids}; it stops "
    "the process), then `info cuda kernels`, and `py-spy dump --native --pid PID` for what was called last. Suspect your own "
    "kernels before that call (Triton, a CUDA extension) and those that wait for other GPUs themselves (symmetric memory, "
    "NVSHMEM, DeepEP). With CUDA_LAUNCH_BLOCKING=1 a run stops at the line that launches it, `compute-sanitizer` finds races "
    "and stray accesses in it; where it is a library's, update that and the driver.",
    "transport_error": "NCCL reported an error of the network on {ranks} (the evidence shows the line): check that port and "
    "its cable (`ibstat`, `ibv_devinfo`, switch counters), and the peer it names; start again without that node if it comes "
    "back.",
    "rank_says_nothing": "The watchdog of {victims} gave up on a call, that of {ranks} says nothing: see whether [the process "
    "lives, and take its stack|the processes live, and take their stacks] (`py-spy dump`).",
    "xid": "NVIDIA's driver reported {cause} on the [GPU|GPUs] of {ranks}: drain that node, and reset the GPU or reboot (79: "
    "the GPU fell off the bus; 48, 64, 95: memory; 74, 144-150: NVLink; 119, 120: firmware). `nvidia-smi -q` and the vendor's "
    "field diagnostics tell whether to replace it.",
}
# The same where nobody is seen to wait for them.
_ALONE = {
    "not_in_collective": "{Ranks} [is|are] in [its|their] own code at the line shown, and nobody is seen to wait for [it|them] "
    "in a call: see what [it waits|they wait] for there{lock}.",
    "rank_exited": "Find why {ranks} ended: [its|their] last lines are in the rank-died finding.",
    "ras_dead": "NCCL's own RAS network cannot reach the [process|processes] of {ranks} any more: see whether [it, or its "
    "node, lives|they, or their nodes, live].",
    "node_silent": "The node of {ranks} does not answer any more (see the node-failure finding): look whether it lives "
    "(console, `ping`, `kubectl get node`, `sinfo`).",
    "rank_left_early": "{Ranks} finished and left before the job did: look for a loop that is one step shorter there (uneven "
    "data, drop_last, an early break).",
}


def advice_for(verdict: Verdict, job: JobView) -> str:
    cause = "xid" if verdict.cause.startswith("xid_") else verdict.cause
    if verdict.by_kernel and verdict.chain is not None and (found := kernel_cause(verdict.chain)) is not None:
        text, values = found.do, placeholders(verdict.chain)
    else:
        text, values = (
            _ADVICE.get(cause, "Run `diag dump --all-ranks` and look at the ranks that stand apart."),
            {},
        )
    if not _somebody_waits(verdict, job):
        text = _ALONE.get(cause, text)
    ranks, victims = format_ranks(verdict.culprits), format_ranks(verdict.waiting)
    wait = numbered("[waits|wait]", len(verdict.waiting))
    waits = (
        f"; {victims} {wait} " + numbered("for [it|them]", len(verdict.culprits)) + ", NCCL is not at fault"
    )
    pids = [job.ranks[rank].placement.pid for rank in verdict.culprits if rank in job.ranks]
    return numbered(text, len(verdict.culprits)).format(
        Ranks=_capital(ranks),
        ranks=ranks,
        first=verdict.culprits[0] if verdict.culprits else "",
        Victims=_capital(victims),
        victims=victims,
        wait=wait,
        so_victims=waits if verdict.waiting else "",
        child=verdict.blamed_child or "PID",
        children=" ".join(map(str, children_of(verdict, job).values())) or "PID",
        pids=" ".join(map(str, pids)),
        lock=_lock(verdict, job),
        cause=verdict.cause.replace("xid_", "Xid "),
        **values,
    )


def _somebody_waits(verdict: Verdict, job: JobView) -> bool:
    """For a rank in its own code: in a call, as far as is seen. For one that is gone whoever is left waits,
    sooner or later."""
    if verdict.cause != "not_in_collective" or verdict.collectives is not None:
        return bool(verdict.waiting)
    waiting = [job.ranks[rank] for rank in verdict.waiting if rank in job.ranks]
    return any(classify_rank(rank) in WAITS for rank in waiting)


def _lock(verdict: Verdict, job: JobView) -> str:
    """The kernel tells what Python's own stack does not show: a thread that waits for another one sleeps on a
    futex."""
    trees = [job.ranks[rank].tree for rank in verdict.culprits if rank in job.ranks]
    held = [
        rank
        for rank, tree in zip(verdict.culprits, trees, strict=False)
        if tree and tree.main.wchan.startswith("futex")
    ]
    if not held:
        return " (an event, a file, a service, another process)"
    return f": {format_ranks(held)} {numbered('[waits|wait]', len(held))} for a lock or a thread"


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]
