"""What is true of each fault, written down before anything was asked: which finding, which class, which ranks
are to blame.

Where two answers are honestly right both stand here: in a group of two ranks that call different things
nobody is in the minority, and of a send and a receive that do not fit each side may be the wrong one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .spec import Fault

_RANK = "rank"  # the fault's own rank, nobody else
_MINORITY = "minority"  # the same; both, in a job of two ranks
_PAIR = "pair"  # the rank, or the rank and the peer that it waits for
_NOBODY = "nobody"
_EVERYBODY = "everybody"


@dataclass(frozen=True, slots=True)
class Truth:
    """`findings`: ids of which one must be said; none: nothing may be said. `classes` are those of a hang."""

    findings: tuple[str, ...]
    classes: tuple[str, ...] = ()
    blame: str = _RANK


def _hang(*classes: str, blame: str = _RANK) -> Truth:
    return Truth(("hang",), classes, blame)


_BENIGN = Truth((), (), _NOBODY)

TRUTHS: Mapping[str, Truth] = {
    "data-hang": _hang("data_loading"),
    "data-lock": _hang("data_loading"),
    "data-worker-stopped": _hang("data_loading"),
    "data-worker-killed": Truth(("rank-died",)),
    "lock-deadlock": _hang("lock_deadlock"),
    "gil-held": _hang("gil_deadlock"),
    "skip-collective": _hang("peer_not_joined"),
    "sigstop": _hang("stopped"),
    "rank-killed": Truth(("rank-died",)),
    "rank-crash": Truth(("rank-died",)),
    "slow-rank": _BENIGN,
    "save-stall": _hang("checkpoint_io"),
    # What torch says of a short write does not tell why, and this disk is the writer's alone.
    "disk-full": Truth(("disk-full", "checkpoint-write-error")),
    "save-killed": Truth(("rank-died",)),  # and checkpoint-corrupt, of which no rank is to blame
    "shm-full": Truth(("shm-too-small",)),
    "host-oom": Truth(("host-oom",)),
    "worker-oom": Truth(("host-oom",)),
    "parent-oom": Truth(("host-oom",)),
    "rlimit-as": Truth(("host-oom",)),
    "pids-limit": Truth(("pids-limit",)),
    "growing-save": Truth(("host-oom-forecast", "host-oom"), (), _NOBODY),
    "fd-exhaust": Truth(("fd-limit",)),
    "preprocess-on-rank-0": _BENIGN,
    "long-compile": _BENIGN,
    "slow-save": _BENIGN,
    "exception-then-teardown": _hang("teardown"),
    "rendezvous": _hang("rendezvous"),
    # The others wait in new_group, which is a rendezvous through the store and the making of a communicator.
    "absent": _hang("rendezvous", "comm_init"),
    "extra-collective": _hang("collective_mismatch", blame=_MINORITY),
    "wrong-size": _hang("collective_mismatch", blame=_MINORITY),
    "wrong-dtype": _hang("collective_mismatch", blame=_MINORITY),
    "wrong-op": _hang("collective_mismatch", blame=_MINORITY),
    "opposite-groups": _hang("collective_order_deadlock", blame=_MINORITY),
    "p2p-mismatch": _hang("collective_mismatch", "collective_order_deadlock", blame=_PAIR),
    # It waits in a barrier of all ranks while the others wait for it in their groups: a cycle, and an
    # absence.
    "uneven-data": _hang(
        "collective_order_deadlock", "collective_mismatch", "peer_not_joined", blame=_MINORITY
    ),
    # gloo may end its peers when its connections close, so a death may be what is to be seen.
    "left-early": Truth(("hang", "rank-died"), ("peer_lost",)),
    "stale-baton": _hang("lock_deadlock"),
    "file-lock": _hang("lock_deadlock"),
    "fork-lock": _hang("lock_deadlock"),
    "dead-producer": _hang("lock_deadlock", "peer_not_joined"),
    "pipe-full": _hang("peer_not_joined"),
    "compile-wait": _hang("compile_wait"),
    "eval-hang": _hang("peer_not_joined"),
    "optimizer-hang": _hang("peer_not_joined"),
    "service-wait": _hang("resource_wait"),
    "nan-loss": Truth(("loss-nan", "grad-nan"), (), _NOBODY),
    "slow-step": _BENIGN,
    "long-eval": _BENIGN,
    "cuda-oom": Truth(("cuda-oom",)),
    "device-assert": Truth(("gpu-fault",)),
    "stuck-kernel": _hang("gpu_side"),
    "nccl-hosts": Truth(("ib-fallback",), (), _EVERYBODY),
    "cpu-optimizer": _BENIGN,
}


def culprits(
    fault: Fault, ranks: int, peer: int | None = None, truth: Truth | None = None
) -> tuple[frozenset[int], ...]:
    """Every answer to "who?" that is right, the best first. `peer` is the other side of a point-to-point
    call."""
    blame, own = (truth or TRUTHS[fault.name]).blame, frozenset({fault.rank})
    if blame == _NOBODY:
        return (frozenset(),)
    if blame == _EVERYBODY:
        return (frozenset(range(ranks)),)
    if blame == _MINORITY and ranks == 2:
        return (own, frozenset({0, 1}))
    if blame == _PAIR and peer is not None:
        return (own, own | {peer})
    return (own,)
