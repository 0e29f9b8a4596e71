"""Ascend NPUs by the words of `npu-smi info`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from diag.agent.samplers.devices import NpuSampler
from diag.agent.samplers.sampler import Reporter
from diag.model import Record
from diag.model.observations import NpuSample, Unparsed
from diag.outputs.view.npus_view import npus_json
from diag.sources.gpu import npu_smi
from diag.sources.parsers import PARSERS
from diag.text.errors import SourceUnavailable
from tests.facts import Story

# npu-smi 25.5.0, Atlas A3 (github.com/vllm-project/vllm-omni, issue 3597), trimmed to two of its chips
A3 = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 25.5.0                   Version: 25.5.0                                               |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     Ascend910           | OK            | 172.1       36                0    / 0             |
| 0     0                   | 0000:9D:00.0  | 0           0    / 0          56152/ 65536         |
+------------------------------------------------------------------------------------------------+
| 0     Ascend910           | OK            | -           36                0    / 0             |
| 1     1                   | 0000:9F:00.0  | 0           0    / 0          55770/ 65536         |
+===========================+===============+====================================================+
"""
# Atlas A2 (github.com/vllm-project/vllm-ascend, issue 1903); the table of processes as CANN's guide has it
A2 = """\
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B3               | OK            | 98.4        50                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3369 / 65536         |
+===========================+===============+====================================================+
| 1     910B3               | Warning       | 96.5        53                0    / 0             |
| 0                         | 0000:01:00.0  | 87          0    / 0          3368 / 65536         |
+===========================+===============+====================================================+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| 0       0                 | 4711          | python                   | 3200                    |
+===========================+===============+====================================================+
"""


def samples(text: str) -> list[NpuSample]:
    found = list(PARSERS[npu_smi.SOURCE](Record(npu_smi.SOURCE, {"text": text}, None, "n", at=1000.0)))
    assert all(isinstance(fact, NpuSample) for fact in found)
    return found  # type: ignore[return-value]


def test_chips_of_one_npu_are_told_apart_by_their_physical_number() -> None:
    first, second = samples(A3)

    assert (first.index, first.npu, first.chip, first.name) == (0, 0, 0, "Ascend910")
    assert (second.index, second.npu, second.chip, second.bus_id) == (1, 0, 1, "0000:9F:00.0")
    assert (first.memory_used_bytes, first.memory_total_bytes) == (56152 << 20, 64 << 30)
    assert (first.power_watts, second.power_watts) == (172.1, None)
    assert first.core_utilization_ratio == 0.0


def test_without_physical_numbers_chips_are_counted_and_processes_are_no_chips() -> None:
    first, second = samples(A2)

    assert [one.index for one in (first, second)] == [0, 1]
    assert (second.npu, second.health, second.core_utilization_ratio) == (1, "Warning", 0.87)
    assert second.temperature_celsius == 53.0


def test_a_payload_that_is_none_is_unparsed() -> None:
    (fact,) = PARSERS[npu_smi.SOURCE](Record(npu_smi.SOURCE, ["x"], None, "n", at=1000.0))

    assert isinstance(fact, Unparsed)


def fake(folder: Path, text: str, code: int = 0) -> None:
    (folder / "out.txt").write_text(text)
    program = folder / "npu-smi"
    program.write_text(f'#!/bin/sh\n[ "$1" = info ] && cat {folder}/out.txt\nexit {code}\n')
    program.chmod(0o755)


def sampled() -> tuple[list[Record], NpuSampler]:
    told: list[Record] = []
    sampler = NpuSampler(Reporter(told.append, "n"), 60.0)
    sampler.sample()
    return told, sampler


@pytest.mark.skipif(sys.platform != "linux", reason="a shell script")
def test_sampler_reads_the_program_and_a_dump_shows_a_line_for_each_chip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tmp_path, A2)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")

    (record,), sampler = sampled()

    assert record.source == npu_smi.SOURCE and not sampler.stopped
    story = Story(world=2)
    for fact in samples(record.payload["text"]):
        story.tell(fact)
    shown = npus_json(story.engine)
    assert shown["text"][1].startswith(
        "NPU 1 (910B3): AI cores 87 %, memory 3.29 GiB of 64 GiB, health Warning"
    )
    assert shown["devices"][0]["core_utilization_ratio"] == 0.0


def test_a_program_that_shows_no_npu_is_not_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, "DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)\n", 1)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")

    (record,), _ = sampled()

    assert record.payload["event"] == "failed" and "DrvMngGetConsoleLogLevel" in record.payload["reason"]


def test_device_nodes_without_the_program_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npu_smi, "find_program", lambda: None)

    with pytest.raises(SourceUnavailable, match="no npu-smi to ask"):
        npu_smi.read()


def test_a_machine_without_npus_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npu_smi, "find_program", lambda: None)

    assert not npu_smi.is_there(tmp_path)
    told, sampler = sampled()

    assert told == [] and sampler.stopped
