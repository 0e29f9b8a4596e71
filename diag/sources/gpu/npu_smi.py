"""Ascend NPUs as `npu-smi info` shows them: use of the AI cores and memory of each chip.

A program that takes about a second: asked seldom, and only where there are NPUs or the program.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from diag.model import Payload, Record
from diag.model.observations import NpuSample, Observation
from diag.sources.payload import guarded
from diag.text.errors import SourceUnavailable
from diag.text.units import format_seconds

SOURCE = "npu_smi"
_SECONDS = 15.0  # a driver in trouble answers late, if at all
_MOST = 200_000  # characters; 16 chips print 5,000
_MIB = 1 << 20
# npu-smi 25.2.1, Atlas A3 (github.com/ModelEngine-Group/unified-cache-management, issue 748); a chip beside another shows
# no power. On Atlas A2 (910B3, vllm-ascend issue 1903) the column Phy-ID is missing.
#   | NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
#   | Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
#   | 0     Ascend910           | OK            | 166.5       38                0    / 0             |
#   | 0     0                   | 0000:9D:00.0  | 0           0    / 0          3131 / 65536         |
_NPU = re.compile(
    r"\|\s{0,9}(\d{1,4})\s{1,9}([\w.-]{1,40})\s*\|\s*(\w{1,20})\s*\|\s*(\S{1,12})\s+(\S{1,12})\s"
)
_CHIP = re.compile(
    r"\|\s{0,9}(\d{1,4})(?:\s{1,9}(\d{1,4}))?\s*\|\s*([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f.]{2,5})\s*\|"
    r"\s*(\S{1,12})\s+(\d{1,9})\s*/\s*(\d{1,9})(?:\s+(\d{1,9})\s*/\s*(\d{1,9}))?"
)


def find_program() -> str | None:
    return shutil.which("npu-smi") or shutil.which("npu-smi", path="/usr/local/bin:/usr/local/sbin")


def is_there(dev: Path = Path("/dev")) -> bool:
    """Whether this machine has NPUs, or the program that shows them."""
    return find_program() is not None or any(dev.glob("davinci[0-9]*"))


def read() -> Payload:
    """{"text": what it printed}. Raises SourceUnavailable."""
    program = find_program()
    if program is None:
        raise SourceUnavailable(
            "NPUs have device nodes here, and there is no npu-smi to ask",
            "mount /usr/local/bin/npu-smi and /usr/local/Ascend/driver into the container",
        )
    try:
        done = subprocess.run(
            [program, "info"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SourceUnavailable(
            f"npu-smi did not answer within {format_seconds(_SECONDS)}", "look at the NPU driver's log"
        ) from None
    except OSError as error:
        raise SourceUnavailable(f"npu-smi cannot be started: {error.strerror}") from None
    if done.returncode or not any(_rows(done.stdout)):
        printed = (done.stderr or done.stdout).strip().splitlines()
        words = f": {printed[0][:160]}" if printed else ""
        raise SourceUnavailable(
            f"npu-smi (exit {done.returncode}) showed no NPU{words}", "run `npu-smi info` by hand"
        )
    return {"text": done.stdout[:_MOST]}


@guarded(SOURCE)
def parse(record: Record) -> Iterator[Observation]:
    """One NpuSample a chip."""
    for index, (npu, chip) in enumerate(_rows(str(record.payload["text"])[:_MOST])):
        yield _sample(record, index, npu, chip)


def _rows(text: str) -> Iterator[tuple[re.Match[str], re.Match[str]]]:
    """The two lines of each chip."""
    npu: re.Match[str] | None = None
    for line in text.splitlines():
        if chip := _CHIP.match(line):
            if npu is not None:
                yield npu, chip
            npu = None
        else:
            npu = _NPU.match(line) or npu


def _sample(record: Record, index: int, npu: re.Match[str], chip: re.Match[str]) -> NpuSample:
    own, on_chip = (chip[5], chip[6]), (chip[7], chip[8])  # without memory of its own a chip has 0 / 0 there
    used, total = on_chip if on_chip[1] and int(on_chip[1]) else own
    use = _number(chip[4])
    return NpuSample(
        rank=record.rank,
        index=int(chip[2]) if chip[2] else index,
        npu=int(npu[1]),
        chip=int(chip[1]),
        name=npu[2],
        bus_id=chip[3],
        health=npu[3],
        core_utilization_ratio=None if use is None else use / 100,
        memory_used_bytes=int(used) * _MIB if int(total) else None,
        memory_total_bytes=int(total) * _MIB or None,
        power_watts=_number(npu[4]),
        temperature_celsius=_number(npu[5]),
    )


def _number(text: Any) -> float | None:
    """None for `-` and `NA`."""
    try:
        return float(text)
    except ValueError:
        return None
