"""Variables that do nothing: names that nothing reads, that are gone or not there yet, values that are not
understood."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from diag.knowledge.env_lint.advice import Advice, Check, LintedJob
from diag.knowledge.nccl_variables import NEWEST_NCCL, REMOVED_FROM_NCCL, TORCH, nccl_variables
from diag.model import Severity

_INFO = Severity.INFO

_TIMEOUT = (
    "init_process_group(timeout=...) sets the timeout of collectives (ms-swift: --ddp_timeout, Megatron-LM: "
    "--distributed-timeout-minutes, accelerate: InitProcessGroupKwargs)"
)
# Names that guides and chat bots invent. Training scripts do read some of them by themselves (NCCL_TIMEOUT
# above all).
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


def _old_names_of_torch(job: LintedJob) -> Iterator[Advice]:
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


def _read_by_nothing(job: LintedJob) -> Iterator[Advice]:
    for name, instead in _INVENTED.items():
        if job.env.get(name):
            yield job.useless(
                name,
                "neither NCCL nor torch reads it: it does nothing unless the training script reads it itself",
                instead,
            )


def _not_of_this_nccl(job: LintedJob) -> Iterator[Advice]:
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
                name,
                f"NCCL reads it from {_dotted(first)} on, and this is {_dotted(version)}",
                "update NCCL, or unset it",
                _INFO,
            )


def _misspelt(job: LintedJob) -> Iterator[Advice]:
    known = nccl_variables()
    for name in sorted(job.env):
        if not name.startswith(("NCCL_", "TORCH_NCCL_")) or not job.env[name]:
            continue
        if (
            name in known
            or name in TORCH
            or name in _INVENTED
            or name in _RENAMED_IN_TORCH
            or name in REMOVED_FROM_NCCL
        ):
            continue
        if _NOT_NCCLS.match(name):
            continue
        if near := difflib.get_close_matches(name, [*known, *TORCH], 1, 0.92):
            yield job.useless(
                name, f"nothing is known to read it; {near[0]} is meant?", f"spell it {near[0]}"
            )
    for name in sorted(job.env):  # ncclParam: strtoll, which makes 0 of any word
        if (
            name in known
            and name.endswith(("_DISABLE", "_ENABLE"))
            and re.fullmatch(r"\s*[A-Za-z]+\s*", job.env[name])
        ):
            yield job.useless(
                name,
                f"NCCL reads a number here, and takes the word {job.env[name].strip()!r} for 0",
                "write 1 or 0",
            )


def _contradictory(job: LintedJob) -> Iterator[Advice]:
    debug = job.env.get("NCCL_DEBUG", "").upper()
    levels = ("VERSION", "WARN", "ATTN", "INFO", "ABORT", "TRACE")
    if debug and debug not in levels:
        yield job.useless(
            "NCCL_DEBUG",
            "NCCL knows VERSION, WARN, INFO and TRACE, and prints nothing at any other word",
            "NCCL_DEBUG=INFO",
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
            "NCCL_DEBUG_FILE",
            "NCCL writes to it only with NCCL_DEBUG at WARN or above",
            "NCCL_DEBUG=WARN or INFO",
            _INFO,
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
                yield job.useless(
                    name,
                    "NCCL_IB_DISABLE=1 switches off all that it would set",
                    "unset one of the two",
                    _INFO,
                )
    family = job.env.get("NCCL_SOCKET_FAMILY", "")
    if family and family not in ("AF_INET", "AF_INET6"):
        yield job.useless(
            "NCCL_SOCKET_FAMILY",
            "NCCL knows AF_INET and AF_INET6, and takes no notice of anything else",
            "NCCL_SOCKET_FAMILY=AF_INET or AF_INET6",
        )
    if len(job.env.get("NCCL_SOCKET_IFNAME", "")) == 1:
        yield job.useless(
            "NCCL_SOCKET_IFNAME", "NCCL takes no notice of a value of one character", "name the interface"
        )


NO_EFFECT: tuple[Check, ...] = (
    _contradictory,
    _read_by_nothing,
    _not_of_this_nccl,
    _old_names_of_torch,
    _misspelt,
)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
