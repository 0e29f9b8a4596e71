"""What each known line of NCCL says, by version: the lines and the expected facts stand in
captures/logs/nccl/lines."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from diag.model import Record
from diag.model.observations import (
    LogLine,
    NcclCommunicator,
    NcclFact,
    NcclIbDevices,
    NcclLine,
    NcclNetChosen,
    NcclPlainLines,
    NcclVersion,
    Observation,
    VerbsDriverMissing,
)
from diag.sources.logs import line_facts, nccl_log, output
from diag.sources.logs.output import PLAIN_RUN, LineAssembler
from tests.labs.bench.nccl_log import job_log

CAPTURES = Path(__file__).parents[1] / "captures"
TABLE = sorted((CAPTURES / "logs" / "nccl" / "lines").glob("*.txt"))
LOGS = sorted([*(CAPTURES / "logs" / "nccl").glob("*.log"), *(CAPTURES / "loose").glob("*/*.log")])
_SAYS = "    => "


def entries(path: Path) -> list[tuple[str, str]]:
    """Each line with what it says. A line that begins with # tells where those behind it come from."""
    found: list[tuple[str, str]] = []
    line = ""
    for text in path.read_text().splitlines():
        if text.startswith(_SAYS):
            found.append((line, text.removeprefix(_SAYS)))
        elif not text.startswith("# "):
            line = text
    return found


def words(facts: list[Observation] | tuple[Observation, ...]) -> str:
    """A fact as the tables write it: its fields that are not their defaults, without rank and line."""
    if not facts:
        return "no line of NCCL"
    if len(facts) == 1:
        return "nothing"
    fact = facts[1]
    assert dataclasses.is_dataclass(fact)
    fields = [field for field in dataclasses.fields(fact) if field.name not in ("rank", "line")]
    told = [
        f"{field.name}={getattr(fact, field.name)!r}"
        for field in fields
        if getattr(fact, field.name) != field.default
    ]
    return f"{type(fact).__name__}({', '.join(told)})".replace("NcclIbDevice(name=", "(name=")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        pytest.param(*entry, id=f"{path.stem}:{number}")
        for path in TABLE
        for number, entry in enumerate(entries(path))
    ],
)
def test_line_says_what_the_table_has(line: str, says: str) -> None:
    found = nccl_log.read_line(line, 3)

    assert words(tuple(found)) == says
    assert all(fact.rank == 3 for fact in found)


def test_every_kind_of_fact_stands_in_the_tables() -> None:
    said = {says.partition("(")[0] for path in TABLE for _, says in entries(path)}

    assert {kind.__name__ for kind in NcclFact.__subclasses__()} <= said


@pytest.mark.parametrize(("line", "says"), entries(CAPTURES / "logs" / "nccl" / "lines" / "prefixes.txt"))
def test_prefixes_leave_the_writer_alone(line: str, says: str) -> None:
    for fact in nccl_log.read_line(line, None)[:1]:
        assert isinstance(fact, NcclLine)
        hosts = {
            "node-1": 812,
            "gpu6": 1408,
            "tomte401": 1850301,
            "rdma-gpu-train-worker-0": 19487,
            "ip-10-36-29-253": 79,
            "": 0,
        }
        assert fact.pid == hosts[fact.host]


def test_fact_of_a_torn_line_is_the_last_writers_and_carries_its_line() -> None:
    line, fact = nccl_log.read_line(
        "gpu-node-0:1:2 [0] NCCL INFO Channel 00gpu-node-0:3:4 [1] NCCL INFO Using network IB", None
    )

    assert isinstance(line, NcclLine) and isinstance(fact, NcclNetChosen)
    assert (line.pid, fact.line.pid, fact.line.host, fact.line.text) == (
        1,
        3,
        "gpu-node-0",
        "Using network IB",
    )


def test_place_of_a_warning_is_the_file_and_line_also_with_the_function_of_2_30() -> None:
    text = "[2026-11-20 22:48:18] node-1:812:955 [3] plugin/net.cc:484 (operator()) NCCL WARN Failed to initialize any NET plugin"

    line, _ = nccl_log.read_line(text, None)

    assert line == NcclLine(
        None, "node-1", 812, 955, 3, "WARN", "Failed to initialize any NET plugin", "plugin/net.cc:484"
    )


def test_version_without_a_head_is_nobodys_line() -> None:
    line, fact = nccl_log.read_line("NCCL version 2.21.5+cuda12.4", 2)

    assert line == NcclLine(2, "", 0, 0, None, "VERSION", "NCCL version 2.21.5+cuda12.4")
    assert fact == NcclVersion(2, line, "2.21.5", "12.4")


# What must give a fact wherever it stands in a capture: the head of its text, or any of it.
_MUST = (
    "NCCL version ",
    "Bootstrap: Using",
    "NET/IB : ",
    "NET/Socket : Using",
    "NET/Plugin: ",
    "Using network ",
    "Init timings",
    " - Init ",
    " nNodes ",
    "RAS client",
    "set by environment",
    "Destroy COMPLETE",
    "Abort COMPLETE",
    "via NET/",
    " -> ",
    "Failed to initialize",
    "no socket interface",
)


