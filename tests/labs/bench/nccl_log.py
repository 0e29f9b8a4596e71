"""Reading what 16 ranks wrote with NCCL_DEBUG=INFO against `grep` over the same file, in the same run."""

from __future__ import annotations

import re
import resource
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from diag.model import Record
from diag.sources.logs import nccl_log as parser
from diag.sources.logs import output
from diag.sources.logs.output import LineAssembler

from .machine import cpu_of
from .stats import interval, judge
from .table import Row

__all__ = ["job_log", "rows"]

_CAPTURE = Path(__file__).resolve().parents[2] / "captures" / "logs" / "nccl" / "healthy_rank0.log"
# What a process prints for its first communicator only, and what it prints before each.
_ONCE = ("RAS client", "PROFILER/Plugin", "TUNER/Plugin", "NCCL_NVLS_ENABLE", "Bootstrap timings")
_BEFORE_EACH = ("Comm config", "Initialized NET", "Assigned NET", "Using network")
_LINES_A_SECOND = 300_000  # ours: a job of 1000 ranks starts with about a million lines, read within seconds
_GREP_TIMES = 3.0  # ours: what a person would do instead


def job_log(ranks: int = 16, communicators: int = 12) -> bytes:
    """What `ranks` ranks on two nodes write into one file: NCCL 2.28.9's own lines (captured on two H200),
    each rank's with its host, pid, GPU and addresses, made anew for each communicator; between nodes the
    channels go over NET/IB."""
    text = [line for line in _CAPTURE.read_text().splitlines() if " NCCL INFO " in line]
    first = next(number for number, line in enumerate(text) if "Init START" in line)
    setup, made = text[:first], text[first:]
    writers = [_rank_lines(rank, ranks, setup, made, communicators) for rank in range(ranks)]
    lines: list[str] = []
    while writers:  # in turns, a few lines each: how pipes of many ranks come together
        for writer in list(writers):
            for _ in range(7):
                line = next(writer, None)
                if line is None:
                    writers.remove(writer)
                    break
                lines.append(line)
    return ("\n".join(lines) + "\n").encode()


def _rank_lines(
    rank: int, ranks: int, setup: list[str], made: list[str], communicators: int
) -> Iterator[str]:
    head, gpu, half = f"gpu-node-{rank * 2 // ranks}:{5000 + rank}:", rank % (ranks // 2), ranks // 2
    for number in range(communicators + 1):
        peer = (rank + 1 + number) % ranks
        told_before = [
            line
            for line in setup
            if number == 0 or (number > 1 and any(word in line for word in _BEFORE_EACH))
        ]
        told_then = [
            line for line in made if number == 1 or (number > 1 and not any(word in line for word in _ONCE))
        ]
        for line in told_before + told_then:
            told = line.replace("gpu-node-0:566:", head).replace(" [0] NCCL", f" [{gpu}] NCCL")
            told = told.replace("0x400879c0", f"0x400{rank:03x}{number:02x}0")
            told = told.replace("rank 0 nranks 2", f"rank {rank} nranks {ranks}")
            told = told.replace(
                "rank 0 nRanks 2 nNodes 1 localRanks 2",
                f"rank {rank} nRanks {ranks} nNodes 2 localRanks {half}",
            )
            if " via P2P" not in told:
                yield told
                continue
            channel = re.sub(r": 0\[0\] -> 1\[1\]", f": {rank}[{gpu}] -> {peer}[{peer % half}]", told)
            yield from (channel.replace("Channel 0", f"Channel {tens}") for tens in range(3))
            if number % 3 == 0:
                yield channel.replace("via P2P/CUMEM", f"[send] via NET/IB/{gpu}/GDRDMA")


def rows(communicators: int, times_each: int, say: Callable[[str], None]) -> list[Row]:
    data = job_log(communicators=communicators)
    lines = data.count(b"\n")
    say(f"NCCL log of 16 ranks, {lines} lines, {len(data) / 1e6:.0f} MB, {times_each} times each")
    with tempfile.TemporaryDirectory(prefix="diag-bench-") as folder:
        path = Path(folder) / "job.log"
        path.write_bytes(data)
        texts = data.decode().splitlines()
        grep, parse, read = [], [], []
        for _ in range(times_each):
            grep.append(cpu_of(lambda: _grep(path), resource.RUSAGE_CHILDREN))
            parse.append(cpu_of(lambda: _parse(texts), resource.RUSAGE_SELF))
            read.append(cpu_of(lambda: _read(path), resource.RUSAGE_SELF))
    return [_parse_row(lines, parse), _read_row(lines, read, grep)]


def _grep(path: Path) -> None:
    """Through a pipe: with /dev/null as its output grep stops at the first match."""
    subprocess.run(["grep", "-cF", "NCCL", str(path)], stdout=subprocess.PIPE, check=True)


def _parse(texts: list[str]) -> None:
    for text in texts:
        parser.read_line(text, None)


def _read(path: Path) -> int:
    """As `diag replay` and `diag run` do, but for the detectors: bytes into payloads, payloads into facts."""
    lines, facts = LineAssembler(path.name), 0
    with path.open("rb") as file:
        while True:
            data = file.read(1 << 20)
            payload = lines.feed(data, final=not data)
            if payload is not None:
                facts += sum(1 for _ in output.parse(Record(output.SOURCE, payload)))
            if not data:
                return facts


def _parse_row(lines: int, seconds: list[float]) -> Row:
    speed = interval([lines / one for one in seconds])
    return Row(
        f"NCCL lines parsed a second of CPU, line by line ({lines} lines of 16 ranks)",
        f"{speed.mid:,.0f} [{speed.low:,.0f}, {speed.high:,.0f}]",
        goal=f"> {_LINES_A_SECOND:,}",
        verdict="met"
        if speed.low > _LINES_A_SECOND
        else "missed"
        if speed.high < _LINES_A_SECOND
        else "unclear",
        values={"lines_per_second": speed.mid},
        key="nccl lines",
    )


def _read_row(lines: int, ours: list[float], grep: list[float]) -> Row:
    mine, peer = interval(ours), interval(grep)
    ratio = interval([a / b for a, b in zip(ours, grep, strict=True)])
    return Row(
        f"CPU to read that file whole, bytes to facts ({lines / mine.mid:,.0f} lines a second)",
        f"{1000 * mine.mid:.0f} ms",
        f"`grep -cF NCCL`: {1000 * peer.mid:.1f} ms",
        f"{ratio.mid:.0f} [{ratio.low:.0f}, {ratio.high:.0f}]",
        f"< {_GREP_TIMES:.0f} x",
        judge(ratio, _GREP_TIMES),
        {"diag": mine.mid, "peer": peer.mid, "ratio": ratio.mid},
        "nccl file",
    )
