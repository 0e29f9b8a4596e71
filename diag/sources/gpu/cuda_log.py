"""Lines in which a program says that CUDA failed: GPU memory ran out, or a call returned an error."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from diag.model.observations import CudaErrorRaised, CudaOutOfMemory, GpuDumpStarted, Observation

_LONGEST = 4000  # the message of 16 processes on one GPU has 1700 characters
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE = r"(\d{1,7}(?:\.\d{1,4})? (?:bytes|[KMG]iB))"

# torch 2.1 and later (c10/cuda/CUDACachingAllocator.cpp); 2.1 writes "capacty", 2.9 and later
# PYTORCH_ALLOC_CONF:
#   [rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 16.00 GiB. GPU 1 has a total capacity of 139.80 GiB of
#   which 10.14 GiB is free. Including non-PyTorch memory, this process has 129.65 GiB memory in use. Of the allocated memory
#   128.09 GiB is allocated by PyTorch, and 17.97 MiB is reserved by PyTorch but unallocated. If reserved ...   (2.11, 2 x H200)
#   ... of which 264.00 MiB is free. Process 2086283 has 419.48 MiB memory in use. Including non-PyTorch memory, this process has
#   8.04 GiB memory in use. Process 2797307 has 14.85 GiB memory in use. Of the allocated ...                  (RLinf issue 255)
#   ... 13.73 GiB is allocated by PyTorch, with 46.00 MiB allocated in private pools (e.g., CUDA Graphs), and 736.86 MiB is
#   reserved by PyTorch but unallocated.                                                                      (kaito issue 976)
_TRIED = re.compile(rf"out of memory\. Tried to allocate {_SIZE}")
_NEW = re.compile(rf"\. [GNX]PU (\d{{1,4}}) has a total capaci?ty of {_SIZE} of which {_SIZE} is free\.")
_PROCESS = re.compile(rf"Process (\d{{1,10}}) has {_SIZE} memory in use")
_OURS = re.compile(rf"this process has {_SIZE} memory in use")
_ALLOWED = re.compile(rf"{_SIZE} allowed; ")
_OF_ALLOCATED = re.compile(
    rf"Of the allocated memory {_SIZE} is allocated by PyTorch, "
    rf"(?:with {_SIZE} allocated in private pools \(e\.g\., CUDA Graphs\), )?and {_SIZE} is reserved by PyTorch but unallocated"
)
# torch 1.13 and 2.0 (dolly's and OpenAssistant's users, 2023):
#   torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 984.00 MiB (GPU 0; 47.50 GiB total capacity; 22.15 GiB
#   already
#   allocated; 68.88 MiB free; 22.16 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting ...
# torch_npu 1.11-2.7 (NPUCachingAllocator.cpp) has one number more, which is not in the others:
#   RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 29.50 GiB total capacity; 25.11 GiB already allocated;
#   25.11 GiB current active; 1.22 GiB free; 26.03 GiB reserved in total by PyTorch) If reserved memory is ...
_OLD = re.compile(
    rf" \([GNX]PU (\d{{1,4}}); {_SIZE} total capacity; {_SIZE} already allocated; "
    rf"(?:\d{{1,7}}(?:\.\d{{1,4}})? (?:bytes|[KMG]iB) current active; )?{_SIZE} free; (?:{_SIZE} allowed; )?"
    rf"{_SIZE} (?:reserved in total by PyTorch|cached)\)"
)

# CUDA's words for its errors (cudaGetErrorString) that speak of the GPU, its memory or the kernels that ran.
# Others (no kernel image, invalid device ordinal ...) are the program's business and in its last lines.
_WORDS = (
    "out of memory", "device-side assert triggered", "an illegal memory access was encountered", "misaligned address",
    "an illegal instruction was encountered", "unspecified launch failure", "the launch timed out and was terminated",
    "operation not supported on global/shared address space", "invalid program counter", "hardware stack error",
    "uncorrectable ECC error encountered", "uncorrectable NVLink error detected during the execution",
    "Invalid access of peer GPU memory over nvlink or a hardware error", "system not yet initialized",
    "CUDA-capable device(s) is/are busy or unavailable", "unknown error",
)  # fmt: skip
_EITHER = "|".join(map(re.escape, _WORDS))
# torch 2.11, H200, 2026-11-20: [rank1]: torch.AcceleratorError: CUDA error: device-side assert triggered
# torch before 2.9: RuntimeError: CUDA error: ...; with expandable segments: CUDA driver error: out of memory
# Triton 3: RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered; Transformer Engine:
# CUDA Error: ...
# NCCL 2.28.9, same capture: ... include/alloc.h:250 NCCL WARN Cuda failure 710 'device-side assert triggered'
# NCCL before 2.24: ... include/alloc.h:316 NCCL WARN Cuda failure 'out of memory'
# torch.cuda.check_error, torch 2.11, same machine: torch.cuda.CudaError: out of memory (cudaError.???)
# dmlc's macro around the runtime's calls (DGL 0.4-2.4, TVM, MXNet); CuPy, XGBoost, Thrust have CUDA's name of the error:
#   ... Check failed: e == cudaSuccess || e == cudaErrorCudartUnloading: CUDA: out of memory
#   cupy_backends.cuda.api.runtime.CUDARuntimeError: cudaErrorMemoryAllocation: out of memory
_ERROR = re.compile(
    rf"(?:CUDA (?:driver )?[Ee]rror: |: CUDA: |\bcudaError[A-Z]\w{{2,60}}: "
    rf"|Triton Error \[CUDA\]: |torch\.cuda\.CudaError: |Cuda failure (?:\d{{1,4}} )?')({_EITHER})"
)
# torch: RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`
#        RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED
_LIBRARY = re.compile(
    r"\b(CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|CUSOLVER_STATUS_ALLOC_FAILED)\b"
)
# torch, backend cudaMallocAsync, the numbers in further lines (CUDAMallocAsyncAllocator.cpp):
#   torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)
_ASYNC = re.compile(r"Allocation on device (\d{1,4}) would exceed allowed memory\. \(out of memory\)")
# The kernel's own print, torch 2.11, H200, 2026-11-20; once a thread, thousands of them:
#   /pytorch/aten/src/ATen/native/cuda/IndexKernel.cu:111: operator(): block: [0,0,0], thread: [0,0,0] Assertion `-sizes[i] <=
#   index
#   && index < sizes[i] && "index out of bounds"` failed.
_ASSERTION = re.compile(r"block: \[\d+,\d+,\d+\], thread: \[\d+,\d+,\d+\] Assertion `.{1,300}` failed\.")
_HOST = re.compile(
    r"cudaHostAlloc|cudaMallocHost|cuMemHostAlloc|cudaHostRegister|pin[ _]memory|pinned", re.IGNORECASE
)

# Driver 580.159.04, H200, 2026-11-22; the second with CUDA_COREDUMP_SHOW_PROGRESS=1:
#   Starting GPU coredump generation, set the CUDA_COREDUMP_SHOW_PROGRESS environment variable to 1 to enable more detailed output
#   [10:43:10.089509] coredump: Starting GPU coredump generation
DUMP = "Starting GPU coredump generation"

WORDS = ("GPU coredump", "CUDA", "out of memory", "ALLOC_FAILED", "Cuda failure", "CudaError", "Assertion `")


def may_tell(text: str) -> bool:
    """Whether a line has a word of ours: cheap, for each line of a log."""
    return (
        "CUDA" in text
        or "out of memory" in text
        or "ALLOC_FAILED" in text
        or "Cuda failure" in text
        or "CudaError" in text
        or "Assertion `" in text
        or "GPU coredump" in text
    )


def read_line(text: str, rank: int | None) -> Iterator[Observation]:
    text = text[:_LONGEST]
    if tried := _TRIED.search(text):
        yield _out_of_memory(text, rank, tried)
        return
    if match := _ERROR.search(text):
        host = match[1] == "out of memory" and _HOST.search(text) is not None
        yield CudaErrorRaised(rank, match[1], text[:500], host)
        return
    if match := _ASYNC.search(text):
        yield CudaErrorRaised(rank, "out of memory", text[:500])
        return
    if match := _LIBRARY.search(text):
        yield CudaErrorRaised(rank, match[1], text[:500])
    elif DUMP in text:
        yield GpuDumpStarted(rank, text[:500])
    elif _ASSERTION.search(text):
        yield CudaErrorRaised(rank, "device-side assert triggered", text[:500])


def _out_of_memory(text: str, rank: int | None, tried: re.Match[str]) -> CudaOutOfMemory:
    names = ("device", "total_bytes", "free_bytes", "in_use_bytes", "allocated_bytes", "reserved_bytes")
    found: dict[str, Any] = dict.fromkeys(names)
    if new := _NEW.match(text, tried.end()):
        ours, allowed = _OURS.search(text), _ALLOWED.search(text, new.end())
        found |= {"device": int(new[1]), "total_bytes": _bytes(new[2]), "free_bytes": _bytes(new[3])}
        found["in_use_bytes"] = _bytes(ours[1]) if ours else None
        found["allowed_bytes"] = _bytes(allowed[1]) if allowed else None
        found["others"] = tuple((int(pid), _bytes(used)) for pid, used in _PROCESS.findall(text, new.end()))
        if parts := _OF_ALLOCATED.search(text, new.end()):
            found |= {"allocated_bytes": _bytes(parts[1]), "reserved_bytes": _bytes(parts[3])}
            found["private_bytes"] = _bytes(parts[2]) if parts[2] else None
    elif old := _OLD.match(text, tried.end()):
        allocated, held = _bytes(old[3]), _bytes(old[6])
        found |= {"device": int(old[1]), "total_bytes": _bytes(old[2]), "free_bytes": _bytes(old[4])}
        found |= {"allocated_bytes": allocated, "reserved_bytes": max(0, held - allocated)}
        found["allowed_bytes"] = _bytes(old[5]) if old[5] else None
    return CudaOutOfMemory(rank, tried_bytes=_bytes(tried[1]), text=text, **found)


def _bytes(text: str) -> int:
    """
    >>> _bytes("17.97 MiB"), _bytes("0 bytes")
    (18842910, 0)
    """
    number, _, unit = text.partition(" ")
    return int(float(number) * _UNITS[unit])
