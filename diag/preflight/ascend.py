"""Ascend NPUs: whether npu-smi shows them. Where it is not installed there is no line, unless device nodes are
there."""

from __future__ import annotations

import functools
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from diag.preflight.launch_facts import LaunchFacts
from diag.preflight.line import Line, line
from diag.preflight.run_command import CommandFailed, run_command
from diag.text.units import format_count

# npu-smi info -l, Atlas A3, HDK 26.1.0 (hiascend.com, A3npu/npusmia3_0014):
#   Total Count                    : 1
#   NPU ID                         : 0
#   Chip Count                     : 2
_TOTAL = re.compile(r"^[ \t]{0,40}Total Count[ \t]{0,60}:[ \t]{0,8}(\d{1,4})\b", re.MULTILINE)
_CHIPS = re.compile(r"^[ \t]{0,40}Chip Count[ \t]{0,60}:[ \t]{0,8}(\d{1,4})\b", re.MULTILINE)


def parse_list(text: str) -> int | None:
    """Devices that a process may use: one for each chip. None for what is not such a list."""
    text = text[:100_000]
    total, chips = _TOTAL.search(text), _CHIPS.findall(text)
    if total is None:
        return None
    return sum(map(int, chips)) if len(chips) == int(total[1]) else int(total[1])


@functools.lru_cache(maxsize=1)
def _asked() -> tuple[int | None, str]:
    """(devices, why none); (None, "") where there is no npu-smi. Asked once: it takes a second."""
    program = shutil.which("npu-smi")
    if program is None:
        return None, ""
    try:
        done = run_command([program, "info", "-l"])
    except CommandFailed as error:
        return None, f"npu-smi {error}"
    count = parse_list(done.stdout)
    if count is not None:
        return count, ""
    printed = (done.stderr or done.stdout).strip().splitlines()
    return (
        None,
        f"npu-smi printed {printed[0][:160]!r}"
        if printed
        else f"npu-smi ended with status {done.returncode}",
    )


def npus_here() -> int | None:
    return _asked()[0]


def check_npus(facts: LaunchFacts, dev: Path = Path("/dev")) -> Iterator[Line]:
    count, why = _asked()
    if count:
        yield line("gpus.npus", count=format_count(count, "NPU"))
    elif count == 0:
        yield line("gpus.npus-none")
    elif why:
        yield line("gpus.npus-unknown", why=why)
    elif any(dev.glob("davinci[0-9]*")):
        yield line("gpus.npus-no-program")
