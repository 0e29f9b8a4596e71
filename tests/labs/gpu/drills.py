"""What is done to the real job, on how many GPUs, and what must be said of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from diag_job import faults
from diag_job.faults.truth import TRUTHS, Truth
from tests.labs.gauntlet.cases import Case, Trial

__all__ = ["DRILLS", "Drill"]


@dataclass(frozen=True, slots=True)
class Drill:
    """`variables` are those of deploy/jobs/tiny/run.sh; `truth`, where it is not the one of the fault on the
    small CPU job."""

    name: str
    gpus: int
    fault: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    options: Sequence[str] = ()  # of `diag run`
    truth: Truth | None = None

    def truths(self) -> Truth:
        return self.truth or (TRUTHS[faults.parse(self.fault).name] if self.fault else Truth(()))

    def trial(self) -> Trial:
        fault = faults.parse(self.fault) if self.fault else None
        return Trial(
            Case(self.name, fault.name if fault else ""),
            1,
            f"{self.gpus} GPUs",
            self.gpus,
            fault,
            (),
            self.truth,
        )


_ENDLESS = {"ITERS": "1000000", "SAVE_STEPS": "1000000"}
# Without the optimizer ms-swift writes no sharded checkpoint: the weights are in the safetensors.
_SAVING = {"ITERS": "1000000", "SAVE_STEPS": "8", "SAVE_OPTIM": "true"}


def _endless(name: str, gpus: int, fault: str, *options: str, **variables: str) -> Drill:
    return Drill(name, gpus, fault, {**_ENDLESS, **variables}, options)


DRILLS: tuple[Drill, ...] = (
    Drill("healthy", 2, "", {"ITERS": "30", "SAVE_STEPS": "15"}),
    _endless("data-hang", 2, "data-hang:rank=1"),
    _endless("sigstop", 2, "sigstop:rank=1,step=6"),
    _endless("rank-killed", 2, "rank-killed:rank=1,step=6"),
    _endless("skip-collective", 2, "skip-collective:rank=1,step=6"),
    _endless("gil-held", 2, "gil-held:rank=1,step=6"),
    _endless("wrong-op", 2, "wrong-op:rank=1,step=6"),
    _endless("stuck-kernel", 2, "stuck-kernel:rank=1,step=6"),
    _endless("cuda-oom", 2, "cuda-oom:rank=1,step=6"),
    _endless("device-assert", 2, "device-assert:rank=1,step=6"),
    _endless("shm-full", 2, "shm-full:rank=1,step=6"),
    _endless("nccl-hosts", 2, "nccl-hosts", NCCL_DEBUG="INFO"),  # one host: only NCCL's log tells
    Drill("host-oom", 2, "host-oom:rank=1,step=5", _SAVING),
    Drill("save-stall", 2, "save-stall:rank=1,step=5", _SAVING),
    Drill("save-killed", 2, "save-killed:rank=1,step=5", _SAVING),
    # Twelve samples of each rank are asked for: ten minutes at the default of one in ten seconds or so.
    Drill(
        "slow-rank",
        2,
        "slow-rank:rank=1,step=6,factor=3",
        {**_ENDLESS, "TP": "1", "EP": "2"},
        ("--stack-seconds", "1"),
        Truth(("straggler",)),
    ),
    Drill("healthy TP2 PP2 EP2", 4, "", {"ITERS": "20", "SAVE_STEPS": "10"}),
    _endless("data-hang TP2 PP2 EP2", 4, "data-hang:rank=2,step=5"),
    _endless("skip-collective TP2 PP2 EP2", 4, "skip-collective:rank=1,step=5"),
    _endless("rank-killed TP2 PP2 EP2", 4, "rank-killed:rank=3,step=5"),
    Drill("healthy TP2 PP2 EP2 DP2", 8, "", {"ITERS": "20", "SAVE_STEPS": "10"}),
    _endless("data-hang TP2 PP2 EP2 DP2", 8, "data-hang:rank=5,step=5"),
    _endless("skip-collective TP2 PP2 EP2 DP2", 8, "skip-collective:rank=6,step=5"),
)
