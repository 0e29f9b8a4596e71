"""Variables that make a job slow, or hang: workarounds and debugging aids that stayed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from diag.knowledge.env_lint.advice import Advice, Check, LintedJob
from diag.model import Severity
from diag.text.units import format_seconds

_INFO, _WARNING = Severity.INFO, Severity.WARNING


def _rdma_switched_off(job: LintedJob) -> Iterator[Advice]:
    if job.nodes == 1 or job.rdma is False:
        return
    severity = _WARNING if job.rdma else _INFO
    here = "this node has RDMA devices, and " if job.rdma else ""
    if job.number("NCCL_IB_DISABLE") and job.env.get("NCCL_NET") == "IB":
        yield job.harmful(
            "NCCL_NET",
            "NCCL_NET=IB asks for the network that NCCL_IB_DISABLE=1 switches off: NCCL fails to start",
            "unset NCCL_IB_DISABLE",
        )
    elif job.number("NCCL_IB_DISABLE"):
        yield job.harmful(
            "NCCL_IB_DISABLE",
            f"{here}it makes NCCL send everything between nodes over TCP sockets, often ten times slower",
            "unset it; where RDMA then fails, mend its cause (NCCL_DEBUG=INFO tells it)",
            severity,
        )
    if job.env.get("NCCL_NET", "").lower() == "socket":
        yield job.harmful(
            "NCCL_NET",
            f"{here}it makes NCCL send everything between nodes over TCP sockets",
            "unset it, or NCCL_NET=IB so that a missing RDMA is an error and not a slow run",
            severity,
        )


def _gpu_direct_switched_off(job: LintedJob) -> Iterator[Advice]:
    if job.nodes == 1 or job.rdma is False:
        return
    if job.env.get("NCCL_NET_GDR_LEVEL", "").upper() in ("LOC", "0"):
        yield job.harmful(
            "NCCL_NET_GDR_LEVEL",
            "it makes data between nodes go through host memory (no GPUDirect RDMA) whatever the topology",
            "unset it: NCCL chooses by the distance between GPU and network card",
        )


def _paths_inside_a_node_switched_off(job: LintedJob) -> Iterator[Advice]:
    if job.number("NCCL_P2P_DISABLE"):
        yield job.harmful(
            "NCCL_P2P_DISABLE",
            "it makes GPUs of one node copy through host memory instead of NVLink or PCIe",
            "unset it; where P2P hangs, mend the cause (ACS or IOMMU on, a container without the same /proc and IPC)",
        )
    if job.env.get("NCCL_P2P_LEVEL", "").upper() in ("LOC", "0"):
        yield job.harmful(
            "NCCL_P2P_LEVEL",
            "it makes GPUs of one node copy through host memory instead of NVLink or PCIe",
            "unset it: NCCL chooses by the topology",
        )
    if job.number("NCCL_SHM_DISABLE"):
        yield job.harmful(
            "NCCL_SHM_DISABLE",
            "it makes ranks of one node that have no direct path between GPUs use the network",
            "unset it; where /dev/shm is too small, enlarge it (docker --shm-size=16g)",
        )


def _loopback_between_nodes(job: LintedJob) -> Iterator[Advice]:
    if job.nodes is None or job.nodes < 2:
        return
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        if job.env.get(name, "").lstrip("=") == "lo":
            yield job.harmful(
                name,
                f"it binds each of the {job.nodes} nodes to its own loopback interface: they never meet",
                "unset it, or name the interface that the nodes share",
            )


def _everything_waits(job: LintedJob) -> Iterator[Advice]:
    if job.number("CUDA_LAUNCH_BLOCKING"):
        yield job.harmful(
            "CUDA_LAUNCH_BLOCKING",
            "it makes the CPU wait for each kernel: nothing overlaps, and a hang looks like one "
            "of the kernel that was launched last",
            "unset it; it is for finding the line of a CUDA error",
        )
    for name in ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT"):
        if job.env.get(name, "").upper() in ("1", "TRUE", "Y", "YES", "T"):
            yield job.harmful(
                name,
                "it makes wait() block the Python thread until the collective has ended on the GPU: compute and "
                "communication no longer overlap",
                "unset it; errors and timeouts end the process by default",
            )
    for name in ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING"):
        if job.env.get(name, "").strip() == "0":
            yield job.harmful(
                name,
                "it keeps torch from ending the process when a collective fails or times out: the job hangs for ever instead",
                "unset it",
            )
    if job.env.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":
        yield job.harmful(
            "TORCH_DISTRIBUTED_DEBUG",
            "DETAIL makes all ranks compare the shapes of each collective over gloo before it runs",
            "unset it, or INFO; DETAIL is for finding a mismatch",
        )


def _hidden_errors(job: LintedJob) -> Iterator[Advice]:
    """Driver 580.159.04, H200, a failed assert and a bad store in a kernel, each tried once: of both
    cudaDeviceSynchronize said "no error", and without these variables 710 and 700. Not tried without
    skip_abort, nor with other drivers."""
    flags = re.split(r"[,\s]+", job.env.get("CUDA_COREDUMP_GENERATION_FLAGS", ""))
    if job.env.get("CUDA_ENABLE_USER_TRIGGERED_COREDUMP", "").strip() == "1" and "skip_abort" in flags:
        yield job.harmful(
            "CUDA_ENABLE_USER_TRIGGERED_COREDUMP",
            "with skip_abort in CUDA_COREDUMP_GENERATION_FLAGS a kernel that fails (an assert, a bad address) was seen to be "
            "reported as success (driver 580.159.04); nor does skip_abort keep a rank alive that is asked for a core dump",
            "unset it, or take skip_abort out of the flags",
        )


def _tuned_by_hand(job: LintedJob) -> Iterator[Advice]:
    for name, what in (("NCCL_ALGO", "algorithm"), ("NCCL_PROTO", "protocol")):
        if job.env.get(name):
            yield job.harmful(
                name,
                f"it pins NCCL's {what} for all collectives and sizes, which NCCL otherwise chooses by size and topology",
                "unset it, unless it was measured on this cluster with this NCCL",
                _INFO,
            )
    size = job.number("NCCL_BUFFSIZE")
    if size is not None and 0 < size < 1 << 20:
        yield job.harmful(
            "NCCL_BUFFSIZE",
            f"it cuts NCCL's buffers to {size} bytes (4 MiB by default): more and smaller transfers; the value is in bytes",
            "unset it",
        )
    for name in ("NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS", "NCCL_MAX_CTAS"):
        channels = job.number(name)
        if channels is not None and 0 < channels <= 2:
            yield job.harmful(
                name,
                f"it allows NCCL {channels} channels, each one thread block of the GPU: too few for the bandwidth "
                "of NVLink or of fast networks",
                "unset it",
                _INFO,
            )
    timeout = job.number("NCCL_IB_TIMEOUT")
    if timeout is not None and job.nodes != 1 and job.rdma is not False:
        if timeout >= 23 or timeout == 0:
            each = "for ever" if timeout == 0 else format_seconds(4.096e-6 * 2 ** min(timeout, 31))
            yield job.harmful(
                "NCCL_IB_TIMEOUT",
                f"it makes RDMA wait {each} for each of 8 tries before a dead path is an error (4.3 s at "
                "20, NCCL's default since 2.23): the job seems to hang",
                "unset it",
            )
        elif timeout < 14:
            yield job.harmful(
                "NCCL_IB_TIMEOUT",
                f"it lets RDMA wait {format_seconds(4.096e-6 * 2**timeout)} for an answer (4.3 s at 20, NCCL's "
                "default since 2.23): congestion alone becomes an error",
                "unset it",
            )


def _noisy(job: LintedJob) -> Iterator[Advice]:
    if job.env.get("NCCL_DEBUG", "").upper() == "TRACE":
        yield job.harmful(
            "NCCL_DEBUG",
            "TRACE prints each call of each rank where NCCL was built with TRACE=1, and no more than INFO in the usual builds",
            "NCCL_DEBUG=INFO, or WARN",
            _INFO,
        )


HARMFUL: tuple[Check, ...] = (
    _rdma_switched_off, _gpu_direct_switched_off, _paths_inside_a_node_switched_off, _loopback_between_nodes, _everything_waits,
    _hidden_errors, _tuned_by_hand, _noisy,
)  # fmt: skip
