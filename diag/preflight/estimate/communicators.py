"""NCCL communicators of a rank, and the GPU memory that each takes outside of PyTorch's allocator.

PyTorch makes one when a process group is first used, for a group of a single rank too, and one for each group
even where two have the same ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

from diag.preflight.estimate.plan import Plan
from diag.text.units import format_bytes, format_count

_MIB = 1 << 20

# NCCL 2.28.9 on two H200 over NVLink, read off as a job ended and gave its communicators back one by one. A ring takes 9.19 MiB
# a channel (its three protocols), of 24 channels; the rest is there before anything is connected, and more
# with one rank, which gets all 64 channels.
_ALONE = 388 * _MIB
_UNCONNECTED = 264 * _MIB
_RING = 220 * _MIB
_PEER = 96 * _MIB  # sends and receives between two GPUs: 4 MiB a channel


@dataclass(frozen=True, slots=True)
class Communicator:
    """`ring`: it does collectives. `peers`: ranks of the same node that it sends to and receives from
    directly."""

    what: str
    ranks: int
    ring: bool = True
    peers: int = 0


def buffer_bytes(group: Communicator) -> int:
    """
    >>> buffer_bytes(Communicator("data parallel", 2)) >> 20, buffer_bytes(Communicator("data parallel", 1)) >> 20
    (484, 388)
    """
    if group.ranks == 1:
        return _ALONE
    return _UNCONNECTED + (_RING if group.ring else 0) + group.peers * _PEER


def communicators(plan: Plan, stage: int) -> tuple[Communicator, ...]:
    """Those that are there after the first step, on a rank of that pipeline stage."""
    layout = plan.layout
    if plan.framework == "hf":
        return (Communicator("data parallel", layout.world),) if layout.world > 1 else ()
    experts = plan.shape.experts > 0
    found = [
        Communicator("all ranks", layout.world),
        Communicator("model parallel", layout.tp * layout.pp),  # did a gradient overflow anywhere
        Communicator("data parallel", layout.dp),  # metrics
        Communicator("data and context parallel", layout.dense_copies),  # gradients
    ]
    if plan.optimizer.distributed:
        found.append(Communicator("optimizer", layout.world))  # the norm of the gradients
    if layout.tp > 1 or stage == layout.pp - 1:  # the loss is reduced over it whatever its size
        found.append(Communicator("tensor parallel", layout.tp))
    if layout.cp > 1:
        found.append(Communicator("context parallel", layout.cp, peers=min(2, layout.cp - 1)))
    if layout.pp > 1 or experts:  # the experts' balance is summed over it
        found.append(Communicator("pipeline parallel", layout.pp, peers=0 if layout.pp == 1 else 1))
    if experts and plan.balance_loss:
        found.append(Communicator("tensor and context parallel", layout.tp * layout.cp))
    if layout.pp > 1:
        found += [Communicator("between stages", 2, ring=False, peers=1)] * 2
    if experts and layout.ep > 1:
        # all to all
        found.append(Communicator("expert parallel", layout.ep, peers=min(layout.ep, layout.processes) - 1))
        found.append(Communicator("expert data parallel", layout.expert_copies))
    if experts and layout.ep * layout.etp > 1:
        # tokens of each expert
        found.append(Communicator("tensor and expert parallel", layout.ep * layout.etp))
    return tuple(found)


def exporting(plan: Plan) -> Communicator | None:
    """What gathers whole tensors for safetensors, once a first save has been: it is not given back."""
    parts = plan.layout.tp * plan.layout.pp * plan.layout.ep
    return (
        Communicator("export", parts)
        if plan.framework == "megatron" and plan.save.safetensors and parts > 1
        else None
    )


def describe(groups: tuple[Communicator, ...]) -> str:
    """
    >>> describe((Communicator("data parallel", 2), Communicator("tensor parallel", 1)))
    '2 communicators: 484 MiB for 1 of several ranks, 388 MiB for 1 of one rank'
    """
    several, alone = ([group for group in groups if (group.ranks > 1) is more] for more in (True, False))
    parts = []
    for part, name in ((several, "several ranks"), (alone, "one rank")):
        if part:
            parts.append(f"{format_bytes(sum(map(buffer_bytes, part)))} for {len(part)} of {name}")
    return f"{format_count(len(groups), 'communicator')}: " + ", ".join(parts)
