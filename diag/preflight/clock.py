"""What nodes that meet say of each other's clocks."""

from __future__ import annotations

from collections.abc import Iterator

from diag.preflight.line import Line
from diag.preflight.plan import LaunchPlan
from diag.preflight.rendezvous_probe import Met
from diag.text.units import format_seconds

_SKEW_SECONDS = 1.0  # times of logs and of diag's own findings are told by the second
# torch 2.13, elastic/rendezvous/dynamic_rendezvous.py: a node whose last sign of life is older than three
# keep_alive_interval (5 s), by the reader's own clock, is taken for dead.
_C10D_SECONDS = 15.0
_REMEDY = (
    "chrony or systemd-timesyncd on every node, with the same servers: `chronyc makestep`, then `chronyc tracking`; the clock of "
    "a container is its host's"
)


def clock_lines(plan: LaunchPlan, met: Met) -> Iterator[Line]:
    """Nothing is said below what the exchange itself may be wrong by."""
    if met.ahead_seconds is None:
        return
    least = abs(met.ahead_seconds) - met.unsure_seconds
    who = (
        f"node {met.node_rank} ({met.host or met.seen_as})"
        if met.node_rank is not None
        else met.host or met.seen_as
    )
    if least <= _SKEW_SECONDS:
        yield Line("clock", "ok", f"the clock of {who} agrees with this one's ({_within(met)})")
        return
    way = "ahead of" if met.ahead_seconds > 0 else "behind"
    said = f"the clock of {who} is {format_seconds(abs(met.ahead_seconds))} {way} this node's"
    if plan.meeting.backend == "c10d" and least > _C10D_SECONDS:
        yield Line(
            "clock",
            "problem",
            f"{said}: torchrun's c10d rendezvous takes a node for dead whose last sign of life is 15 s old by another's clock",
            _REMEDY,
            "rendezvous-failure",
        )
    else:
        yield Line(
            "clock",
            "note",
            f"{said}: times in logs and findings of the two cannot be compared, and which of them is right is not known here",
            _REMEDY,
        )


def _within(met: Met) -> str:
    assert met.ahead_seconds is not None
    worst = abs(met.ahead_seconds) + met.unsure_seconds
    return f"within {format_seconds(worst)}"
