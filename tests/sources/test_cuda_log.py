"""What PyTorch, NCCL and libraries say when CUDA fails. Real lines, with their versions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.model.observations import CudaErrorRaised, CudaOutOfMemory, Observation
from diag.sources.logs.line_facts import read_text

CAPTURE = Path(__file__).parents[1] / "captures" / "gpu" / "cuda_failures.txt"
GIB, MIB = 1 << 30, 1 << 20


def told(text: str, rank: int | None = None) -> list[Observation]:
    """What a line of a job's output says of CUDA."""
    return [
        fact
        for fact in read_text(text, "stderr", rank)
        if isinstance(fact, (CudaOutOfMemory, CudaErrorRaised))
    ]


def captured(name: str) -> list[Observation]:
    sections = re.split(r"^### ", CAPTURE.read_text(), flags=re.MULTILINE)
    text = next(section for section in sections if section.startswith(name + " "))
    return [fact for line in text.splitlines()[1:] for fact in told(line)]


def memory(text: str) -> CudaOutOfMemory:
    (fact,) = told(text)
    assert isinstance(fact, CudaOutOfMemory)
    return fact


# --- PyTorch's own allocator
# -----------------------------------------------------------------------------------

# torch 2.11, 2 x H200
NOW = (
    "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 16.00 GiB. GPU 1 has a total capacity of 139.80 GiB "
    "of which 10.14 GiB is free. Including non-PyTorch memory, this process has 129.65 GiB memory in use. Of the allocated "
    "memory 128.09 GiB is allocated by PyTorch, and 17.97 MiB is reserved by PyTorch but unallocated. If reserved but "
    "unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See "
    "documentation for Memory Management  (https://...)"
)
# torch 2.1 writes "capacty" (a Kaggle notebook, 2024: in its container the process is in the list under its
# number outside)
TYPO = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 224.00 MiB. GPU 0 has a total capacty of 14.75 GiB of "
    "which 11.06 MiB is free. Process 3258 has 14.73 GiB memory in use. Of the allocated memory 14.04 GiB is allocated by "
    "PyTorch, and 509.85 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
    "max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF"
)
# kaito issue 976, torch 2.5
POOLS = (
    "ERROR 04-01 23:46:56 [engine.py:160] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 546.00 MiB. GPU 0 has a "
    "total capacity of 15.77 GiB of which 514.19 MiB is free. Process 562167 has 15.25 GiB memory in use. Of the allocated "
    "memory 13.73 GiB is allocated by PyTorch, with 46.00 MiB allocated in private pools (e.g., CUDA Graphs), and 736.86 MiB is "
    "reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid ..."
)
# RLinf issue 255, torch 2.6
NEIGHBOURS = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 86.00 MiB. GPU 0 has a total capacity of 23.64 GiB of which "
    "264.00 MiB is free. Process 2086283 has 419.48 MiB memory in use. Including non-PyTorch memory, this process has 8.04 GiB "
    "memory in use. Process 2797307 has 14.85 GiB memory in use. Of the allocated memory 7.63 GiB is allocated by PyTorch, and "
    "40.11 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid ..."
)
# torch 1.13, dolly on a 48 GB card, 2023
OLD = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 984.00 MiB (GPU 0; 47.50 GiB total capacity; 22.15 GiB "
    "already allocated; 68.88 MiB free; 22.16 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try "
    "setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF"
)


def test_all_numbers_of_the_present_wording_are_read() -> None:
    fact = memory(NOW)

    assert (fact.rank, fact.device, fact.tried_bytes) == (1, 1, 16 * GIB)
    assert fact.total_bytes == pytest.approx(139.80 * GIB) and fact.free_bytes == pytest.approx(10.14 * GIB)
    assert fact.in_use_bytes == pytest.approx(129.65 * GIB) and fact.allocated_bytes == pytest.approx(
        128.09 * GIB
    )
    assert fact.reserved_bytes == pytest.approx(17.97 * MIB, abs=1)
    assert (fact.others, fact.allowed_bytes, fact.private_bytes) == ((), None, None)


def test_wording_of_torch_2_1_with_its_typo_is_read() -> None:
    fact = memory(TYPO)

    assert fact.total_bytes == pytest.approx(14.75 * GIB) and fact.reserved_bytes == pytest.approx(
        509.85 * MIB, abs=1
    )
    assert fact.in_use_bytes is None and fact.others == ((3258, pytest.approx(14.73 * GIB, abs=1)),)


def test_private_pools_are_told_apart() -> None:
    fact = memory(POOLS)

    assert fact.private_bytes == 46 * MIB and fact.reserved_bytes == pytest.approx(736.86 * MIB, abs=1)


def test_other_processes_on_the_gpu_are_listed_and_our_own_is_not() -> None:
    fact = memory(NEIGHBOURS)

    assert [pid for pid, _ in fact.others] == [2086283, 2797307]
    assert fact.in_use_bytes == pytest.approx(8.04 * GIB)


