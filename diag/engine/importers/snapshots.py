"""Captured moments: the stacks, /proc copies and RAS answers that one look at a job left behind, as records."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from diag.engine.importers.files import OF_A_MOMENT, EvidenceFile, text_of
from diag.engine.importers.pyspy_text import threads_of_text, with_names_of
from diag.model import Record
from diag.sources.collectives import nccl_ras
from diag.sources.host import proc
from diag.sources.stacks import faulthandler, pyspy

_Sample = tuple[int, list[dict[str, Any]]]  # pid, and threads as `py-spy dump --json` has them


@dataclass(slots=True)
class Moment:
    """`first` holds one stack sample of each rank and what belongs to it, `rest` what was taken after."""

    name: str
    pids: dict[int, int] = field(default_factory=dict)
    first: list[Record] = field(default_factory=list)
    rest: list[Record] = field(default_factory=list)
    cpu_seconds: dict[int, float] = field(default_factory=dict)  # by pid: of two moments the later has more


def moments_of(files: list[EvidenceFile], notes: list[str]) -> list[Moment]:
    """In the order of their taking, as far as the processes' CPU times show it; else by name."""
    names = sorted({item.moment for item in files if item.kind.startswith(OF_A_MOMENT)})
    moments = [_moment(name, [item for item in files if item.moment == name], notes) for name in names]
    moments = [moment for moment in moments if moment.first or moment.rest]
    known = set.intersection(*(set(moment.cpu_seconds) for moment in moments)) if moments else set()
    if len(moments) > 1 and not known:
        listed = ", ".join(moment.name or "(the folder itself)" for moment in moments)
        notes.append(f"the order of the moments {listed} is not known: taken by name")
    return sorted(moments, key=lambda moment: (sum(moment.cpu_seconds[pid] for pid in known), moment.name))


def _moment(name: str, files: list[EvidenceFile], notes: list[str]) -> Moment:
    moment = Moment(name)
    samples: dict[int, list[_Sample]] = {}
    children: dict[int, list[_Sample]] = {}
    copies: dict[int, dict[str, str]] = {}
    for item in files:
        if item.kind.startswith("proc_") and item.rank is not None:
            copies.setdefault(item.rank, {})[item.kind[5:]] = text_of(item.path)
        elif item.kind in ("pyspy_json", "pyspy_text"):
            read = _threads(item)
            if read is None:
                notes.append(f"{item.path.name} holds no stacks that can be read")
            elif item.rank is None:
                notes.append(f"{item.path.name}: no rank in its name (rank0, rank1 ...): not used")
            else:
                (samples if item.child is None else children).setdefault(item.rank, []).append(read)
        elif item.kind == "faulthandler" and item.rank is not None:
            text = text_of(item.path)
            moment.first.append(Record(faulthandler.SOURCE, {"pid": 0, "text": text}, rank=item.rank))
            moment.pids.setdefault(item.rank, 0)
        elif item.kind == "ras":
            moment.rest.append(Record(nccl_ras.SOURCE, {"text": text_of(item.path)}))
    for taken in samples.values():
        whole = next((threads for _, threads in taken if _is_json(threads)), None)
        for _, threads in taken:
            if whole is not None and not _is_json(threads):
                with_names_of(threads, whole)
    for rank in sorted({*samples, *copies}):
        _add_rank(moment, rank, samples.get(rank, []), children.get(rank, []), copies.get(rank, {}))
    return moment


def _add_rank(
    moment: Moment,
    rank: int,
    samples: list[_Sample],
    children: list[_Sample],
    copies: dict[str, str],
) -> None:
    pid = samples[0][0] if samples else _pid(copies)
    if pid is None:
        return
    moment.pids[rank] = pid
    stat = copies.get("stat") or _stat_of_status(copies.get("status", ""), pid)
    listed = [{"stat": f"{child} (python) ? {pid} {' '.join(['0'] * 20)}"} for child, _ in children]
    process = {"pid": pid, "hz": 100, "page": 4096, "stat": stat.strip(), "main_stat": None, "fds": None}
    process |= {"io": copies.get("io"), "status": copies.get("status"), "children": listed}
    process["wchan"] = (copies.get("wchan") or "").strip() or None
    moment.first.append(Record(proc.SOURCE, process, rank=rank))
    spent = re.match(r"(?s).*\) \S (?:\S+ ){10}(\d+) (\d+) ", stat)
    if spent and "stat" in copies:
        moment.cpu_seconds[pid] = (int(spent[1]) + int(spent[2])) / 100
    if "limits" in copies:
        limits = {"pid": pid, "limits": copies["limits"], "rdma": None}
        moment.first.append(Record(proc.SOURCE, limits, rank=rank))
    for child, threads in children:
        sample = {"pid": child, "parent_pid": pid, "stdout": threads}
        moment.first.append(Record(pyspy.SOURCE, sample, rank=rank))
    for number, (_, threads) in enumerate(samples):
        record = Record(pyspy.SOURCE, {"pid": pid, "stdout": threads}, rank=rank)
        (moment.first if number == 0 else moment.rest).append(record)


def _threads(item: EvidenceFile) -> _Sample | None:
    text = text_of(item.path)
    if item.kind == "pyspy_text":
        return threads_of_text(text)
    try:
        threads = json.loads(text)
        return int(threads[0]["pid"]), threads
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        return None


def _is_json(threads: list[dict[str, Any]]) -> bool:
    """Whether they came from --json, which has more fields than we make of a text."""
    return bool(threads) and isinstance(threads[0], dict) and "process_info" in threads[0]


def _pid(copies: dict[str, str]) -> int | None:
    found = re.match(r"(\d{1,10}) \(", copies.get("stat", "")) or re.search(
        r"(?m)^Pid:\s+(\d{1,10})", copies.get("status", "")
    )
    return int(found[1]) if found else None


def _stat_of_status(status: str, pid: int) -> str:
    """The fields of /proc/PID/stat that /proc/PID/status has too; the others 0, a state that is not known `?`."""

    def one(name: str, default: str) -> str:
        found = re.search(rf"(?m)^{name}:\s+(\S+)", status)
        return found[1] if found else default

    pages = int(one("VmRSS", "0")) // 4 if one("VmRSS", "0").isdigit() else 0
    return (
        f"{pid} ({one('Name', 'python')}) {one('State', '?')} {one('PPid', '0')} "
        + "0 " * 15
        + f"{one('Threads', '0')} 0 0 0 {pages}"
    )
