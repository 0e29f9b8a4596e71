"""What went wrong on the job's GPUs, as driver and program report it: Xids, SXids, CUDA errors, memory that ran out."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from diag.knowledge.xids import xid_of
from diag.model.observations import (
    CudaErrorRaised,
    CudaOutOfMemory,
    LogLine,
    PlainLines,
    QuietLines,
    SxidReported,
    XidReported,
)
from diag.state.reducer import AttemptBegan, Reducer, StepMade, takes

# CudaErrorRaised.error of memory that ran out
MEMORY_ERRORS = (
    "out of memory",
    *(f"{library}_STATUS_ALLOC_FAILED" for library in ("CUBLAS", "CUDNN", "CUSOLVER")),
)

SETTLE_SECONDS = 5.0  # the peers of a rank that failed may report the step that they were in

# The driver tells one fault in several lines (13, 45), and NVML's event tells it once more.
_ONE_EVENT_SECONDS = 10.0
_MOST_EVENTS = 1000
_MOST_RANKS = 4096
_MOST_PER_RANK = 20
# In a traceback above `CUDA error: out of memory`: memory of the host was asked for, pinned (torch 2.x,
# megatron-core 0.12-0.18).
_PINS = (
    "pin_memory", "pin memory", "cudaHostAlloc", "cudaHostRegister", "preload_tensors", "CachingHostAllocator",
)  # fmt: skip
_TRACEBACK_LINES = 60


@dataclass(frozen=True, slots=True)
class XidEvent:
    """One fault of one GPU: the same number again within 10 s is the same. `fact` is the report that says
    most."""

    at: float
    last_at: float
    fact: XidReported
    pids: tuple[int, ...] = ()
    reports: int = 1

    @property
    def xid(self) -> int:
        return self.fact.xid

    @property
    def kind(self) -> str:
        """As the catalogue says. NVLink's own errors (144-150) tell themselves when they are not fatal (gpud
        PR 1174, B200):

        NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001
        ...)
        """
        return (
            "notice" if 144 <= self.xid <= 150 and " Nonfatal " in self.fact.text else xid_of(self.xid).kind
        )

    def merged(self, at: float, fact: XidReported) -> XidEvent:
        pids = self.pids if fact.pid is None or fact.pid in self.pids else (*self.pids, fact.pid)[:64]
        # the kernel's line has a text and often a process
        better = self.fact.origin == "nvml" and fact.origin != "nvml"
        return replace(
            self, last_at=at, fact=fact if better else self.fact, pids=pids, reports=self.reports + 1
        )


class GpuFaults(Reducer):
    """Owns what was reported of GPUs."""

    def __init__(self) -> None:
        self.xids: deque[XidEvent] = deque(maxlen=_MOST_EVENTS)  # of the driver
        self.sxids: deque[tuple[float, SxidReported]] = deque(maxlen=_MOST_EVENTS)  # of NVSwitches
        self.out_of_memory: dict[int | None, tuple[float, CudaOutOfMemory]] = {}  # by rank, the first
        self.errors: dict[int | None, list[tuple[float, CudaErrorRaised]]] = {}  # by rank
        self.pinned = PinnedErrors()  # those that were about the host's memory

    @takes(LogLine)
    def _line(self, at: float, fact: LogLine) -> None:
        if type(fact) is not LogLine:
            return  # it comes with its run
        self.pinned.read_line(fact)

    @takes(PlainLines, QuietLines)
    def _run(self, at: float, fact: PlainLines | QuietLines) -> None:
        self.pinned.read_run(fact)

    @takes(SxidReported)
    def _sxid(self, at: float, fact: SxidReported) -> None:
        self.sxids.append((at, fact))

    @takes(CudaOutOfMemory)
    def _out_of_memory(self, at: float, fact: CudaOutOfMemory) -> None:
        if len(self.out_of_memory) < _MOST_RANKS:
            self.out_of_memory.setdefault(fact.rank, (at, fact))

    @takes(CudaErrorRaised)
    def _error(self, at: float, fact: CudaErrorRaised) -> None:
        if self.pinned.take(at, fact):
            return  # the host's memory, not the GPU's
        if fact.rank in self.errors or len(self.errors) < _MOST_RANKS:
            errors = self.errors.setdefault(fact.rank, [])
            if len(errors) < _MOST_PER_RANK:
                errors.append((at, fact))

    def finding_of(self, rank: int | None, after: float | None) -> str:
        """The id of the finding that explains a rank's death by its first CUDA failure; empty where it had
        none.

        `after`: when the last step was made; what it came through is no reason.
        """
        found = [(self.out_of_memory[rank][0], "cuda-oom")] if rank in self.out_of_memory else []
        found += [(self.pinned.ranks[rank][0], "host-oom")] if rank in self.pinned.ranks else []
        for at, fact in self.errors.get(rank, ()):
            found.append((at, "cuda-oom" if fact.error in MEMORY_ERRORS else "gpu-fault"))
        counts = (one for one in found if after is None or one[0] >= after - SETTLE_SECONDS)
        return min(counts, default=(0.0, ""))[1]

    @takes(StepMade)
    def _survived(self, at: float, event: StepMade) -> None:
        """A step was made then: what the program reported well before it came through, and must not hide what it
        dies of later."""
        before = at - SETTLE_SECONDS
        for first in (self.out_of_memory, self.pinned.ranks):
            for rank in [rank for rank, (reported, _) in first.items() if reported < before]:
                del first[rank]
        for rank, errors in list(self.errors.items()):
            if errors[0][0] < before:
                self.errors[rank] = [error for error in errors if error[0] >= before]
                if not self.errors[rank]:
                    del self.errors[rank]

    @takes(AttemptBegan)
    def _attempt_began(self, at: float, event: AttemptBegan) -> None:
        """A new attempt: what the program of the last one reported is over; what the driver reported is not."""
        self.out_of_memory.clear()
        self.errors.clear()
        self.pinned.start_over()

    @takes(XidReported)
    def _xid(self, at: float, fact: XidReported) -> None:
        for place, known in reversed([*enumerate(self.xids)]):
            here = not fact.pci_bus_id or same_bus(known.fact.pci_bus_id, fact.pci_bus_id)
            if known.xid == fact.xid and here and at - known.last_at <= _ONE_EVENT_SECONDS:
                self.xids[place] = known.merged(at, fact)
                return
        self.xids.append(XidEvent(at, at, fact, () if fact.pid is None else (fact.pid,)))


def same_bus(ours: str, reported: str) -> bool:
    """NVML says 00000000:00:07.0, the kernel log 0000:00:07.

    >>> same_bus("00000000:00:07.0", "0000:00:07"), same_bus("", ""), same_bus("00000000:00:07.0", "0000:00:06")
    (True, False, False)
    """

    def short(text: str) -> tuple[str, ...]:
        return tuple(part.lstrip("0") for part in text.lower().partition(".")[0].split(":"))

    return bool(ours) and short(ours) == short(reported)


# --- memory of the host
# ----


class PinnedErrors:
    """Whether CUDA's `out of memory` was about the host: pinned memory that it could not lock. Its message is the
    same for both. `ranks` maps who could not have pinned memory to the time and the line."""

    def __init__(self) -> None:
        self.ranks: dict[int | None, tuple[float, str]] = {}
        self._lines: dict[int | None, deque[str]] = {}

    def read_line(self, line: LogLine) -> None:
        if not line.bar and (line.rank in self._lines or len(self._lines) < _MOST_RANKS):
            self._lines.setdefault(line.rank, deque(maxlen=_TRACEBACK_LINES)).append(line.text[:200])

    def read_run(self, run: PlainLines | QuietLines) -> None:
        if run.rank in self._lines or len(self._lines) < _MOST_RANKS:
            kept = self._lines.setdefault(run.rank, deque(maxlen=_TRACEBACK_LINES))
            kept.extend(text[:200] for text in run.last[-_TRACEBACK_LINES:])

    def take(self, at: float, error: CudaErrorRaised) -> bool:
        """Whether it was one; remembers the first of each rank."""
        if error.error != "out of memory":
            return False
        traceback = [line for line in self._lines.get(error.rank, ()) if _is_of_traceback(line)]
        pinned = error.host_memory or any(word in line for line in traceback for word in _PINS)
        if pinned and len(self.ranks) < _MOST_RANKS:
            self.ranks.setdefault(error.rank, (at, error.text))
        return pinned

    def start_over(self) -> None:
        self.ranks.clear()
        self._lines.clear()


def _is_of_traceback(line: str) -> bool:
    """Its lines are indented; a list of arguments with dataloader_pin_memory is none of them."""
    return (line.partition("]: ")[2] if line.startswith("[rank") else line).startswith("  ")
