"""What earlier runs on this node came to, in one line: a pattern is worth knowing before the next one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from diag.preflight.line import Line, line
from diag.text.errors import DiagError
from diag.text.units import format_count, format_seconds

if TYPE_CHECKING:
    from diag.launch.past.places import NodeRecord
    from diag.launch.past.reading import PastRun

_LEAST_RUNS = 3
_LEAST_TIMES = 2  # ours: once is no pattern
_MOST_GPUS = 4
# Ours: a thousand runs that no index knows take 1 s of CPU.
_MOST_SECONDS = 10.0


def check_history(read: Callable[[], Iterable[PastRun]], seconds: float = _MOST_SECONDS) -> Iterator[Line]:
    """Nothing where fewer than three runs on this node are remembered. `read` gives all runs, on a thread: the file system
    that they are on may not answer."""
    known: SimpleQueue[Iterable[PastRun]] = SimpleQueue()

    def make() -> None:
        try:
            known.put(read())
        except (DiagError, OSError):  # of diag.toml, which other commands report
            known.put(())

    threading.Thread(target=make, daemon=True, name="diag-history").start()
    try:
        yield from history_lines(known.get(timeout=seconds))
    except Empty:
        yield line("history.silent", seconds=format_seconds(seconds))


def history_lines(known: Iterable[PastRun]) -> Iterator[Line]:
    from diag.launch.past.places import node_record

    host = socket.gethostname()
    record = node_record(host, known)
    if record.runs < _LEAST_RUNS:
        return
    said = format_count(record.runs, "run") + f" on {host} remembered, {record.finished} finished"
    said += f", {record.critical} ended with a critical finding"
    places = [*_of_node(record), *_of_gpus(record)]
    if places:
        yield line("history.places", said=said, places="; ".join(places))
    else:
        yield line("history.none", said=said)


def _of_node(record: NodeRecord) -> Iterator[str]:
    if record.culprit >= _LEAST_TIMES:
        yield f"the culprit was on this node in {record.culprit} of {record.shared} with several nodes{_by(record.findings)}"


def _of_gpus(record: NodeRecord) -> Iterator[str]:
    for gpu in [one for one in record.gpus if one.culprit >= _LEAST_TIMES][:_MOST_GPUS]:
        yield f"the culprit was on GPU {gpu.index} ({gpu.uuid}) in {gpu.culprit} of {gpu.runs}{_by(gpu.findings)}"


def _by(findings: Mapping[str, int]) -> str:
    """
    >>> _by({"hang": 2, "gpu-fault": 1})
    ' (hang 2, gpu-fault 1)'
    """
    return (
        " ("
        + ", ".join(f"{name} {count}" for name, count in sorted(findings.items(), key=lambda one: -one[1]))
        + ")"
    )
