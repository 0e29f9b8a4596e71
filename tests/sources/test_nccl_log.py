"""Every line that NCCL wrote is taken apart, and nothing that only mentions NCCL."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.model import Record
from diag.model.observations import LogLine, NcclFact, NcclLine, NcclPlainLines
from diag.sources.logs import nccl_log, output
from diag.sources.logs.output import PLAIN_RUN, LineAssembler

LOGS = sorted((Path(__file__).parents[1] / "captures" / "logs" / "nccl").glob("*.log"))


def one(text: str) -> NcclLine | None:
    found = list(nccl_log.read_line(text, None))
    fact = found[0] if found else None
    assert fact is None or isinstance(fact, NcclLine)
    assert len(found) <= 2 and all(isinstance(said, NcclFact) for said in found[1:])
    return fact


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_every_line_of_nccl_is_taken_and_no_other(path: Path) -> None:
    # given what a rank printed, NCCL's lines between its own
    payload = LineAssembler("stdout").feed(path.read_bytes(), final=True)
    assert payload is not None

    # when it is read
    facts = list(output.parse(Record(output.SOURCE, payload, rank=0)))

    # then each line with NCCL's head is one fact, or counted in a run of plain ones
    runs = [fact for fact in facts if isinstance(fact, NcclPlainLines)]
    heads = [
        text
        for text, kind in payload["lines"]
        if kind != PLAIN_RUN and ("] NCCL INFO " in text or " NCCL WARN " in text)
    ]
    found = [fact for fact in facts if isinstance(fact, NcclLine)]
    assert len(found) == len(heads) > 0
    for fact, text in zip(found, heads, strict=True):
        assert text.endswith(fact.text)
        assert (fact.host, fact.pid > 0, fact.gpu in (0, 1), fact.rank) == ("gpu-node-0", True, True, 0)
    alone = sum(isinstance(fact, LogLine) for fact in facts)
    assert alone + sum(fact.count for fact in runs) == len(path.read_bytes().splitlines())


def test_warning_keeps_its_place_in_the_source_apart_and_its_timestamp_is_left_out() -> None:
    # NCCL 2.28.9, NCCL_SOCKET_IFNAME=ib0, two H200, 2026-11-20
    text = "[2026-11-20 22:48:14] gpu-node-0:731:731 [0] bootstrap.cc:114 NCCL WARN Bootstrap : no socket interface found"

    said = "Bootstrap : no socket interface found"
    assert one(text) == NcclLine(None, "gpu-node-0", 731, 731, 0, "WARN", said, "bootstrap.cc:114")


@pytest.mark.parametrize(
    ("text", "gpu", "level"),
    [
        ("gpu-node-0:731:731 [0] NCCL INFO ENV/Plugin: Could not find: libnccl-env.so", 0, "INFO"),
        ("gpu-node-0:731:731 [-1] NCCL INFO before a device was chosen", -1, "INFO"),
        (
            "gpu-node-0:731:731 NCCL INFO cudaDriverVersion 13000",
            None,
            "INFO",
        ),  # before NCCL 2.4 and in plugins
        ("node.example.org:12:13 [7] NCCL TRACE x", 7, "TRACE"),
        # NCCL's stdout and tqdm's stderr on one terminal
        (
            "Train:  12%|#  | 1/8 [00:00<00:04,  1.47it/s]gpu-node-0:731:812 [0] NCCL INFO Channel 00/24 : 0 1",
            0,
            "INFO",
        ),
        # ROCm's RCCL keeps NCCL's head (rccl src/debug.cc)
        ("mi300-3:4411:4502 [5] NCCL INFO RCCL version : 2.22.3-HEAD:9a2b2f5", 5, "INFO"),
        (
            "mi300-3:4411:4502 [5] /src/transport/net_ib.cc:212 NCCL WARN NET/IB : Unable to open device mlx5_0",
            5,
            "WARN",
        ),
    ],
)
def test_variants_of_the_head_are_known(text: str, gpu: int | None, level: str) -> None:
    fact = one(text)

    assert fact is not None
    assert (fact.gpu, fact.level) == (gpu, level)


def test_two_heads_on_one_line_give_the_first_with_the_rest_as_its_text() -> None:
    fact = one("gpu-node-0:1:2 [0] NCCL INFO Channel 00gpu-node-0:3:4 [1] NCCL INFO Channel 01")

    assert fact is not None
    assert (fact.pid, fact.text) == (1, "Channel 00gpu-node-0:3:4 [1] NCCL INFO Channel 01")


@pytest.mark.parametrize(
    "text",
    [
        "gpu-node-0:731:731 [0] NCCL",  # cut by a full disk
        "gpu-node-0:731:731 [0] NCCL INF",
        ":731 [0] NCCL INFO the begin is missing",
        "[rank0]:[E1120 22:49:32 ProcessGroupNCCL.cpp:683] Watchdog caught collective operation timeout",
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:94, internal error, NCCL version 2.28.9",
        "Last error: the NCCL INFO of a quotation",
        " NCCL ",
    ],
)
def test_line_that_is_cut_or_only_speaks_of_nccl_gives_nothing(text: str) -> None:
    assert one(text) is None


@pytest.mark.parametrize("cut", range(0, 105, 3))
def test_line_cut_anywhere_raises_nothing(cut: int) -> None:
    text = "[2026-11-20 22:48:14] gpu-node-0:731:731 [0] bootstrap.cc:114 NCCL WARN Bootstrap : no socket interface found"

    one(text[:cut])
    one(text[cut:])
