"""The process that asks NVML for `diag.sources.gpu.nvml`: each byte on stdin asks for a sample, one JSON line a GPU
is the answer.

Imports little before it knows that there is an NVML to ask.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import queue
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from diag.sources.gpu.nvml_gpm import Gpm, text_of

if TYPE_CHECKING:
    from diag.model import Payload

SAMPLE, CLOSER = b"\n", b"+"  # what is asked
SICK = "check `nvidia-smi` and the kernel log for Xid lines on this node"


def main() -> int:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash here is expected and is no news
    answers = os.dup(1)
    os.dup2(2, 1)  # what the library prints must not get between our lines
    for message in _talk(float(sys.argv[1]) if len(sys.argv) > 1 else 0.0):
        os.write(answers, json.dumps(message).encode() + b"\n")
    return 0


def _talk(health_seconds: float) -> Iterator[Payload]:
    """The helper's side: ready or failed, then on each question a message for each GPU, and an end."""
    asked: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    # A thread of its own, so that the helper ends with its parent also while an NVML call hangs.
    threading.Thread(target=_listen, args=(asked,), daemon=True).start()
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        yield _failed(
            "no NVML library", "on a machine with an NVIDIA driver, give the container the utility capability"
        )
        return
    # not where there is no NVML: each run and each `diag doctor` asks
    from diag.sources.gpu.nvml_health import HealthWatch

    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        yield _failed("the Python module pynvml is missing", "pip install nvidia-ml-py")
        return
    try:
        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        yield _failed(f"NVML cannot start: {error}", SICK, final=False)
        return
    yield {"driver": _ask(nvml, nvml.nvmlSystemGetDriverVersion), "count": count}
    watch = HealthWatch(nvml, count, health_seconds)
    if health_seconds:
        watch.start()
    fixed: dict[int, dict[str, Any]] = {}
    gpm = Gpm(nvml)
    while True:
        closer = asked.get() == CLOSER
        if not closer:
            gpm.forget()
        for index in range(count):
            yield {"gpu": _sample(nvml, index, fixed, gpm if closer else None)}
        health, events = watch.take()
        yield {"end": count, "health": health, "events": events}


def _listen(asked: queue.SimpleQueue[bytes]) -> None:
    while question := os.read(0, 1):
        asked.put(question)
    os._exit(0)


def _failed(reason: str, remedy: str, final: bool = True) -> Payload:
    return {"failed": reason, "remedy": remedy, "final": final}


def _ask(nvml: Any, question: Callable[..., Any], *args: Any) -> Any:
    try:
        answer = question(*args)
    except nvml.NVMLError:
        return None
    return text_of(answer)


def _sample(nvml: Any, index: int, fixed: dict[int, dict[str, Any]], gpm: Gpm | None) -> Payload:
    """One GPU in NVML's own units; None for each field that the driver or the GPU does not have, GPM's are
    then left out."""
    try:
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        return {"index": index, "error": str(error)}
    if index not in fixed:
        fixed[index] = {
            "index": index,
            "uuid": _ask(nvml, nvml.nvmlDeviceGetUUID, gpu),
            "pci": text_of(getattr(_ask(nvml, nvml.nvmlDeviceGetPciInfo, gpu), "busId", None)),
            "name": _ask(nvml, nvml.nvmlDeviceGetName, gpu),
        }
    memory = _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, gpu)
    processes = _ask(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, gpu) or ()
    return {
        **fixed[index],
        "util": getattr(_ask(nvml, nvml.nvmlDeviceGetUtilizationRates, gpu), "gpu", None),
        "mem_used": getattr(memory, "used", None),
        "mem_total": getattr(memory, "total", None),
        "power_mw": _ask(nvml, nvml.nvmlDeviceGetPowerUsage, gpu),
        "power_limit_mw": _ask(nvml, nvml.nvmlDeviceGetEnforcedPowerLimit, gpu),
        "sm_clock_mhz": _ask(nvml, nvml.nvmlDeviceGetClockInfo, gpu, nvml.NVML_CLOCK_SM),
        "temp": _ask(nvml, nvml.nvmlDeviceGetTemperature, gpu, nvml.NVML_TEMPERATURE_GPU),
        # called EventReasons since CUDA 12.2; the old name is in all drivers
        "throttle": _ask(nvml, nvml.nvmlDeviceGetCurrentClocksThrottleReasons, gpu),
        "pids": [process.pid for process in processes],
        "pid_mem": [[process.pid, process.usedGpuMemory] for process in processes],
        **(gpm.figures(index, gpu) if gpm is not None else {}),
    }


if __name__ == "__main__":
    sys.exit(main())