@pytest.mark.parametrize("path", LOGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_no_known_line_of_a_capture_is_missed(path: Path) -> None:
    for text in path.read_text(errors="replace").splitlines():
        found = nccl_log.read_line(text, None)
        known = (
            any(word in text for word in _MUST)
            and " via P2P" not in text
            and " via SHM" not in text
            and "Trees" not in text
        )
        if "] NCCL INFO " in text and known:
            assert len(found) == 2, text


def every_fact(data: bytes, chunk: int) -> tuple[list[Observation], int]:
    """Facts of a file read in pieces, and how many lines were told."""
    lines, facts, told = LineAssembler("job.log"), [], 0
    for begin in range(0, len(data) + chunk, chunk):
        piece = data[begin : begin + chunk]
        payload = lines.feed(piece, final=not piece)
        for fact in output.parse(Record(output.SOURCE, payload)) if payload is not None else ():
            told += isinstance(fact, LogLine)
            told += fact.count if isinstance(fact, NcclPlainLines) else 0
            if not isinstance(fact, (LogLine, NcclPlainLines)):
                facts.append(fact)
    return facts, told


@pytest.mark.parametrize("chunk", [997, 64 << 10, 1 << 20])
def test_file_of_16_ranks_tells_the_same_in_runs_as_line_by_line(chunk: int) -> None:
    data = job_log(communicators=2)
    alone = [fact for text in data.decode().splitlines() for fact in nccl_log.read_line(text, None)]

    facts, told = every_fact(data, chunk)

    said = [fact for fact in alone if isinstance(fact, NcclFact)]
    assert [fact for fact in facts if isinstance(fact, NcclFact)] == said
    assert told == data.count(b"\n")
    made = [fact for fact in said if isinstance(fact, NcclCommunicator) and fact.stage == "complete"]
    assert len({fact.line.pid for fact in made}) == 16 and len(made) == 32


def test_burst_of_nccl_lines_loses_none_that_says_something() -> None:
    # given a megabyte at once: more lines than a record holds
    data = job_log(communicators=12)[: 1 << 20]
    lines = LineAssembler("job.log")

    payload = lines.feed(data, final=True)

    assert payload is not None and lines.dropped_lines == 0
    assert any(kind == PLAIN_RUN for _, kind in payload["lines"])


@pytest.mark.parametrize(
    "stranger",
    [
        "gpu-node-0:566:566 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0",
        "gpu-node-0:566:566 [0] NCCL INFO Channel 00/0 : 0[0] -> 1gpu-node-0:5:6 [0] NCCL INFO Using network IB",
        "gpu-node-0:566:566 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEMOSError: [Errno 28] No space left on device",
        "[rank3]:gpu-node-0:566:566 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
        "RuntimeError: DataLoader worker (pid 4) is killed by signal: Bus error",
        "",
    ],
)
def test_line_that_says_something_is_never_in_a_run(stranger: str) -> None:
    plain = "gpu-node-0:566:566 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"
    text = "\n".join([plain] * 9 + [stranger] + [plain] * 9) + "\n"

    payload = LineAssembler("x").feed(text.encode())

    assert payload is not None
    assert [stranger, 0] in payload["lines"]
    held = [
        line
        for item, kind in payload["lines"]
        for line in (item.split("\n") if kind == PLAIN_RUN else [item])
    ]
    assert held == text.splitlines()


def test_job_state_counts_runs_as_their_lines_and_keeps_the_last_of_them() -> None:
    from diag.state.job import JobState

    plain = [
        f"gpu-node-0:566:566 [0] NCCL INFO Channel {number:02}/0 : 0[0] -> 1[1] via P2P/CUMEM"
        for number in range(300)
    ]
    payload = LineAssembler("x").feed(("\n".join(plain) + "\n").encode())
    assert payload is not None and len(payload["lines"]) == 1
    job = JobState()

    for fact in output.parse(Record(output.SOURCE, payload)):
        job.observe(1.0, fact)

    assert (job.log.lines, job.nccl.lines, list(job.log.tail)) == (300, 300, plain[-200:])


def test_driver_that_libibverbs_cannot_load_is_told() -> None:
    # rdma-core 44 in a container without the provider of its (soft-RoCE) device, and its older wording
    text = (
        "libibverbs: Warning: couldn't load driver 'libmlx5-rdmav34.so': libmlx5-rdmav34.so: cannot open shared object "
        "file: No such file or directory"
    )
    older = "libibverbs: Warning: no userspace device-specific driver found for /sys/class/infiniband_verbs/uverbs0"

    found = [list(line_facts.read_text(line, "stderr", 1))[1:] for line in (text, older)]

    assert found == [[VerbsDriverMissing(1, "libmlx5-rdmav34.so", text)], [VerbsDriverMissing(1, "", older)]]


def test_zero_devices_are_told_as_zero_devices_by_both_lines() -> None:
    head = "node-1:812:955 [0] NCCL INFO "
    for text in (
        "NET/IB : No device found.",
        "NET/IB : Using [RO]; OOB eth0:10.0.0.1<0>",
        "NET/IB : Using ; OOB :",
    ):
        _, fact = nccl_log.read_line(head + text, None)
        assert isinstance(fact, NcclIbDevices) and fact.devices == () and not fact.cut
