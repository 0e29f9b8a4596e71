"""`diag explain` of a line of NCCL, as it stands and with NCCL's head cut off: all that the readers of its log know is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from diag.cli.main import main
from diag.cli.nccl_meaning import meaning, message_of
from diag.knowledge import table
from diag.model.observations import NcclFact
from diag.outputs import manual
from diag.sources.logs import nccl_log
from diag.sources.logs.nccl_log import read_line
from diag.text.tables import places

HEAD = "gpu-17:812:955 [3] NCCL INFO "
CAPTURES = Path(__file__).parent.parent / "captures"
KINDS = {kind.__name__: kind for kind in NcclFact.__subclasses__()}
# too long for a line of a comment; captured with 2.28.9 on 2 x H200, 2026-11-20
TIMINGS = "Init timings - ncclCommInitRankConfig: rank 0 nranks 2 total 0.46 (kernels 0.39, alloc 0.01, bootstrap 0.02)"


def quoted() -> list[str]:
    """The texts that the readers' own comments quote: "#   2.18-2.31  NET/IB : No device found.   (captured)"."""
    found = []
    for file in sorted(Path(nccl_log.__file__).parent.glob("*.py")):
        for comment in re.findall(r"^ *#   (.*)$", file.read_text(), re.MULTILINE):
            for text in re.split(r" {3,}|  (?=[\d(])", comment):
                found.append(re.sub(r"^(?:\d\.\d\d\S* +)+|^HPC-X +", "", text.strip()))
    return [*(text for text in found if "..." not in text), TIMINGS]


def known() -> list[str]:
    """Those of which a reader makes a fact."""
    return [text for text in quoted() if len(read_line(HEAD + message_of(text), None)) > 1]


def test_every_line_that_a_reader_quotes_is_explained_without_its_head() -> None:
    lines = known()

    assert len(lines) > 90
    assert {type(read_line(HEAD + message_of(text), None)[1]).__name__ for text in lines} == {*KINDS}
    assert [text for text in lines if not meaning(message_of(text), "en") or not meaning(text, "zh")] == []


def test_every_kind_of_line_in_the_captures_is_explained_without_its_head() -> None:
    kinds: dict[tuple[str, ...], str] = {}
    for log in sorted(CAPTURES.rglob("*.log")):
        for line in log.read_text(errors="replace").splitlines():
            if len(read_line(line, None)) > 1:
                text = message_of(line)
                kinds.setdefault((*re.findall("[A-Za-z]{3,}", text)[:3],), text)

    assert len(kinds) > 10
    assert [text for text in kinds.values() if not meaning(text, "en")] == []


@pytest.mark.parametrize(
    "line",
    [
        "Channel 00/24 : 0 1",
        "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
        "Trees [0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->-1",
        "[Proxy Service] Device 0 CPU core 27",
    ],
)
def test_line_that_shows_only_that_nccl_is_at_work_is_called_normal(line: str) -> None:
    assert "That is normal" in meaning(line, "en")["Meaning"] and meaning(HEAD + line, "en")


@pytest.mark.parametrize("head", [HEAD, "[3] NCCL INFO ", "NCCL INFO ", "  ", ""])
def test_line_is_explained_whatever_is_left_of_its_head(
    head: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", f"{head}NET/IB : No device found.", "--lang", "en"]) == 0
    out = capsys.readouterr().out

    assert "NCCL found no RDMA device" in out and "ib-fallback" in out


def test_warning_of_libibverbs_is_explained() -> None:
    line = "libibverbs: Warning: no userspace device-specific driver found for /sys/class/infiniband_verbs/uverbs0"

    assert meaning(line, "en")["Meaning"].startswith("libibverbs, which NCCL uses")


def test_finding_is_told_also_where_the_head_is_torn(capsys: pytest.CaptureFixture[str]) -> None:
    line = "[0] NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000"

    assert main(["explain", line, "--lang", "en"]) == 0
    assert "diag explain duplicate-gpu" in capsys.readouterr().out


def test_line_without_a_head_is_not_said_to_be_of_nccl() -> None:
    assert meaning("Using network Socket", "en")["Meaning"].startswith("In NCCL's log: ")
    assert meaning(f"{HEAD}Using network Socket", "en")["Meaning"].startswith("NCCL will send")


@pytest.mark.parametrize(
    "line",
    [
        "Channel 5 is good",
        "Trees are green",
        "Failed to open data.json",
        "Connection refused",
        "NET/IB is what we use",
        "no device found in the config",
        "step 10/100 loss: 2.31",
        "NCCL INFO something new",
        f"{HEAD}something new",
        "line one\nTrees [0]",
    ],
)
def test_line_that_no_reader_knows_has_no_meaning(line: str) -> None:
    assert meaning(line, "en") == {}


def test_every_fact_of_nccl_has_a_meaning_in_both_languages_and_names_findings_that_there_are() -> None:
    entries = table("nccl_lines")

    assert {*entries} == {*KINDS, "plain", "VerbsDriverMissing"}
    for name, several in entries.items():
        assert "when" not in several[-1], f"{name}: no entry for what the others leave"
        for entry in several:
            fields = {*KINDS[name].__dataclass_fields__} if name in KINDS else set()
            assert {*entry} <= {"when", "means", "zh", "see"}
            assert places(entry["means"]) | places(entry["zh"]) | {*entry.get("when", ())} <= fields
            assert re.search("[\u4e00-\u9fff]", entry["zh"]) and entry["means"].endswith(".")
            assert {*entry.get("see", ())} <= {*manual.ids()}
