"""What is run: the faults, and for each seed a layout, a culprit and a step that follow from fault and seed
alone."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diag_job import faults
from diag_job.faults.truth import TRUTHS, Truth, culprits

__all__ = ["CASES", "LAYOUTS", "Case", "Trial", "trial_of"]

# name: (ranks, flags). EP is said each time: the job's own default would be 2.
LAYOUTS: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "DP2": (2, ("--ep", "1")),
    "TP2": (2, ("--tp", "2", "--ep", "1")),
    "PP2": (2, ("--pp", "2", "--ep", "1")),
    "EP2": (2, ("--ep", "2")),
    "DP4": (4, ("--ep", "1")),
    "TP2 PP2 EP2": (4, ("--tp", "2", "--pp", "2", "--ep", "2")),
    "DP8": (8, ("--ep", "1", "--global-batch-size", "16")),
    "TP2 PP2 EP2 DP2": (8, ("--tp", "2", "--pp", "2", "--ep", "2")),
}
_ALL = tuple(LAYOUTS)
_WEIGHTS = {
    "DP2": 2,
    "TP2": 2,
    "PP2": 2,
    "EP2": 2,
    "DP4": 4,
    "TP2 PP2 EP2": 5,
    "DP8": 1,
    "TP2 PP2 EP2 DP2": 2,
}
_SMALL = ("DP2", "TP2", "PP2", "EP2")
_PLAIN = ("DP2", "DP4", "DP8")  # one group of all ranks, which is also the data parallel group
_SAVING = ("TP2", "PP2", "EP2", "TP2 PP2 EP2")  # where every rank has a part of the model to write
_PIPELINES = ("PP2", "TP2 PP2 EP2", "TP2 PP2 EP2 DP2")
_SILENT_SECONDS = (
    70  # longer than any patience that diag could lose with it, bar that for a whole job that waits
)


@dataclass(frozen=True, slots=True)
class Case:
    """One fault, or none, with what it needs of the job. `slow`: run only when asked for by name."""

    name: str
    fault: str = ""
    layouts: Sequence[str] = _ALL
    options: Mapping[str, float] | None = None
    arguments: tuple[str, ...] = ()
    first_step: bool = False  # strikes before the first step: no step to choose
    slow: bool = False

    @property
    def benign(self) -> bool:
        return not self.fault or not TRUTHS[self.fault].findings


def _case(fault: str, **needs: Any) -> Case:
    return Case(fault, fault, **needs)


CASES: tuple[Case, ...] = (
    _case("data-hang"),
    Case("data-hang, no workers", "data-hang", arguments=("--workers", "0")),
    _case("data-lock"),
    _case("data-worker-stopped"),
    _case("lock-deadlock"),
    _case("gil-held"),
    _case("skip-collective"),
    Case("skip-collective, first step", "skip-collective", first_step=True),
    _case("sigstop"),
    _case("save-stall", layouts=_SAVING),
    _case("exception-then-teardown"),
    _case("rendezvous", first_step=True),
    _case("absent", first_step=True),
    _case("extra-collective", layouts=_PLAIN),
    _case("wrong-size"),
    _case("wrong-dtype"),
    _case("wrong-op"),
    _case("opposite-groups"),
    _case("p2p-mismatch", layouts=_PIPELINES),
    _case("uneven-data"),
    _case("left-early"),
    _case("stale-baton"),
    _case("file-lock"),
    _case("fork-lock"),
    _case("dead-producer"),
    _case("pipe-full"),
    _case("compile-wait"),
    _case("eval-hang"),
    _case("optimizer-hang"),
    _case("data-worker-killed"),
    _case("rank-killed"),
    _case("rank-crash"),
    _case("shm-full", layouts=_SMALL),
    _case("host-oom", layouts=_SAVING),
    _case("disk-full", layouts=_SAVING),
    _case("save-killed", layouts=_SAVING),
    _case("worker-oom"),
    _case("parent-oom", layouts=_SAVING),
    _case("rlimit-as", layouts=_SAVING),
    _case("pids-limit"),
    _case("fd-exhaust"),
    _case("service-wait", slow=True),
    _case("nan-loss", slow=True),
    Case("healthy"),
    Case("healthy, saves", layouts=_SAVING, arguments=("--save-steps", "5")),
    _case("slow-rank", options={"factor": 6}),
    _case("slow-step", options={"factor": 5}),
    Case("slow-step, long", "slow-step", options={"factor": 150}),
    _case("long-eval", options={"factor": 150}),
    _case("cpu-optimizer", options={"seconds": _SILENT_SECONDS}),
    _case("preprocess-on-rank-0", options={"seconds": _SILENT_SECONDS}),
    _case("long-compile", options={"seconds": _SILENT_SECONDS}),
    _case("slow-save", layouts=_SAVING, options={"seconds": _SILENT_SECONDS}),
)


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of one case."""

    case: Case
    seed: int
    layout: str
    ranks: int
    fault: faults.Fault | None
    words: tuple[str, ...]  # of `python -m diag_job`
    truth: Truth | None = None  # where the fault's own does not hold

    @property
    def name(self) -> str:
        return f"{self.case.name}/{self.seed}"

    @property
    def weight(self) -> int:
        """Two of eight ranks side by side would do nothing but start, on two cores."""
        return self.ranks

    def right(self, peer: int | None = None) -> tuple[frozenset[int], ...]:
        return culprits(self.fault, self.ranks, peer, self.truth) if self.fault else (frozenset(),)


def trial_of(case: Case, seed: int) -> Trial:
    """
    >>> trial_of(CASES[0], 1) == trial_of(CASES[0], 1)
    True
    """
    rnd = random.Random(f"{case.name}/{seed}")
    layout = rnd.choices(case.layouts, [_WEIGHTS[name] for name in case.layouts])[0]
    ranks, flags = LAYOUTS[layout]
    rank, step = rnd.randrange(ranks), rnd.randint(3, 15)
    words = [
        "--nproc",
        str(ranks),
        *flags,
        "--iters",
        "400" if not case.benign else "20" if ranks < 8 else "10",
    ]
    fault = None
    if case.fault:
        # not in the last stage, which has nobody after it: the first half of the ranks
        if case.fault == "p2p-mismatch":
            rank %= ranks // 2
        options = {"rank": float(0 if case.fault == "preprocess-on-rank-0" else rank), **(case.options or {})}
        known = next(kind.keys for kind in faults.KINDS if kind.name == case.fault)
        if "step" in known:
            options["step"] = 0 if case.first_step else min(step, 6) if case.benign else step
        fault = faults.parse(
            case.fault + ":" + ",".join(f"{key}={value:g}" for key, value in options.items())
        )
        words += ["--fault", str(fault)]
    return Trial(case, seed, layout, ranks, fault, (*words, *case.arguments))
