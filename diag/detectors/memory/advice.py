"""What to do when host memory ran out, by the limit that was met, the phase and what grew.

Flags are those of ms-swift 3.7-3.12 and 4.x (swift/megatron/argument(s)/megatron_args.py, swift/arguments)
and Megatron-LM.
"""

from __future__ import annotations

from diag.detectors.memory.causes import Verdict
from diag.detectors.memory.messages import flag
from diag.detectors.memory.refusals import STRICT, Refusal
from diag.model.observations import HostMemory
from diag.state.view import JobView
from diag.text.units import format_bytes

_RAISE = {
    "cgroup_limit": "Raise the memory limit of the container (docker run --memory=SIZE, Kubernetes resources.limits.memory, "
    "Slurm --mem), or use less host memory: ",
    "parent_cgroup_limit": "The limit is a parent's: of the pod, the Slurm job or the systemd slice, and all in it count. Raise "
    "that one (Kubernetes: the sum of all containers' resources.limits.memory; Slurm --mem; systemd MemoryMax=), move what else "
    "runs in it elsewhere, or use less host memory: ",
    "global_oom": "The whole host ran out: see what else runs there (`ps -eo pid,rss,comm --sort=-rss | head`), give the job a "
    "limit of its own so that it alone is killed, take nodes with more memory, or use less: ",
}
_SAVE = "the save copies tensors to host memory before it writes: "
_SAVE_FLAGS = (
    ("async_save", "--async_save keeps a second copy until it is written: leave it out"),
    (
        "dist_ckpt_optim_fully_reshardable",
        "--dist_ckpt_optim_fully_reshardable gathers the optimizer on one rank: leave it out, "
        "or add --distrib_optim_fully_reshardable_mem_efficient true",
    ),
    (
        "optimizer_cpu_offload",
        "--optimizer_cpu_offload holds the optimizer in host memory all the time: lower "
        "--optimizer_offload_fraction",
    ),
)
_SAVE_GENERAL = (
    "--no_save_optim true saves the weights alone (such a checkpoint cannot be resumed exactly), or use fewer "
    "ranks a node"
)
_WORKERS = (
    "fewer DataLoader workers (--dataloader_num_workers; Megatron and ms-swift 3.x: --num_workers), each of which "
    "prefetches --dataloader_prefetch_factor batches"
)
_PREPARE = "fewer processes prepare the data (--dataset_num_proc), or --streaming true"
_GENERAL = (
    "fewer DataLoader workers (--dataloader_num_workers), no --optimizer_cpu_offload, fewer ranks a node"
)


def after_kill(job: JobView, verdict: Verdict, phase: str, grower: str) -> str:
    parts = [_use_less(job, phase, grower)]
    group = verdict.group
    if group is not None and group.limit_bytes:
        if group.dirty_bytes > 0.2 * group.limit_bytes:
            parts.append(
                "Much of it was written and not yet on disk: a faster disk, or a lower `sysctl vm.dirty_bytes`, lets "
                "the writers wait earlier."
            )
        if group.shmem_bytes > 0.2 * group.limit_bytes:
            parts.append(
                "What lies in /dev/shm counts to the limit (a Kubernetes emptyDir with medium: Memory too)."
            )
    return _RAISE[verdict.cause] + " ".join(parts)


def _use_less(job: JobView, phase: str, grower: str) -> str:
    if "DataLoader worker" in grower:
        return f"{_WORKERS}."
    if phase in ("ckpt_save", "save_due"):
        given = [text for name, text in _SAVE_FLAGS if flag(job, name) not in (None, "false", "False")]
        return f"{_SAVE}{'; '.join([*given, _SAVE_GENERAL])}."
    if phase == "data_prep":
        return f"{_PREPARE}."
    return f"{_GENERAL}."


def after_refusal(refusal: Refusal, host: HostMemory | None) -> str:
    if refusal.cause == "rlimit_as" and refusal.limit is not None:
        option = "-v" if refusal.limit[0] == "Max address space" else "-d"
        return (
            f"Lift the limit before the launcher starts: `ulimit {option} unlimited` (systemd LimitAS=infinity, "
            "LimitDATA=infinity; Slurm: PropagateResourceLimits). CUDA maps hundreds of GiB of addresses that it never fills."
        )
    if refusal.cause == "fork_overcommit":
        return (
            "The kernel commits memory strictly, and a fork promises the child the whole size of its parent once more: "
            "`sysctl vm.overcommit_memory=0` (or 1), a higher vm.overcommit_ratio, more swap, or fewer forks of the big "
            "process (--dataloader_num_workers 0; megatron-core 0.17 and later saves with threads; no --async_save without "
            "--use_persistent_ckpt_worker true)."
        )
    if refusal.cause == "pinned_host":
        return (
            "Page-locked host memory could not be had: PyTorch rounds it up to powers of two and keeps it. Lower "
            "--optimizer_offload_fraction or leave out --optimizer_cpu_offload, use --dataloader_pin_memory false, lift "
            "`ulimit -l`, and look at the host's free memory and the container's limit (resources.limits.memory): it is not "
            "the GPU's memory that ran out."
        )
    if host is not None and host.overcommit == STRICT:
        return (
            "vm.overcommit_memory is 2: the kernel refuses what it could not keep if all were used. `sysctl "
            "vm.overcommit_memory=0` (or 1), a higher vm.overcommit_ratio, or more swap."
        )
    return (
        "The kernel refused the size that was asked for: look at that number, at the host's free memory and at "
        "/proc/sys/vm/overcommit_memory; a limit of addresses (`ulimit -v`) refuses in the same words."
    )


def in_stall(limit: int | None, high: int | None) -> str:
    if high is not None:
        return (
            f"Its memory.high is {format_bytes(high)}: above it the kernel holds every process of the cgroup up instead of killing. "
            f"Raise memory.high (systemd MemoryHigh=, Kubernetes memory QoS), or use less host memory: {_GENERAL}."
        )
    return (
        f"The kernel takes page cache back to stay below the limit of {format_bytes(limit)}, and everybody waits for it: raise the "
        f"limit of the container or pod, or use less host memory: {_GENERAL}."
    )
