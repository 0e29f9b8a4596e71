"""Where each rank's main thread was found while steps were made: shares of a step's time.

On a GPU the thread runs ahead of the device: what it waits for there shows as gpu_sync, or in whatever call
comes next.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from diag.model.observations import ThreadStack
from diag.state.phases import Phases
from diag.state.reducer import AttemptBegan, MainStackRead, RankDropped, Reducer, takes
from diag.state.stack_activity import Activity, Reading

KINDS = (
    "data", "forward", "backward", "collective", "gpu_sync", "optimizer", "cpu_optimizer", "checkpoint", "compile", "lock",
    "other",
)  # fmt: skip
WAITING = frozenset({"collective", "gpu_sync", "backward"})  # where a rank is found that waits for its peers
_KEPT = 256
_OLDEST_SECONDS = 1800.0

_OF_ACTIVITY = {
    Activity.DATA: "data",
    Activity.PREPROCESS: "data",
    Activity.BACKWARD: "backward",
    Activity.COLLECTIVE: "collective",
    Activity.GPU_SYNC: "gpu_sync",
    Activity.CHECKPOINT: "checkpoint",
    Activity.COMPILE: "compile",
    Activity.FILE_LOCK: "lock",
    Activity.LOCK: "lock",
}
# The optimizer works on the CPU (offload): DeepSpeed 0.14-0.16, megatron-core 0.12-0.18 (source)
_CPU_OPTIMIZER = (
    "deepspeed/ops/adam/cpu_adam.py", "deepspeed/ops/adagrad/cpu_adagrad.py", "megatron/core/optimizer/cpu_offloading/",
)  # fmt: skip
_OPTIMIZER = (
    "torch/optim/", "megatron/core/optimizer/", "deepspeed/ops/", "bitsandbytes/optim/", "apex/optimizers/",
)  # fmt: skip
_FORWARD = ("_call_impl", "_wrapped_call_impl")  # torch/nn/modules/module.py


class Residence(Reducer):
    """Owns the last samples of each rank, half an hour at most, of the steps alone."""

    def __init__(self, phases: Phases) -> None:
        self._phases = phases
        self._seen: dict[int, deque[tuple[float, str]]] = {}  # by rank: when, and which of KINDS

    @takes(MainStackRead)
    def _see(self, at: float, event: MainStackRead) -> None:
        steps = self._phases.now == "steady" or self._phases.now == self._phases.marked == "training"
        if not steps or event.main is None or event.reading is None:
            return
        seen = self._seen.setdefault(event.rank, deque(maxlen=_KEPT))
        seen.append((at, kind_of(event.main, event.reading)))
        while seen[0][0] < at - _OLDEST_SECONDS:
            seen.popleft()

    @takes(AttemptBegan)
    def _attempt_began(self, at: float, event: AttemptBegan) -> None:
        self._seen.clear()

    @takes(RankDropped)
    def _dropped(self, at: float, event: RankDropped) -> None:
        self._seen.pop(event.rank, None)

    def counts(self, since: float = 0.0, until: float = float("inf")) -> dict[int, Counter[str]]:
        """By rank: how often it was found where, from `since` to `until`."""
        found = {
            rank: Counter(kind for at, kind in seen if since <= at < until)
            for rank, seen in self._seen.items()
        }
        return {rank: here for rank, here in found.items() if here}

    def oldest(self) -> float:
        return min((seen[0][0] for seen in self._seen.values()), default=0.0)

    def waits(self, since: float = 0.0, until: float = float("inf")) -> dict[int, list[bool]]:
        return {
            rank: [kind in WAITING for at, kind in seen if since <= at < until]
            for rank, seen in self._seen.items()
        }

    @staticmethod
    def shares(counts: Iterable[Counter[str]]) -> dict[str, float]:
        """Of all samples together, largest first.

        >>> Residence.shares([Counter(data=1, backward=3)])
        {'backward': 0.75, 'data': 0.25}
        """
        total = sum(counts, Counter[str]())
        return {kind: count / total.total() for kind, count in total.most_common()}


def kind_of(main: ThreadStack, reading: Reading) -> str:
    """One of KINDS."""

    def is_in(parts: tuple[str, ...]) -> bool:
        return any(part in frame.file for frame in main.frames for part in parts)

    if Activity.CHECKPOINT in (reading.activity, reading.context):
        return "checkpoint"
    if is_in(_CPU_OPTIMIZER):
        return "cpu_optimizer"
    if reading.activity in _OF_ACTIVITY:
        return _OF_ACTIVITY[reading.activity]
    if is_in(_OPTIMIZER):
        return "optimizer"
    calls = any(frame.function.rpartition(".")[2] in _FORWARD for frame in main.frames)
    return "forward" if calls else "other"