def test_wording_of_torch_1_13_is_read_and_reserved_means_unused_there_too() -> None:
    fact = memory(OLD)

    assert (fact.device, fact.tried_bytes, fact.in_use_bytes) == (0, 984 * MIB, None)
    assert fact.free_bytes == pytest.approx(68.88 * MIB, abs=1) and fact.allocated_bytes == pytest.approx(
        22.15 * GIB
    )
    assert fact.reserved_bytes == pytest.approx(0.01 * GIB, abs=2)


def test_limit_that_the_program_set_itself_is_read() -> None:
    (fact,) = captured("oom_fraction")

    assert isinstance(fact, CudaOutOfMemory) and fact.allowed_bytes == pytest.approx(13.98 * GIB)


def test_message_that_was_cut_still_tells_what_was_asked_for() -> None:
    fact = memory("RuntimeError: CUDA out of memory. Tried to allocate 512.00 MiB")

    assert (fact.tried_bytes, fact.device, fact.total_bytes) == (512 * MIB, None, None)


def test_zero_bytes_is_a_size() -> None:
    assert memory(NOW.replace("17.97 MiB", "0 bytes")).reserved_bytes == 0


# --- everything else
# -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("oom_no_room_for_context", "out of memory"),
        ("oom_pinned_host", "out of memory"),
        ("oom_cudamallocasync", "out of memory"),
        ("cuda_host_register", "out of memory"),
        ("oom_cublas", "CUBLAS_STATUS_ALLOC_FAILED"),
        ("device_assert", "device-side assert triggered"),
        ("illegal_address", "an illegal memory access was encountered"),
        ("misaligned", "misaligned address"),
    ],
)
def test_recorded_failure_is_one_error_in_cudas_own_words(name: str, error: str) -> None:
    facts = captured(name)

    assert {fact.error for fact in facts if isinstance(fact, CudaErrorRaised)} == {error}
    # four threads print the assertion, and the exception follows
    assert len(facts) == (5 if name == "device_assert" else 1)


def test_nccl_that_gets_no_memory_says_it_twice() -> None:
    facts = captured("oom_nccl")

    assert [fact.error for fact in facts if isinstance(fact, CudaErrorRaised)] == ["out of memory"] * 2


def test_assertion_in_a_kernel_keeps_its_condition() -> None:
    first = captured("device_assert")[0]

    assert (
        isinstance(first, CudaErrorRaised) and "Assertion `srcIndex < srcSelectDimSize` failed." in first.text
    )


def test_pinned_memory_is_told_where_the_line_says_so() -> None:
    line = "RuntimeError: CUDA error: out of memory (cudaHostAlloc of 4294967296 bytes)"

    assert told(line, 3) == [CudaErrorRaised(3, "out of memory", line, True)]


@pytest.mark.parametrize(
    "line",
    [
        "CUDA available: True, CUDA version 13.0",
        "gpu-node-0:1496:1496 [1] NCCL INFO cudaDriverVersion 13000",
        "torch.AcceleratorError: CUDA error: invalid device ordinal",
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "misc/shmutils.cc:101 NCCL WARN Cuda failure 'invalid argument'",
        "UserWarning: set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True if you run out of memory",
        "Search for `cudaErrorAssert' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more "
        "information.",
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
        "Memory cgroup out of memory: Killed process 9012 (python3) total-vm:142280kB",
        "AssertionError: Assertion `x` failed.",
    ],
)
def test_line_that_reports_no_failure_of_the_gpu_says_nothing(line: str) -> None:
    assert told(line) == []


@settings(deadline=None, max_examples=100)
@given(st.sampled_from([NOW, TYPO, POOLS, NEIGHBOURS, OLD]), st.data())
def test_damaged_message_raises_for_nothing(text: str, data: Any) -> None:
    begin = data.draw(st.integers(0, len(text)))
    cut = text[:begin] + data.draw(st.text(max_size=5)) + text[begin + data.draw(st.integers(0, 40)) :]

    for fact in told(cut):
        assert isinstance(fact, (CudaOutOfMemory, CudaErrorRaised))


@pytest.mark.parametrize(
    "line",
    [
        "DGLError: [10:00:00] /src/runtime/cuda/cuda_device_api.cc:117: Check failed: e == cudaSuccess: CUDA: out of memory",
        "cupy_backends.cuda.api.runtime.CUDARuntimeError: cudaErrorMemoryAllocation: out of memory",
    ],
)
def test_libraries_around_the_runtime_use_its_words(line: str) -> None:
    (fact,) = told(line)

    assert isinstance(fact, CudaErrorRaised) and fact.error == "out of memory"


@pytest.mark.parametrize("line", ["[INFO] CUDA: available", "handles CUDA: out of memory errors? no"])
def test_word_of_cuda_alone_is_no_error(line: str) -> None:
    assert told(line) == []
