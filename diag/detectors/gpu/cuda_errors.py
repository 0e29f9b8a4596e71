"""What CUDA's errors mean: whether the program or the GPU is to blame, which Xids follow from them, and what
to do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CudaError:
    """`hardware`: the GPU, its memory or links are to blame. `follows`: Xids that the driver reports as a
    consequence."""

    cause: str
    meaning: str
    hardware: bool
    follows: tuple[int, ...]
    advice: str


_BLOCKING = "Run once with CUDA_LAUNCH_BLOCKING=1: then the traceback stands at the kernel that failed"
_KERNEL = (
    f"{_BLOCKING}; `compute-sanitizer --target-processes all CMD` names the access. New or own kernels (flash attention, Triton, "
    "Transformer Engine, grouped GEMM) come first; if it moves with one GPU and no other, that GPU is to blame: see `dmesg` for "
    "Xids."
)
_MEMORY = (
    "Start the job again without this GPU, and reset it (`nvidia-smi --gpu-reset -i INDEX`) or reboot the node: the bad row is "
    "then mapped "
    "out. Where `nvidia-smi -q -d ROW_REMAPPER` shows a failed remapping, the GPU has to be replaced."
)

# By cudaGetErrorString. Seen: device-side assert -> Xid 43 (driver 580.159.04, H200, 2026-11-20).
CUDA_ERRORS: dict[str, CudaError] = {
    "device-side assert triggered": CudaError(
        "device_assert",
        "a check inside a kernel failed",
        False,
        (43, 45, 13),
        "It is the program's input, not the GPU: an index or label out of range, most often a token id >= the embedding's rows "
        "(tokenizer "
        "and model do not match, added tokens without --new_special_tokens or resize), a label outside of the classes, a "
        "position beyond "
        f"the longest. {_BLOCKING} with the tensor to look at.",
    ),
    "an illegal memory access was encountered": CudaError(
        "illegal_address",
        "a kernel touched memory that is not its own",
        False,
        (31, 13, 43, 45),
        _KERNEL,
    ),
    "misaligned address": CudaError(
        "misaligned_address",
        "a kernel used an address of the wrong alignment",
        False,
        (13, 43, 45),
        _KERNEL,
    ),
    "an illegal instruction was encountered": CudaError(
        "illegal_instruction",
        "a kernel met an instruction that the GPU does not know",
        False,
        (13, 43, 45),
        _KERNEL,
    ),
    "operation not supported on global/shared address space": CudaError(
        "illegal_address",
        "a kernel used an address of the wrong kind",
        False,
        (13, 43, 45),
        _KERNEL,
    ),
    "invalid program counter": CudaError(
        "illegal_instruction", "a kernel jumped to nowhere", False, (13, 43, 45), _KERNEL
    ),
    "unspecified launch failure": CudaError(
        "launch_failure", "a kernel failed", False, (13, 31, 43, 45, 69), _KERNEL
    ),
    "the launch timed out and was terminated": CudaError(
        "launch_timeout",
        "a kernel ran longer than the driver lets it",
        False,
        (8, 43, 45),
        "The GPU also drives a display: use one that does not, or shorter kernels.",
    ),
    "hardware stack error": CudaError(
        "hardware_stack", "a kernel's call stack broke", False, (13, 43, 45), _KERNEL
    ),
    "uncorrectable ECC error encountered": CudaError(
        "ecc_uncorrectable",
        "its memory has an error that ECC could not correct",
        True,
        (48, 63, 64, 94, 95, 140, 171, 172, 43, 45),
        _MEMORY,
    ),
    "uncorrectable NVLink error detected during the execution": CudaError(
        "nvlink_uncorrectable",
        "a transfer over NVLink was lost",
        True,
        (74, *range(144, 151), 155, 43, 45),
        "Take the node out and look at `nvidia-smi nvlink -s` and `-e`, the fabric manager's log and `dmesg` (Xid 74, 144-150, "
        "SXid).",
    ),
    "Invalid access of peer GPU memory over nvlink or a hardware error": CudaError(
        "peer_memory",
        "memory of another GPU could not be reached over NVLink",
        True,
        (137, 43, 45, 94),
        "Most often a rank that used that memory ended first: look for the first rank that failed. Else see `nvidia-smi nvlink "
        "-e`, IMEX "
        "(`nvidia-imex-ctl -N` on NVL72) and the fabric manager.",
    ),
    "system not yet initialized": CudaError(
        "fabric_not_ready",
        "the node's NVSwitches are not set up",
        True,
        (),
        "Start the fabric manager (`systemctl restart nvidia-fabricmanager`; its version has to be the driver's), see "
        "`nvidia-smi -q | grep "
        "-A4 Fabric`; on NVL72 the IMEX service too.",
    ),
    "CUDA-capable device(s) is/are busy or unavailable": CudaError(
        "device_unavailable",
        "the GPU cannot be used",
        False,
        (),
        "Another process holds it in exclusive mode (`nvidia-smi -q -d COMPUTE`), or it needs a reset after an error: see "
        "`dmesg` for Xids.",
    ),
    "unknown error": CudaError(
        "unknown_cuda_error",
        "the driver gives no reason",
        False,
        (),
        "See `dmesg` for Xids of this GPU, and `nvidia-smi` whether it answers.",
    ),
}
# What a launch failure is after the driver wrote a core dump of that GPU. Seen with each of three dumps that
# were asked for of ranks with skip_abort (driver 580.159.04, H200, 2026-11-22): one in its own kernel, one in
# NCCL, one that trained.
CORE_DUMP = CudaError(
    "core_dump",
    "the driver had just written a GPU core dump, which ends what runs on that GPU",
    False,
    (43, 45),
    "If somebody asked for the dump (wrote into CUDA_COREDUMP_PIPE), the failure is its doing, and not the program's: start the "
    "job again. Put the core dumps of all ranks into one folder with the other evidence and run `diag replay` on it: it names "
    "the kernels that ran. If nobody asked, the driver wrote it after a kernel failed: open it with cuda-gdb (`target cudacore "
    "FILE`).",
)
