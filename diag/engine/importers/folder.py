"""A folder of loose evidence as records in order: who the ranks are, their logs, the GPUs' series, then each
captured moment.

Nothing of it has times of observation, so they are made: all that belongs to one moment stands within one second.
The last moment is what the job is judged by; those before it show what moved.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from diag.engine.importers.files import EvidenceFile, classify, leads_out, read_some, text_of
from diag.engine.importers.logs import FolderLogs
from diag.engine.importers.manifest import Manifest
from diag.engine.importers.snapshots import Moment, moments_of
from diag.engine.importers.stall_duration import flat_seconds, recorder_seconds
from diag.model import Placement, Record
from diag.model.observations import FlightRecorder
from diag.sources.collectives import flight_recorder
from diag.sources.gpu import cuda_coredump, nvml
from diag.sources.host import exits, kmsg
from diag.sources.host import run as run_source
from diag.text.progress_line import Progress

_BEFORE_SECONDS = 60.0  # between two moments, and between the logs and the first: only the order matters
_SETTLE_SECONDS = 5.0  # a death is judged some seconds after it
_CLOCKS_APART_SECONDS = 3600.0  # further away a log's times are another day's, or another time zone's
_MOST_ROWS = 200_000
_LOG_SHARE = 0.15  # of the time that a log takes, for each of two readings; the rest goes to judge its records (60 MB: 11 s)


def holds_evidence(directory: Path) -> bool:
    """Whether anything lies there that tells of a job."""
    used, _ = classify(_files(directory))
    return any(item.kind != "manifest" for item in used)


def folder_records(directory: Path, notes: list[str], progress: Progress | None = None) -> Iterator[Record]:
    """Raises OSError for files that cannot be read."""
    used, unused = classify(_files(directory))
    if links := _names(path for path in directory.iterdir() if leads_out(path, directory)):
        advice = "copy the files into it, or give them by themselves"
        notes.append(f"not used: links out of {directory}: {links}; {advice}")
    if unused:
        notes.append(f"not used: {_names(unused)}")
    yield from _Folder(used, notes, progress or Progress(io.StringIO())).records()


def _names(paths: Iterable[Path]) -> str:
    names = sorted(path.name for path in paths)
    return ", ".join(names[:8]) + (" ..." if len(names) > 8 else "")


def _files(directory: Path) -> list[Path]:
    return sorted(
        path
        for path in directory.iterdir()
        if path.is_file() and not path.name.startswith(".") and not leads_out(path, directory)
    )


class _Folder:
    def __init__(self, files: list[EvidenceFile], notes: list[str], progress: Progress) -> None:
        self._files = files
        self._notes = notes
        self._progress = progress
        progress.expect(sum(item.path.stat().st_size for item in files))
        self._manifest = Manifest.of(item.path for item in self._of("manifest"))
        stacks = self._of("pyspy_json", "pyspy_text", "faulthandler")
        self._logs = FolderLogs(
            self._of("log"),
            to_dump=bool(stacks and self._of("gpu_core")),
            read=lambda size: progress.passed(size * _LOG_SHARE),
        )
        self._moments = moments_of(files, notes)
        self._recorders = self._read_recorders()
        self._calls = [
            fact
            for record in self._recorders
            for fact in flight_recorder.parse(record)
            if isinstance(fact, FlightRecorder)
        ]
        self._gpu_cores = self._read_gpu_cores()
        self._rows = self._read_rows()

    def _of(self, *kinds: str) -> list[EvidenceFile]:
        return [item for item in self._files if item.kind in kinds]

    # -- in order -----------------------------------------------------------------------------------------

    def records(self) -> Iterator[Record]:
        end = math.ceil(self._rows[-1][0] if self._rows else self._manifest.end() or self._written()) + 0.1
        start = min(
            end - _BEFORE_SECONDS * (len(self._moments) + 1), self._rows[0][0] - 1.0 if self._rows else end
        )
        ticks = _Ticks(start)
        ranks, pids = self._ranks(), self._pids()
        worlds = (self._logs.outcome.made_for, self._recorder_world(), self._manifest.world_size())
        world = max([*worlds, *(rank + 1 for rank in ranks)])
        yield ticks.stamp(run_source.snapshot("", start, None, "", final=False))
        for rank in sorted(ranks):
            place = Placement(rank, rank, world, "", pids.get(rank, 0), launcher="captured")
            yield ticks.stamp(run_source.rank_found(place, "", {}))
        yield from self._over(end, ticks)
        yield from self._final(end, ranks)

    def _over(self, end: float, ticks: _Ticks) -> Iterator[Record]:
        """What lies before the last moment: the logs and the GPUs, moments before, and who had died.

        Log lines with times of the GPUs' series stand among its rows; all others before everything.
        """
        caps, first = self._caps(), self._rows[0][0] if self._rows else end
        timed = [(at, _gpu_record(row, caps)) for at, row in self._rows if at < end]
        for stamp, record in self._logs.records():
            fits = stamp is not None and first - _CLOCKS_APART_SECONDS <= stamp <= end + _CLOCKS_APART_SECONDS
            timed.append((min(stamp or 0.0, end - _SETTLE_SECONDS) if fits else ticks.at, record))
        for index, moment in enumerate(self._moments[:-1]):
            at = end - _BEFORE_SECONDS * (len(self._moments) - 1 - index)
            timed += [(at, record) for record in (*moment.first, *moment.rest)]
        for rank, status in sorted(self._deaths().items()):
            pid = self._pids().get(rank, 0)
            how = (
                "the manifest"
                if rank in self._manifest.exit_codes()
                else "the traceback that its log ends with"
            )
            death = Record(exits.SOURCE, {"pid": pid, "status": status, "how": how}, rank=rank)
            timed.append((end - _SETTLE_SECONDS, death))
        left = sum(
            one.path.stat().st_size * (1 - 2 * _LOG_SHARE * (one.kind == "log")) for one in self._files
        )
        for at, record in sorted(timed, key=lambda pair: pair[0]):
            ticks.at = max(ticks.at, at)
            self._progress.passed(left / len(timed))
            yield ticks.stamp(record)

    def _final(self, end: float, ranks: set[int]) -> Iterator[Record]:
        ticks = _Ticks(end)
        code = self._returncode()
        if code is not None:
            yield ticks.stamp(run_source.ended(code, ""))
        if not self._suspicious():
            return
        last = self._moments[-1] if self._moments else Moment("")
        silent, why = self._silence()
        # The first sample of each rank may differ from the moment before; what differs after them moves
        # within the moment.
        began = end + 1e-6 * (len(last.first) + 8)
        taken = run_source.snapshot(last.name, began, silent, why)
        yield ticks.stamp(taken)
        for record in last.first:
            yield ticks.stamp(record)
        ticks.at = max(ticks.at, began)
        for record in (*last.rest, *self._recorders, *self._gpu_cores):
            yield ticks.stamp(record)
        for item in self._of("dmesg"):
            lines = text_of(item.path).splitlines()
            yield ticks.stamp(Record(kmsg.SOURCE, {"lines": lines}))
        yield replace(taken, at=end + 1.0)  # the check of the second that ends the moment sees all of it

    # -- what is known --------------------------------------------------------------------------------------

    def _suspicious(self) -> bool:
        """Whether evidence was taken because it hung, or the job's own watchdog reported it: a log that just ends
        proves nothing."""
        return bool(
            self._moments
            or self._recorders
            or self._logs.clock.waited_seconds
            or self._logs.outcome.asked_recorder
        )

    def _silence(self) -> tuple[float | None, str]:
        rows, local = self._rows, set(self._ranks() or range(64))  # GPUs of one node: no placement is given
        found = [
            (self._logs.clock.waited_seconds or None, "the watchdog's lines"),
            (self._logs.clock.silent_seconds(), "the times in the log"),
            (self._manifest.looked_seconds(), "the manifest's times"),
            (flat_seconds(rows, {row["gpu"] for _, row in rows} & local), "the GPUs' utilisation and power"),
            (
                recorder_seconds(self._calls, rows[-1][0] if rows else self._manifest.end()),
                "the Flight Recorder's times",
            ),
        ]
        return max(((seconds, why) for seconds, why in found if seconds is not None), default=(None, ""))

    def _ranks(self) -> set[int]:
        outcome = self._logs.outcome
        ranks = (
            {item.rank for item in self._files if item.rank is not None} | outcome.ranks | set(outcome.failed)
        )
        return ranks if self._suspicious() or self._manifest.exit_codes() or outcome.failed else set()

    def _pids(self) -> dict[int, int]:
        pids = dict(self._logs.outcome.pids)
        for moment in self._moments:
            pids.update(moment.pids)
        return pids

    def _recorder_world(self) -> int:
        return max(
            (max(group.members, default=-1) + 1 for fact in self._calls for group in fact.groups), default=0
        )

    def _deaths(self) -> dict[int, int]:
        """Raw wait statuses. A rank of which there is a stack or a /proc was alive then."""
        ranks = self._ranks()
        if self._manifest.has_exit_codes:
            found = self._manifest.exit_codes()
        else:
            seen = set(self._moments[-1].pids) if self._moments else set()
            found = dict.fromkeys(self._logs.outcome.raised_ranks - seen, 1) if ranks else {}
        if found and len(found) == len(ranks) and not any(found.values()):
            return {}
        return {rank: -code if code < 0 else code << 8 for rank, code in found.items() if rank in ranks}

    def _returncode(self) -> int | None:
        codes, outcome = self._manifest.exit_codes(), self._logs.outcome
        if codes and len(codes) >= len(self._ranks()) and not any(codes.values()):
            return 0
        given = self._manifest.returncode()
        return 0 if given is None and outcome.in_order and not outcome.raised_ranks else given

    def _written(self) -> float:
        """When the newest file was written: the best guess where nothing in them has a time."""
        return max((item.path.stat().st_mtime for item in self._files), default=1e9)

    # -- files of the whole job -----------------------------------------------------------------------------

    def _read_recorders(self) -> list[Record]:
        found: dict[int, Record] = {}
        for item in self._of("recorder"):
            payload = flight_recorder.load_file(item.path)
            if "failed" in payload:
                self._notes.append(f"{item.path.name}: {' '.join(flight_recorder.explain(payload)).strip()}")
            elif item.rank is not None:
                found.setdefault(item.rank, Record(flight_recorder.SOURCE, payload, rank=item.rank))
        return [found[rank] for rank in sorted(found)]

    def _read_gpu_cores(self) -> list[Record]:
        """Each rank's, by a rank or a pid in its name (CUDA_COREDUMP_FILE has %p). Containers count their own
        pids, so that two ranks may have the same; and a host's name has numbers too."""
        found: dict[int, Record] = {}
        pids = self._pids()
        for item in self._of("gpu_core"):
            named = [rank for rank, pid in pids.items() if pid in item.pids]
            rank = item.rank if item.rank is not None or len(named) != 1 else named[0]
            payload = cuda_coredump.load_file(item.path)
            if "failed" in payload:
                self._notes.append(f"{item.path.name}: the GPU core dump cannot be read: {payload['failed']}")
            elif rank is None:
                names = [cuda_coredump.kernel_name(row["name"]) or "?" for row in payload["kernels"]]
                ran = ", ".join(dict.fromkeys(names))
                self._notes.append(
                    f"{item.path.name}: of which rank is not known: put rank and its number in the name; "
                    f"its GPU ran {ran or 'no kernel'}"
                )
            else:
                found.setdefault(rank, Record(cuda_coredump.SOURCE, payload, rank=rank))
        return [found[rank] for rank in sorted(found)]

    def _read_rows(self) -> list[tuple[float, dict[str, Any]]]:
        rows: list[tuple[float, dict[str, Any]]] = []
        for item in self._of("nvml"):
            for line in read_some(item.path).splitlines():
                try:
                    row = json.loads(line)
                    if isinstance(row["gpu"], int) and 0 <= float(row["t"]) < 1e11:
                        rows.append((float(row["t"]), row))
                except (ValueError, KeyError, TypeError, RecursionError):
                    continue  # a torn last line
                if len(rows) >= _MOST_ROWS:
                    break
        return sorted(rows, key=lambda pair: pair[0])

    def _caps(self) -> dict[int, int]:
        """Power limits in mW as `nvidia-smi` printed them, GPU by GPU.

        | N/A   39C    P0            126W /  700W |    1701MiB / 143771MiB |    100%      Default |   (driver 580.159.04, H200)
        """
        caps: dict[int, int] = {}
        for item in self._of("power_caps"):
            found = re.findall(r"\d+W / +(\d{1,5})W", text_of(item.path))
            caps.update({index: int(watts) * 1000 for index, watts in enumerate(found)})
        return caps


class _Ticks:
    """Stamps records a microsecond apart."""

    def __init__(self, at: float) -> None:
        self.at = at

    def stamp(self, record: Record) -> Record:
        self.at += 1e-6
        return replace(record, at=self.at)


def _gpu_record(row: dict[str, Any], caps: dict[int, int]) -> Record:
    procs = row.get("procs")
    pids = [item[0] for item in procs if isinstance(item, list) and item] if isinstance(procs, list) else []
    same = ("uuid", "pci", "name", "util", "mem_used", "mem_total", "power_mw", "temp", "throttle")
    gpu = {
        **{key: row.get(key) for key in same},
        "index": row["gpu"],
        "power_limit_mw": row.get("power_limit_mw", caps.get(row["gpu"])),
        "sm_clock_mhz": row.get("sm_clock"),
        "pids": row.get("pids") or pids,
        "pid_mem": procs,
    }
    return Record(nvml.SOURCE, {"gpus": [gpu]})
