"""Which finding follows from which, which is withheld or reported once: the engine reads it here and knows
none of them.

What a rule's finding yields to stands in the rule itself (`follows`), and it always yields to a detector's
finding of the same id.
"""

from __future__ import annotations

from diag.detectors.aftermath import explained
from diag.detectors.relations import Kind, OneAtATime, Precedence, ReadAfter, Retold, StandsStill, WholeJob

_DIED = Kind("rank-died")
_PEER_LOST = Kind("hang", "peer_lost")
_TORN = Kind("checkpoint-corrupt", "left_behind")

PRECEDENCE = Precedence(
    (
        ReadAfter(_DIED, None, "a rank dies of what else was found: of memory, a GPU, a full disk"),
        ReadAfter(Kind("hang", "gpu_side"), None, "ranks wait for the GPU whose fault was found"),
        ReadAfter(_PEER_LOST, _DIED, "ranks wait for the one that died"),
        ReadAfter(Kind("hang", "peer_not_joined"), _DIED, "ranks wait for one that died before it joined"),
        ReadAfter(_TORN, _PEER_LOST, "what the lost rank was writing is left as it is"),
        ReadAfter(
            Kind("checkpoint-missing", "left_behind"), _TORN, "a torn checkpoint is none to resume from"
        ),
        OneAtATime("rank-died", "the others die of the first, and may have been heard of before it"),
        WholeJob("hang", "ranks of one node wait for a culprit on another"),
        WholeJob("rank-died", "the first death may have been on another node"),
        WholeJob("straggler", "slow is slower than the ranks of all nodes"),
        WholeJob("transport-mismatch", "the other transport may be on another node"),
        StandsStill("hang", "ranks wait for each other"),
        Retold(
            "rank-died",
            explained,
            ("hang",),
            "a rank that died of what another finding describes is told in short; those who hang wait for it",
        ),
    )
)
