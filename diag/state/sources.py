"""Which sources could not read, and what of their readings was not understood: the state's own gaps."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from diag.model import NotChecked
from diag.model.observations import JournalCutOff, SourceFailed, SourceWorks, Unparsed
from diag.state.rank_view import RankView
from diag.state.reducer import Reducer, takes
from diag.text.units import format_bytes, format_ranks, format_ratio

_FULL = 0.8  # of its limit when last read: a save takes the rest in less than the time between two readings


class Sources(Reducer):
    """Owns what is not known, and why."""

    def __init__(self) -> None:
        self.failed: dict[
            tuple[str, int | None], SourceFailed
        ] = {}  # by source and rank, until it works again
        self.unparsed: deque[Unparsed] = deque(maxlen=50)  # the last readings that no parser understood
        self.unparsed_total = 0  # how many there were
        self.cut_off = False  # the record ends before the run does

    @takes(SourceFailed)
    def _failed(self, at: float, fact: SourceFailed) -> None:
        self.failed[(fact.source, fact.rank)] = fact

    @takes(SourceWorks)
    def _works(self, at: float, fact: SourceWorks) -> None:
        self.failed.pop((fact.source, fact.rank), None)

    @takes(Unparsed)
    def _unparsed(self, at: float, fact: Unparsed) -> None:
        self.unparsed.append(fact)
        self.unparsed_total += 1

    @takes(JournalCutOff)
    def _cut_off(self, at: float, fact: JournalCutOff) -> None:
        self.cut_off = True

    def not_checked(self, ranks: Iterable[RankView], ended: bool) -> Iterator[NotChecked]:
        """One line per source that could not read, ranks with the same reason together."""
        grouped: dict[tuple[str, str, str], list[int]] = {}
        for failed in self.failed.values():
            numbers = grouped.setdefault((failed.source, failed.reason, failed.remedy), [])
            if failed.rank is not None:
                numbers.append(failed.rank)
        for (source, reason, remedy), numbers in sorted(grouped.items()):
            of = f" of {format_ranks(sorted(numbers))}"
            yield NotChecked(source + of if numbers else source, reason, remedy)
        if self.cut_off and not ended:
            yield _cut_short(ranks)
        if self.unparsed_total:
            last = self.unparsed[-1]
            yield NotChecked(
                f"{self.unparsed_total} readings",
                f"not understood; the last of {last.source}: {last.reason}",
                "send the run directory with a bug report",
            )


def _cut_short(ranks: Iterable[RankView]) -> NotChecked:
    """diag was killed together with the job (a container that the kernel kills as a whole), or alone, or the
    run goes on."""
    groups = [rank.cgroup for rank in ranks if rank.cgroup is not None and rank.cgroup.limit_bytes]
    full = max(groups, key=lambda group: group.usage_bytes / (group.limit_bytes or 1), default=None)
    reason = "the record breaks off without the run's end: diag was killed, with the job or alone, or it still runs"
    remedy = "if the run is over, see how the container ended (`kubectl describe pod`, `docker inspect`) and dmesg of the host"
    if full is not None and full.limit_bytes:
        share = full.usage_bytes / full.limit_bytes
        reason += f"; cgroup {full.path} was at {format_ratio(share)} of its limit of {format_bytes(full.limit_bytes)} when last read"
        if share >= _FULL:
            remedy += (
                ": the kernel may have killed it as a whole for memory (memory.oom.group, which Kubernetes sets on cgroup v2). "
                "`diag watch` in a container of its own beside it (shareProcessNamespace) outlives that"
            )
    return NotChecked("how the run ended", reason, remedy)
