"""The logs of a folder: their records, their outcome, and when they last showed progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from diag.engine.importers.files import EvidenceFile
from diag.engine.importers.log_outcome import LogOutcome
from diag.engine.importers.log_reader import payloads
from diag.engine.importers.stall_duration import LogClock, epoch_of
from diag.model import Record
from diag.sources.gpu.cuda_log import DUMP
from diag.sources.logs.line_facts import read_text
from diag.sources.logs.output import PLAIN_RUN, LineAssembler
from diag.sources.logs.output import SOURCE as OUTPUT


class FolderLogs:
    """Reads every log once at its making, and once more for `records`. `to_dump`: no further than to where
    the driver began to write GPU core dumps, which end the ranks: what was read before is to be
    explained, not that. `read` is given how many bytes were read, both times."""

    def __init__(
        self,
        files: list[EvidenceFile],
        *,
        to_dump: bool = False,
        read: Callable[[int], None] = lambda size: None,
    ) -> None:
        self._files = files
        self._to_dump = to_dump
        self._read = read
        self.clock = LogClock()
        self.outcome = LogOutcome()
        for item in files:
            self._learn(item)

    def records(self) -> Iterator[tuple[float | None, Record]]:
        """With the time of the lines of a record: None before the first that has one. Others go with
        those before."""
        for item in self._files:
            at: float | None = None
            for payload in self._payloads(item):
                lines: list[list[object]] = []
                for line in payload["lines"]:
                    stamp = epoch_of(line[0]) if line[1] != PLAIN_RUN else None
                    if stamp is not None and stamp != at:
                        if lines:
                            yield at, Record(OUTPUT, {**payload, "lines": lines}, rank=item.rank)
                        at, lines = stamp, []
                    lines.append(line)
                yield at, Record(OUTPUT, {**payload, "lines": lines}, rank=item.rank)

    def _learn(self, item: EvidenceFile) -> None:
        for payload in self._payloads(item):
            for held, kind in payload["lines"]:
                # the last of a run stands for all
                text = held.rpartition("\n")[2] if kind == PLAIN_RUN else held
                bar = bool(kind) and kind != PLAIN_RUN
                facts = list(read_text(text, item.path.name, item.rank, bar=bar))
                self.clock.see(text, facts)
                for fact in facts:
                    self.outcome.observe(0.0, fact)

    def _payloads(self, item: EvidenceFile) -> Iterator[dict[str, Any]]:
        with item.path.open("rb") as file:
            for payload in payloads(file, LineAssembler(item.path.name), self._read):
                lines = payload["lines"]
                dump = next((at for at, line in enumerate(lines) if self._to_dump and DUMP in line[0]), None)
                yield payload if dump is None else {**payload, "lines": lines[:dump]}
                if dump is not None:
                    return
