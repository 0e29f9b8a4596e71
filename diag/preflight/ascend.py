"""Ascend NPUs: whether npu-smi shows them. Where it is not installed nothing is said, unless device nodes are
there."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from diag.preflight.line import Line
from diag.text.units import format_seconds

_SECONDS = 5.0

# npu-smi info -l, Atlas A3, HDK 26.1.0 (hiascend.com, A3npu/npusmia3_0014):
#   Total Count                    : 1
#   NPU ID                         : 0
#   Chip Count                     : 2
_TOTAL = re.compile(r"^[ \t]{0,40}Total Count[ \t]{0,60}:[ \t]{0,8}(\d{1,4})\b", re.MULTILINE)
_CHIPS = re.compile(r"^[ \t]{0,40}Chip Count[ \t]{0,60}:[ \t]{0,8}(\d{1,4})\b", re.MULTILINE)


def parse_list(text: str) -> int | None:
    """Devices that a process may use: one for each chip. None for what is no such list."""
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
        done = subprocess.run(
            [program, "info", "-l"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"npu-smi did not answer within {format_seconds(_SECONDS)}"
    except OSError as error:
        return None, f"npu-smi cannot be started: {error.strerror}"
    count = parse_list(done.stdout)
    if count is None:
        words = (done.stderr or done.stdout).strip().splitlines()
        return (
            None,
            f"npu-smi said {words[0][:160]!r}" if words else f"npu-smi ended with status {done.returncode}",
        )
    return count, ""


def npus_here() -> int | None:
    return _asked()[0]


def check_npus(command: Sequence[str], dev: Path = Path("/dev")) -> Iterator[Line]:
    count, why = _asked()
    if count:
        yield Line("NPUs", "ok", f"npu-smi shows {count} NPU{'' if count == 1 else 's'}")
    elif count == 0:
        yield Line(
            "NPUs",
            "problem",
            "npu-smi is installed and shows no NPU",
            "docker: --device /dev/davinci0 ... --device /dev/davinci_manager; Kubernetes: resources.limits huawei.com/Ascend910",
            "launch-mismatch",
        )
    elif why:
        yield Line(
            "NPUs",
            "not checked",
            why,
            "run `npu-smi info` by hand; on a device that hangs, look at its driver's log",
        )
    elif any(dev.glob("davinci[0-9]*")):
        yield Line(
            "NPUs",
            "not checked",
            "NPUs have device nodes here, and there is no npu-smi to ask",
            "mount /usr/local/bin/npu-smi and /usr/local/Ascend/driver into the container",
        )
