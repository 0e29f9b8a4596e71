"""Errors of RDMA itself: transfers that failed, queue pairs that could not be connected, links that lose
packets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from diag.detectors.network.memlock import is_memlock, is_resource, may_lock_all
from diag.model import JOB, Confidence, Evidence, Finding, NotChecked, Severity
from diag.model.observations import (
    NcclCompletionError,
    NcclFact,
    NcclPortEvent,
    NcclRetry,
    NcclVerbsError,
    RdmaPortsSeen,
)
from diag.state.ncclprocess import NcclProcess
from diag.state.view import JobView
from diag.text.units import format_ranks, format_seconds

# ibv_wc_status (rdma-core, libibverbs/verbs.h): (cause, what it means, what to do)
_STATUS = {
    12: (
        "retry_exceeded",
        "the other side did not answer: its process or path is gone",
        "Look at the other end first: a rank that died, a port or switch that went down. On RoCE check the GID "
        "(NCCL_IB_GID_INDEX), the path's MTU and flow control; a fabric that re-routes slowly needs NCCL_IB_TIMEOUT=22.",
    ),
    13: (
        "rnr_retry_exceeded",
        "the other side was not ready to receive for too long",
        "Look for a stalled or stopped peer process.",
    ),
    4: (
        "local_protection",
        "the card may not reach this memory: often PCIe ACS in the way of GPU Direct",
        "Turn off ACS on the PCIe bridges (`setpci`, BIOS), or test with NCCL_NET_GDR_LEVEL=LOC; check that nvidia_peermem "
        "fits the driver.",
    ),
    10: (
        "remote_access",
        "the other side refused access to its memory",
        "Check that all nodes run the same NCCL and driver; "
        "then as for local protection errors: ACS and nvidia_peermem on the other node.",
    ),
    5: (
        "flushed",
        "the connection was torn down after an earlier error",
        "Look for the first error of another rank: this one follows.",
    ),
}
# errno of ibv_modify_qp; NCCL 2.30 prints hints that say the same.
_MODIFY = {
    22: (
        "wrong_gid_index",
        "EINVAL: the GID index is not valid on this port",
        "Unset NCCL_IB_GID_INDEX (NCCL 2.21 and later choose it), or set it to a RoCE v2 entry: `show_gids`, or "
        "/sys/class/infiniband/*/ports/*/gid_attrs/types/*.",
    ),
    110: (
        "no_route",
        "ETIMEDOUT: the other port cannot be reached",
        "The two ports are in different subnets or rails: NCCL_CROSS_NIC=0 on rail-only fabrics, or a route between them; "
        "check `ib_write_bw` between these two nodes.",
    ),
    101: (
        "no_route",
        "ENETUNREACH: no route to the other port's address",
        "Give the RoCE interfaces addresses of one routed "
        "network; check `ip route get` to the address in the line.",
    ),
    113: (
        "no_route",
        "EHOSTUNREACH: no route to the other port's address",
        "Check `ip route get` and the neighbour table for the address in the line.",
    ),
    19: (
        "gid_vanished",
        "ENODEV: the address behind the GID went away",
        "The RoCE interface lost its address or its bond changed: see the node's network log.",
    ),
}
_QP_FAILED = (
    "qp_failed",
    "the queue pair could not be connected",
    "Check the path between the two ports with `ib_write_bw` between these nodes.",
)
_RETRIES = 5  # NCCL 2.24 and later try 34 times, 100 ms, 200 ms ... apart: after 1.5 s it is no hiccup
# A path that loses a packet a second over a minute is sick; a healthy one counts a handful a day. Ours.
_LOSSES = ("local_ack_timeout_err", "packet_seq_err")
_LOSSES_PER_SECOND = 1.0
_LOSS_SECONDS = 60.0


class IbErrorDetector:
    """Meaning: RDMA was used and failed: a transfer ended in an error, or a connection between two ports
    could not be made.

    Evidence: NCCL's `Got completion ... with status=`, `Call to ibv_modify_qp failed`, fatal events of a
    device; the counters of lost packets of the node's ports. The first error counts: those that only report a
    flushed queue follow from another's.

    What to do: the advice follows the status or errno.

    False alarms: a rank that dies takes its peers' transfers with it (status 12): then rank-died names the
    root.
    """

    name = "ib-error"
    listens = (RdmaPortsSeen,)

    def __init__(self) -> None:
        self._losses: dict[tuple[str, int, str], tuple[float, int]] = {}
        self._sick: dict[tuple[str, int, str], tuple[float, float]] = {}

    def observe(self, at: float, fact: RdmaPortsSeen) -> None:
        for port in fact.ports:
            for name, value in port.counters:
                if name not in _LOSSES:
                    continue
                key = (port.device, port.port, name)
                first = self._losses.setdefault(key, (fact.emitted, value))
                seconds = fact.emitted - first[0]
                if seconds >= _LOSS_SECONDS:
                    rate = (value - first[1]) / seconds
                    self._losses[key] = (fact.emitted, value)
                    if rate > _LOSSES_PER_SECOND:
                        self._sick[key] = (at, rate)
                    else:
                        self._sick.pop(key, None)

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        first: dict[str, tuple[float, int, NcclFact, str, str]] = {}
        ranks: dict[str, set[int]] = {}
        for rank, process in sorted(job.nccl_processes.placed().items()):
            for at, fact, cause, means, advice in _errors(process, free=may_lock_all(job.ranks.get(rank))):
                ranks.setdefault(cause, set()).add(rank)
                if cause not in first or at < first[cause][0]:
                    first[cause] = (at, rank, fact, means, advice)
        if len(first) > 1:
            first.pop("flushed", None)
        died = [rank.rank for rank in job.ranks.values() if rank.failed]
        for cause, (at, rank, fact, means, advice) in sorted(first.items(), key=lambda item: item[1][0]):
            tries = isinstance(fact, NcclRetry)  # it may still come to a connection
            follows = bool(died) and cause in ("retry_exceeded", "flushed")
            told = tuple(sorted(ranks[cause]))
            yield Finding(
                id="ib-error",
                subject=JOB,
                severity=Severity.WARNING if follows or tries else Severity.CRITICAL,
                confidence=Confidence.LOW if follows else Confidence.MEDIUM,
                ranks=tuple(died) if follows else told,
                waiting_ranks=told if follows else (),
                since=at,
                cause=cause,
                summary=f"{format_ranks(told)}: {_said(fact)}: {means}"
                + (f"; {format_ranks(died)} had died, which explains it" if follows else ""),
                advice=advice,
                final=not tries,
                evidence=(Evidence("nccl", f"{fact.line.where} {fact.line.text}".strip()[:500], at, rank),),
            )
            break  # one root: the others follow
        for (device, number, name), (at, rate) in self._sick.items():
            yield Finding(
                id="ib-error",
                subject=f"port {device}:{number}",
                severity=Severity.WARNING,
                confidence=Confidence.MEDIUM,
                since=at,
                cause="packet_loss",
                summary=f"RDMA port {device}:{number} loses packets: {name} grows by {rate:.1f} a second",
                advice="Look at the cable and the switch port, and on RoCE at flow control (PFC, ECN) along the path.",
                evidence=(
                    Evidence("infiniband", f"{name} +{rate:.2f}/s over {format_seconds(_LOSS_SECONDS)}", at),
                ),
                holds_seconds=_LOSS_SECONDS,
            )

    def not_checked(self, job: JobView) -> Iterable[NotChecked]:
        return ()


def _errors(process: NcclProcess, *, free: bool) -> Iterator[tuple[float, NcclFact, str, str, str]]:
    """(when, the line, cause, what it means, what to do) of each. `free`: the rank may lock all memory."""
    for at, event in process.events:
        if event.fatal:
            yield (
                at,
                event,
                "fatal_event",
                "the card gave up a queue or itself",
                (
                    "See the driver's messages in dmesg on that node (mlx5_core: health, syndrome); a card that does this again goes "
                    "to its vendor. `local access violation` and `work queue error` may be the program's own: update NCCL."
                ),
            )
    retry = process.retries.get("ibv_modify_qp")
    if retry is not None and retry[1].attempt >= _RETRIES:
        cause, means, advice = _MODIFY.get(retry[1].errno or 0, _QP_FAILED)
        yield retry[0], retry[1], cause, means, advice
    for at, completion in process.completions:
        cause, means, advice = _STATUS.get(
            completion.status,
            (
                "completion_error",
                f"ibv_wc_status {completion.status}",
                "See the status in the InfiniBand documentation (ibv_poll_cq) and the card's error counters.",
            ),
        )
        yield at, completion, cause, means, advice
    for at, error in process.verbs:
        if error.call.startswith("ibv_modify_qp"):
            cause, means, advice = _MODIFY.get(error.errno or 0, _QP_FAILED)
            yield at, error, cause, means, advice
        elif error.call in ("ibv_alloc_pd", "ibv_post_send", "ibv_post_recv") or (
            is_resource(error.call) and (free or not is_memlock(error))
        ):
            yield (
                at,
                error,
                "verbs_failed",
                error.error or "refused by the driver",
                (
                    "See the driver's messages in dmesg on that node: the card may be out of queues or memory regions, or "
                    "nvidia_peermem does not fit the driver. The limit of locked memory is not the reason."
                ),
            )


def _said(fact: NcclFact) -> str:
    if isinstance(fact, NcclPortEvent):
        return f"{fact.device or 'an RDMA device'}: {fact.event}"
    if isinstance(fact, NcclRetry):
        return f"{fact.call} fails ({fact.error}), tried {fact.attempt} of {fact.most} times"
    if isinstance(fact, NcclCompletionError):
        device = f" on {fact.device}" if fact.device else ""
        return f"a transfer with {fact.peer}{device} failed with status {fact.status}"
    assert isinstance(fact, NcclVerbsError)
    device = f" on {fact.device}:{fact.port}" if fact.device else ""
    gid = f" (GID index {fact.gid_index})" if fact.gid_index is not None else ""
    return f"{fact.call} failed{device}{gid}"
