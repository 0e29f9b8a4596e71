"""What is wrong with a job's environment variables: advice once copied that harms, or that nothing reads. Pure.

Says what a variable really does and what to do instead; whoever calls knows where it was set (environment, nccl.conf).
A variable that may belong to a plugin of NCCL, or to the job's own code, is left alone.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from diag.model import Severity
from diag.nccl_variables import NEWEST_NCCL, REMOVED_FROM_NCCL, TORCH, nccl_variables

__all__ = ["Advice", "lint", "number"]

_INFO, _WARNING = Severity.INFO, Severity.WARNING


@dataclass(frozen=True, slots=True)
class Advice:
    """`id` is env-harmful or env-no-effect; `does` what the variable really does; `instead` what to do, as an order."""

    id: str
    variable: str
    value: str
    severity: Severity
    does: str
    instead: str


@dataclass(frozen=True, slots=True)
class _Job:
    env: Mapping[str, str]
    nodes: int | None
    nccl_version: tuple[int, ...] | None
    rdma: bool | None

    def number(self, name: str) -> int | None:
        return number(self.env[name]) if self.env.get(name) else None

    def harmful(self, name: str, does: str, instead: str, severity: Severity = _WARNING) -> Advice:
        return Advice("env-harmful", name, self.env[name], severity, does, instead)

    def useless(self, name: str, does: str, instead: str, severity: Severity = _WARNING) -> Advice:
        return Advice("env-no-effect", name, self.env[name], severity, does, instead)


def lint(
    environment: Mapping[str, str],
    *,
    nodes: int | None,
    nccl_version: tuple[int, ...] | None,
    rdma: bool | None,
) -> Iterator[Advice]:
    """At most one advice a variable, the harmful ones first.

    `nodes` of the job, `nccl_version` such as (2, 27, 5), `rdma` whether this node has RDMA devices; None for what is not known.

    >>> [a.variable for a in lint({"NCCL_TIMEOUT": "3600", "NCCL_IB_DISABLE": "1"}, nodes=2, nccl_version=None, rdma=True)]
    ['NCCL_IB_DISABLE', 'NCCL_TIMEOUT']
    """
    job = _Job(environment, nodes, nccl_version, rdma)
    told = set()
    for check in (*_HARMFUL, *_NO_EFFECT):
        for advice in check(job):
            if advice.variable not in told:
                told.add(advice.variable)
                yield advice


def number(text: str) -> int:
    """As C's strtoll(text, NULL, 0) takes it: leading digits, hexadecimal and octal too, 0 for words.

    >>> number("1"), number("true"), number("0x10"), number("8M"), number("-1")
    (1, 0, 16, 8, -1)
    """
    match = re.match(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)", text)
    if match is None:
        return 0
    digits = match[2]
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits.startswith("0") and len(digits) > 1 else 10
    return (-1 if match[1] == "-" else 1) * int(digits, base)


# --- harmful ---------------------------------------------------------------------------------------------------------


def _rdma_switched_off(job: _Job) -> Iterator[Advice]:
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


def _gpu_direct_switched_off(job: _Job) -> Iterator[Advice]:
    if job.nodes == 1 or job.rdma is False:
        return
    if job.env.get("NCCL_NET_GDR_LEVEL", "").upper() in ("LOC", "0"):
        yield job.harmful(
            "NCCL_NET_GDR_LEVEL",
            "it makes data between nodes go through host memory (no GPUDirect RDMA) whatever the topology",
            "unset it: NCCL chooses by the distance between GPU and network card",
        )


def _paths_inside_a_node_switched_off(job: _Job) -> Iterator[Advice]:
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


def _loopback_between_nodes(job: _Job) -> Iterator[Advice]:
    if job.nodes is None or job.nodes < 2:
        return
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        if job.env.get(name, "").lstrip("=") == "lo":
            yield job.harmful(
                name,
                f"it binds each of the {job.nodes} nodes to its own loopback interface: they never meet",
                "unset it, or name the interface that the nodes share",
            )


def _everything_waits(job: _Job) -> Iterator[Advice]:
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


def _tuned_by_hand(job: _Job) -> Iterator[Advice]:
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
            each = "for ever" if timeout == 0 else f"{4.096e-6 * 2 ** min(timeout, 31):.0f} s"
            yield job.harmful(
                "NCCL_IB_TIMEOUT",
                f"it makes RDMA wait {each} for each of 8 tries before a dead path is an error (4.3 s at "
                "20, NCCL's default since 2.23): the job seems to hang",
                "unset it",
            )
        elif timeout < 14:
            yield job.harmful(
                "NCCL_IB_TIMEOUT",
                f"it lets RDMA wait {4.096e-3 * 2**timeout:.1f} ms for an answer (4.3 s at 20, NCCL's "
                "default since 2.23): congestion alone becomes an error",
                "unset it",
            )


def _noisy(job: _Job) -> Iterator[Advice]:
    if job.env.get("NCCL_DEBUG", "").upper() == "TRACE":
        yield job.harmful(
            "NCCL_DEBUG",
            "TRACE prints each call of each rank where NCCL was built with TRACE=1, and no more than INFO in the usual builds",
            "NCCL_DEBUG=INFO, or WARN",
            _INFO,
        )


_Check = Callable[[_Job], Iterator[Advice]]
_HARMFUL: tuple[_Check, ...] = (
    _rdma_switched_off, _gpu_direct_switched_off, _paths_inside_a_node_switched_off, _loopback_between_nodes, _everything_waits,
    _tuned_by_hand, _noisy,
)  # fmt: skip

# --- without effect --------------------------------------------------------------------------------------------------

_TIMEOUT = (
    "init_process_group(timeout=...) sets the timeout of collectives (ms-swift: --ddp_timeout, Megatron-LM: "
    "--distributed-timeout-minutes, accelerate: InitProcessGroupKwargs)"
)
# Names that guides and chat bots invent. Training scripts do read some of them by themselves (NCCL_TIMEOUT above all).
_INVENTED = {
    **dict.fromkeys(
        ("NCCL_TIMEOUT", "NCCL_TIMEOUT_MS", "NCCL_TIMEOUT_S", "NCCL_TIMEOUT_SEC", "NCCL_TIMEOUT_SECONDS", "NCCL_COMM_TIMEOUT",
         "NCCL_COLLECTIVE_TIMEOUT", "NCCL_WATCHDOG_TIMEOUT", "NCCL_INIT_TIMEOUT", "NCCL_DIST_TIMEOUT", "NCCL_DEFAULT_TIMEOUT",
         "NCCL_OP_TIMEOUT", "TORCH_NCCL_TIMEOUT", "TORCH_DISTRIBUTED_TIMEOUT", "TORCH_NCCL_WATCHDOG_TIMEOUT"), _TIMEOUT),
    **dict.fromkeys(("NCCL_SOCKET_TIMEOUT", "NCCL_CONNECT_TIMEOUT", "NCCL_NET_TIMEOUT", "NCCL_SOCKET_RETRY_COUNT"),
                    "NCCL_SOCKET_RETRY_CNT and NCCL_SOCKET_RETRY_SLEEP_MSEC (NCCL 2.24) set how often a connection is tried"),
    "NCCL_HEARTBEAT_TIMEOUT_SEC": "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC is its name",
    "NCCL_ENABLE_MONITORING": "TORCH_NCCL_ENABLE_MONITORING is its name",
    "NCCL_TRACE_BUFFER_SIZE": "TORCH_FR_BUFFER_SIZE is its name (before torch 2.8: TORCH_NCCL_TRACE_BUFFER_SIZE)",
    "NCCL_DUMP_ON_TIMEOUT": "TORCH_NCCL_DUMP_ON_TIMEOUT is its name",
    "NCCL_AVOID_RECORD_STREAMS": "TORCH_NCCL_AVOID_RECORD_STREAMS is its name",
    **dict.fromkeys(("NCCL_IB_ENABLE", "NCCL_ENABLE_IB", "NCCL_USE_IB"), "NCCL uses RDMA where it can; NCCL_NET=IB makes it an "
                    "error where it cannot"),
    **dict.fromkeys(("NCCL_DISABLE_IB", "NCCL_NO_IB"), "NCCL_IB_DISABLE=1 is its name"),
    **dict.fromkeys(("NCCL_P2P_ENABLE", "NCCL_ENABLE_P2P"), "NCCL uses P2P where it can"),
    **dict.fromkeys(("NCCL_DISABLE_P2P", "NCCL_NO_P2P"), "NCCL_P2P_DISABLE=1 is its name"),
    "NCCL_DISABLE_SHM": "NCCL_SHM_DISABLE=1 is its name",
    **dict.fromkeys(("NCCL_GDR_LEVEL", "NCCL_GDR_ENABLE", "NCCL_NET_GDR_ENABLE", "NCCL_NET_GDR_DISABLE", "NCCL_GDR_DISABLE"),
                    "NCCL_NET_GDR_LEVEL is its name"),
    **dict.fromkeys(("NCCL_IFNAME", "NCCL_INTERFACE", "NCCL_NETWORK_INTERFACE"), "NCCL_SOCKET_IFNAME is its name"),
    **dict.fromkeys(("NCCL_LOG_LEVEL", "NCCL_DEBUG_LEVEL", "NCCL_VERBOSE"), "NCCL_DEBUG is its name"),
}  # fmt: skip
# Read by torch under both names up to 2.13 (ProcessGroupNCCL.hpp), the old one with a warning.
_RENAMED_IN_TORCH = {
    "NCCL_BLOCKING_WAIT": ("TORCH_NCCL_BLOCKING_WAIT", "2.2"),
    "NCCL_ASYNC_ERROR_HANDLING": ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2.2"),
    "NCCL_DESYNC_DEBUG": ("TORCH_NCCL_DESYNC_DEBUG", "2.2"),
    "NCCL_ENABLE_TIMING": ("TORCH_NCCL_ENABLE_TIMING", "2.2"),
    "NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": ("TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", "2.2"),
    "TORCH_NCCL_TRACE_BUFFER_SIZE": ("TORCH_FR_BUFFER_SIZE", "2.8"),
    "TORCH_NCCL_TRACE_CPP_STACK": ("TORCH_FR_CPP_STACK", "2.8"),
}
# Of plugins, forks, tests and builds: not NCCL's own, and not ours to judge.
_NOT_NCCLS = re.compile(
    r"NCCL_(OFI|IBEXT|UCX|SHARP|PLUGIN|FASTRAK|GPUDIRECTTCPX|TCPX|FLEET|TUNER|INSPECTOR|PROFILER|TESTS?|MSCCL|MSCCLPP|CTRAN|SHIMNET|"
    r"GDRCOPY|EXT|AWS|ANP|HIER|DOCA|RCCL|VERSION|HOME|ROOT|DIR|PATH|INCLUDE|LIB|LIBRARY|SRC|REPO|TAG|BRANCH|BUILD|PACKAGE|CUDA|USE)(_|$)"
)


def _old_names_of_torch(job: _Job) -> Iterator[Advice]:
    for old, (new, version) in _RENAMED_IN_TORCH.items():
        if job.env.get(old):
            also = f"; {new} is set too and wins" if job.env.get(new) else ""
            yield job.useless(
                old,
                f"it is the old name of torch's {new} (since torch {version}), still read with a warning; NCCL itself "
                f"never read it{also}",
                f"set {new}, or nothing",
                _INFO,
            )
    if job.env.get("TORCH_NCCL_AVOID_RECORD_STREAMS", "").upper() in ("1", "TRUE", "Y", "YES", "T"):
        yield job.useless(
            "TORCH_NCCL_AVOID_RECORD_STREAMS",
            "newer torch (2.8 at the latest) always does this, and only warns of the variable",
            "unset it there",
            _INFO,
        )


def _read_by_nothing(job: _Job) -> Iterator[Advice]:
    for name, instead in _INVENTED.items():
        if job.env.get(name):
            yield job.useless(
                name, "neither NCCL nor torch reads it: it does nothing unless the training script reads it itself", instead
            )


def _not_of_this_nccl(job: _Job) -> Iterator[Advice]:
    version = job.nccl_version
    for name, (gone, instead) in REMOVED_FROM_NCCL.items():
        if not job.env.get(name):
            continue
        since = ".".join(map(str, gone))
        if gone <= (2, 5):
            yield job.useless(
                name,
                f"NCCL {since} and later (2019 at the latest) do not read it",
                f"unset it ({instead})" if instead else "unset it",
            )
        elif version is not None and version[:2] >= gone:
            yield job.useless(
                name,
                f"NCCL {since} and later do not read it, and this is {_dotted(version)}",
                f"unset it ({instead})" if instead else "unset it",
            )
    if version is None or version[:2] > NEWEST_NCCL:
        return
    for name, first in nccl_variables().items():
        if job.env.get(name) and first > version[:2]:
            yield job.useless(
                name, f"NCCL reads it from {_dotted(first)} on, and this is {_dotted(version)}", "update NCCL, or unset it", _INFO
            )


def _misspelt(job: _Job) -> Iterator[Advice]:
    known = nccl_variables()
    for name in sorted(job.env):
        if not name.startswith(("NCCL_", "TORCH_NCCL_")) or not job.env[name]:
            continue
        if name in known or name in TORCH or name in _INVENTED or name in _RENAMED_IN_TORCH or name in REMOVED_FROM_NCCL:
            continue
        if _NOT_NCCLS.match(name):
            continue
        near = difflib.get_close_matches(name, [*known, *TORCH], 1, 0.92)
        if near:
            yield job.useless(name, f"nothing is known to read it; {near[0]} is meant?", f"spell it {near[0]}")
    for name in sorted(job.env):  # ncclParam: strtoll, which makes 0 of any word
        if name in known and name.endswith(("_DISABLE", "_ENABLE")) and re.fullmatch(r"\s*[A-Za-z]+\s*", job.env[name]):
            yield job.useless(
                name, f"NCCL reads a number here, and takes the word {job.env[name].strip()!r} for 0", "write 1 or 0"
            )


def _contradictory(job: _Job) -> Iterator[Advice]:
    debug = job.env.get("NCCL_DEBUG", "").upper()
    levels = ("VERSION", "WARN", "ATTN", "INFO", "ABORT", "TRACE")
    if debug and debug not in levels:
        yield job.useless(
            "NCCL_DEBUG", "NCCL knows VERSION, WARN, INFO and TRACE, and prints nothing at any other word", "NCCL_DEBUG=INFO"
        )
    if job.env.get("NCCL_DEBUG_SUBSYS") and debug not in ("INFO", "TRACE"):
        yield job.useless(
            "NCCL_DEBUG_SUBSYS",
            "it chooses among lines of INFO, and without NCCL_DEBUG=INFO there are none",
            "NCCL_DEBUG=INFO, or unset it",
            _INFO,
        )
    if job.env.get("NCCL_DEBUG_FILE") and debug in ("", "VERSION"):
        yield job.useless(
            "NCCL_DEBUG_FILE", "NCCL writes to it only with NCCL_DEBUG at WARN or above", "NCCL_DEBUG=WARN or INFO", _INFO
        )
    if job.number("NCCL_IB_DISABLE"):
        for name in (
            "NCCL_IB_HCA",
            "NCCL_IB_GID_INDEX",
            "NCCL_IB_TC",
            "NCCL_IB_SL",
            "NCCL_IB_TIMEOUT",
            "NCCL_IB_QPS_PER_CONNECTION",
        ):
            if job.env.get(name):
                yield job.useless(name, "NCCL_IB_DISABLE=1 switches off all that it would set", "unset one of the two", _INFO)
    family = job.env.get("NCCL_SOCKET_FAMILY", "")
    if family and family not in ("AF_INET", "AF_INET6"):
        yield job.useless(
            "NCCL_SOCKET_FAMILY",
            "NCCL knows AF_INET and AF_INET6, and takes no notice of anything else",
            "NCCL_SOCKET_FAMILY=AF_INET or AF_INET6",
        )
    if len(job.env.get("NCCL_SOCKET_IFNAME", "")) == 1:
        yield job.useless("NCCL_SOCKET_IFNAME", "NCCL takes no notice of a value of one character", "name the interface")


_NO_EFFECT: tuple[_Check, ...] = (_contradictory, _read_by_nothing, _not_of_this_nccl, _old_names_of_torch, _misspelt)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
