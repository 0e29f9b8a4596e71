"""A folder of loose evidence as records in order: who the ranks are, their logs, the GPUs' series, then each
captured moment.

Nothing of it carries told times, so they are made: all that belongs to one moment stands within one second.
The last moment is what the job is judged by; those before it tell what moved.
"""

from __future__ import annotations

import io
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from diag.engine.importers.files import EvidenceFile, classify, leads_out, read_some
from diag.engine.importers.logs import FolderLogs
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
    links = [path.name for path in sorted(directory.iterdir()) if leads_out(path, directory)]
    if links:
        named = ", ".join(links[:8]) + (" ..." if len(links) > 8 else "")
        notes.append(
            f"not used: links out of {directory}: {named}; copy the files into it, or give them by themselves"
        )
    if unused:
        names = ", ".join(sorted(path.name for path in unused)[:8])
        notes.append(f"not used: {names}{' ...' if len(unused) > 8 else ''}")
    yield from _Folder(used, notes, progress or Progress(io.StringIO())).records()


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
        self._manifest = _manifest(self._of("manifest"))
        looked = self._of("pyspy_json", "pyspy_text", "faulthandler")
        self._logs = FolderLogs(
            self._of("log"),
            to_dump=bool(looked and self._of("gpu_core")),
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
        end = math.ceil(self._rows[-1][0] if self._rows else self._manifest_end() or self._written()) + 0.1
        start = min(
            end - _BEFORE_SECONDS * (len(self._moments) + 1), self._rows[0][0] - 1.0 if self._rows else end
        )
        ticks = _Ticks(start)
        ranks, pids = self._ranks(), self._pids()
        world = max(
            [
                *(rank + 1 for rank in ranks),
                self._logs.world_size,
                self._recorder_world(),
                self._manifest_world(),
            ]
        )
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
        timed: list[tuple[float, Record]] = [
            (at, _gpu_record([row], caps)) for at, row in self._rows if at < end
        ]
        for told, record in self._logs.records():
            fits = told is not None and first - _CLOCKS_APART_SECONDS <= told <= end + _CLOCKS_APART_SECONDS
            timed.append(
                (min(told, end - _SETTLE_SECONDS) if fits and told is not None else ticks.at, record)
            )
        for index, moment in enumerate(self._moments[:-1]):
            at = end - _BEFORE_SECONDS * (len(self._moments) - 1 - index)
            timed += [(at, record) for record in (*moment.first, *moment.rest)]
        for rank, status in sorted(self._deaths().items()):
            pid = self._pids().get(rank, 0)
            how = "the manifest" if rank in self._exit_codes() else "the traceback that its log ends with"
            timed.append(
                (
                    end - _SETTLE_SECONDS,
                    Record(exits.SOURCE, {"pid": pid, "status": status, "how": how}, rank=rank),
                )
            )
        left = sum(
            item.path.stat().st_size * (1 - 2 * _LOG_SHARE * (item.kind == "log")) for item in self._files
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
            lines = read_some(item.path).decode("utf-8", "replace").splitlines()
            yield ticks.stamp(Record(kmsg.SOURCE, {"lines": lines}))
        yield replace(taken, at=end + 1.0)  # the check of the second that ends the moment sees all of it

    # -- what is known --------------------------------------------------------------------------------------

    def _suspicious(self) -> bool:
        """Whether somebody looked because it hung, or the job's own watchdog said so: a log that just ends
        says nothing."""
        return bool(
            self._moments or self._recorders or self._logs.clock.waited_seconds or self._logs.asked_recorder
        )

    def _silence(self) -> tuple[float | None, str]:
        found: list[tuple[float, str]] = []
        if self._logs.clock.waited_seconds:
            found.append((self._logs.clock.waited_seconds, "the watchdog's words"))
        gap = self._logs.clock.silent_seconds()
        if gap is not None:
            found.append((gap, "the times in the log"))
        looked = self._looked_seconds()
        if looked is not None:
            found.append((looked, "the manifest's times"))
        flat = flat_seconds(self._rows, {row["gpu"] for _, row in self._rows} & set(self._ranks_local()))
        if flat is not None:
            found.append((flat, "the GPUs' utilisation and power"))
        end = self._rows[-1][0] if self._rows else self._manifest_end()
        age = recorder_seconds(self._calls, end)
        if age is not None:
            found.append((age, "the Flight Recorder's times"))
        return max(found) if found else (None, "")

    def _ranks(self) -> set[int]:
        ranks = (
            {item.rank for item in self._files if item.rank is not None}
            | self._logs.ranks
            | set(self._logs.failed)
        )
        return ranks if self._suspicious() or self._exit_codes() or self._logs.failed else set()

    def _ranks_local(self) -> Iterable[int]:
        """GPUs of one node: the ranks' own numbers, as no placement is told."""
        return self._ranks() or range(64)

    def _pids(self) -> dict[int, int]:
        pids = dict(self._logs.pids)
        for moment in self._moments:
            pids.update(moment.pids)
        return pids

    def _recorder_world(self) -> int:
        return max(
            (max(group.members, default=-1) + 1 for fact in self._calls for group in fact.groups), default=0
        )

    # -- the manifest ---------------------------------------------------------------------------------------

    def _manifest_world(self) -> int:
        world = self._manifest.get("world_size")
        return world if isinstance(world, int) and 0 < world < 1 << 20 else 0

    def _exit_codes(self) -> dict[int, int]:
        """Exit codes as Python says them (negative for signals) of ranks that had ended."""
        codes = self._manifest.get("exit_codes", self._manifest.get("codes"))
        if not isinstance(codes, list):
            return {}
        return {rank: code for rank, code in enumerate(codes) if isinstance(code, int) and -64 <= code <= 255}

    def _deaths(self) -> dict[int, int]:
        """Raw wait statuses. A rank of which there is a stack or a /proc was alive then."""
        codes = self._exit_codes()
        if codes or "codes" in self._manifest or "exit_codes" in self._manifest:
            found = codes
        else:
            seen = set(self._moments[-1].pids) if self._moments else set()
            found = {rank: 1 for rank in self._logs.raised if rank not in seen} if self._ranks() else {}
        if found and len(found) == len(self._ranks()) and not any(found.values()):
            return {}
        return {
            rank: -code if code < 0 else code << 8 for rank, code in found.items() if rank in self._ranks()
        }

    def _returncode(self) -> int | None:
        codes = self._exit_codes()
        if codes and len(codes) >= len(self._ranks()) and not any(codes.values()):
            return 0
        given = self._manifest.get("returncode")
        if isinstance(given, int):
            return given
        for event in self._events():
            match = re.fullmatch(r"rc (-?\d{1,3})", str(event[-1]))
            if match:
                return int(match[1])
        return 0 if self._logs.finished else None

    def _events(self) -> list[list[Any]]:
        events = self._manifest.get("events")
        return (
            [event for event in events if isinstance(event, list) and event]
            if isinstance(events, list)
            else []
        )

    def _looked_seconds(self) -> float | None:
        """`events` is a list of [..., seconds since the epoch, text]; "looked" is when the moment was taken,
        the one before it the last thing that the job was seen to do."""
        times = [
            (item[-2], item[-1])
            for item in self._events()
            if len(item) > 1 and isinstance(item[-2], (int, float))
        ]
        for (before, _), (at, text) in itertools.pairwise(times):
            if text == "looked" and at > before:
                return float(at - before)
        return None

    def _written(self) -> float:
        """When the newest file was written: the best guess where nothing in them tells a time."""
        return max((item.path.stat().st_mtime for item in self._files), default=1e9)

    def _manifest_end(self) -> float | None:
        times = [
            item
            for event in self._events()
            for item in event
            if isinstance(item, float) and 1e9 < item < 1e11
        ]
        return max(times, default=None)

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
            may_be = (
                [rank for rank, pid in pids.items() if pid in item.pids] if item.rank is None else [item.rank]
            )
            rank = may_be[0] if len(may_be) == 1 else None
            payload = cuda_coredump.load_file(item.path)
            if "failed" in payload:
                self._notes.append(f"{item.path.name}: the GPU core dump cannot be read: {payload['failed']}")
            elif rank is None:
                ran = ", ".join(
                    dict.fromkeys(cuda_coredump.kernel_name(row["name"]) or "?" for row in payload["kernels"])
                )
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
            found = re.findall(r"\d+W / +(\d{1,5})W", read_some(item.path).decode("utf-8", "replace"))
            caps.update({index: int(watts) * 1000 for index, watts in enumerate(found)})
        return caps


class _Ticks:
    """Stamps records a microsecond apart."""

    def __init__(self, at: float) -> None:
        self.at = at

    def stamp(self, record: Record) -> Record:
        self.at += 1e-6
        return replace(record, at=self.at)


def _gpu_record(rows: list[dict[str, Any]], caps: dict[int, int]) -> Record:
    gpus = []
    for row in rows:
        procs = row.get("procs")
        pids = (
            [item[0] for item in procs if isinstance(item, list) and item] if isinstance(procs, list) else []
        )
        gpus.append(
            {
                "index": row["gpu"],
                "uuid": row.get("uuid"),
                "pci": row.get("pci"),
                "name": row.get("name"),
                "util": row.get("util"),
                "mem_used": row.get("mem_used"),
                "mem_total": row.get("mem_total"),
                "power_mw": row.get("power_mw"),
                "power_limit_mw": row.get("power_limit_mw", caps.get(row["gpu"])),
                "sm_clock_mhz": row.get("sm_clock"),
                "temp": row.get("temp"),
                "throttle": row.get("throttle"),
                "pids": row.get("pids") or pids,
                "pid_mem": procs,
            }
        )
    return Record(nvml.SOURCE, {"gpus": gpus})


def _manifest(files: list[EvidenceFile]) -> dict[str, Any]:
    for item in files:
        try:
            data = json.loads(read_some(item.path))
        except (ValueError, RecursionError):
            continue
        if isinstance(data, dict):
            return data
    return {}
