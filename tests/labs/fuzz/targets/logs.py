"""Readers of text: the job's output and plain logs, the lines of trainers, NCCL, torch and the kernel, stacks
as text."""

from __future__ import annotations

import functools
import io
from pathlib import Path

from diag.agent.samplers.kernel import KmsgLines
from diag.engine.importers.log_import import LogImport
from diag.engine.importers.log_reader import log_records
from diag.engine.importers.policy import LOG
from diag.engine.importers.pyspy_text import threads_of_text
from diag.engine.importers.stall_duration import LogClock, epoch_of
from diag.knowledge import log_prefix
from diag.model import Record
from diag.model.observations import LogLine, NcclFact, NcclLine, NcclPlainLines, Unparsed
from diag.sources.gpu import cuda_log
from diag.sources.host import kmsg
from diag.sources.logs import (
    line_forms,
    nccl_log,
    output,
    swift_log,
    trainer_log,
)
from diag.sources.logs.output import LineAssembler
from diag.sources.stacks import faulthandler, pyspy
from tests.labs.fuzz.targets.base import CAPTURES, Target, of_files, told

__all__ = ["TARGETS"]

_LINES = CAPTURES / "logs" / "nccl" / "lines"


def _output(data: bytes, home: Path) -> None:
    """What CMD prints, in pieces, by way of the engine and its rules."""
    lines, records = LineAssembler("stdout"), []
    step = max(1, len(data) // 5)
    for begin in range(0, len(data) + 1, step):
        payload = lines.feed(data[begin : begin + step], final=begin + step > len(data))
        if payload is not None:
            records.append(Record(output.SOURCE, payload, None, "node0", 1010.0, 1010.0 + len(records)))
            assert not any(isinstance(fact, Unparsed) for fact in output.parse(records[-1]))
    told(records)


def _plain(data: bytes, home: Path) -> None:
    """A log given to `diag replay`, with the judgement of logs that end."""
    logs = LogImport(log_records(io.BytesIO(data), "rank3.log", 1.7e9, 3))
    told(logs, LOG.engine(parsers=logs.parsers))


def _every_line(data: bytes, home: Path) -> None:
    """Each reader of single lines by itself, also for lines that the ones before it take away."""
    for text in data.decode("utf-8", "backslashreplace").split("\n"):
        told_of = log_prefix.strip_outer(text)
        assert text.endswith(told_of.text) or "\x1b" in text
        log_prefix.message_of(text)
        for module in (trainer_log, swift_log, cuda_log, line_forms):
            list(module.read_line(text, 3))
        list(trainer_log.read_bar(text, None))
        list(swift_log.read_bar(text, None))
        list(trainer_log.read_metrics(text, None))
        epoch_of(text)


def _nccl(data: bytes, home: Path) -> None:
    for text in data.decode("utf-8", "backslashreplace").split("\n"):
        found = nccl_log.read_line(text, None)
        assert len(found) <= 2 and all(isinstance(fact, (NcclLine, NcclFact)) for fact in found)
    payload = LineAssembler("x").feed(data, final=True)
    if payload is not None:
        facts = list(output.parse(Record(output.SOURCE, payload)))
        assert not any(isinstance(fact, Unparsed) for fact in facts)
        count = sum(
            1 if isinstance(fact, LogLine) else fact.count if isinstance(fact, NcclPlainLines) else 0
            for fact in facts
        )
        # What stands behind a progress bar, on its line, is a line of its own.
        assert count <= 2 * (data.count(b"\n") + data.count(b"\r") + 1)


def _nccl_seeds() -> list[bytes]:
    return [
        line.encode()
        for path in sorted(_LINES.glob("*.txt"))
        for line in path.read_text().splitlines()
        if not line.startswith(("# ", "    => "))
    ]


def _kernel(data: bytes, home: Path) -> None:
    """Records of /dev/kmsg, and `dmesg` as text."""
    lines = KmsgLines(["word"])
    kept = [line for raw in data.split(b"\n") for line in lines.take(raw + b"\n")]
    texts = data.decode("utf-8", "replace").splitlines()
    told(
        Record(kmsg.SOURCE, {"lines": each}, None, "node0", 1010.0 + at, 1010.0 + at)
        for at, each in enumerate((kept, texts))
    )


def _stacks(data: bytes, home: Path) -> None:
    """`py-spy dump` and faulthandler as text, by hand and by themselves."""
    text = data.decode("utf-8", "replace")
    threads = threads_of_text(text)
    payloads = [Record(faulthandler.SOURCE, {"pid": 20, "text": text}, 0, "node0", 1011.0, 1011.0)]
    if threads is not None:
        payloads.append(
            Record(pyspy.SOURCE, {"pid": threads[0], "stdout": threads[1]}, 1, "node0", 1012.0, 1012.0)
        )
    told(payloads)


def _clock(data: bytes, home: Path) -> None:
    clock = LogClock()
    payload = LineAssembler("x").feed(data, final=True)
    if payload is not None:
        for fact in output.parse(Record(output.SOURCE, payload, 0)):
            if isinstance(fact, LogLine):
                epoch_of(fact.text)
    clock.silent_seconds()


_LOGS = of_files(
    "logs/*.log",
    "logs/swift*/*.log",
    "logs/torch*/*.log",
    "logs/deepspeed-accelerate/*.log",
    "loose/*/*.log",
    "gpu/*.txt",
    "steps/*.log",
    most=60,
)
TARGETS = (
    Target("output", "what the job prints: lines, bars, rules, findings", "text", _LOGS, _output),
    Target(
        "plain-log",
        "log files given to `diag replay`: times, ends, tracebacks, places",
        "text",
        _LOGS,
        _plain,
    ),
    Target(
        "log-lines",
        "prefixes, and the readers of trainers', swift's, torch's, CUDA's, launchers' and watchdogs' lines",
        "text",
        _LOGS,
        _every_line,
    ),
    Target("nccl-lines", "lines of NCCL 2.18 to 2.31", "text", _nccl_seeds, _nccl),
    Target(
        "kernel-log",
        "`/dev/kmsg` and `dmesg`",
        "text",
        of_files("gpu/kmsg_raw.txt", "gpu/dmesg.txt", "memory/v2/kmsg*", "sources/kmsg/*"),
        _kernel,
    ),
    Target(
        "stack-text",
        "`py-spy dump` and faulthandler as text",
        "text",
        of_files("loose/*/pyspy*.txt", "trees/*.txt"),
        _stacks,
    ),
    Target("log-clock", "times in lines, of any form", "text", _LOGS, functools.partial(_clock)),
)
