"""Whether the GPUs are fit for a job: memory that waits for a reset, lost links, and who else holds their memory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence

from diag.model import Payload, Record
from diag.observations import GpuHealth, GpuSample, Observation
from diag.preflight.line import Line
from diag.sources.nvml import SOURCE, NvmlReader, NvmlUnavailable, parse
from diag.sources.nvml_health import HEALTH_SECONDS

__all__ = ["check_gpus", "gpu_lines"]

_HEALTH_WAIT_SECONDS = 3.0  # 70 ms a GPU on an H200, eight of them one after the other
_MUCH = 0.1  # of a GPU's memory: a driver with persistence keeps less than 1 %


def check_gpus(command: Sequence[str]) -> Iterator[Line]:
    reader = NvmlReader(interval=0.0, health_seconds=HEALTH_SECONDS)
    try:
        sample = reader.latest(20.0)
        health = list(_health(reader, sample))
    except NvmlUnavailable as error:
        yield Line("GPUs", "not checked", error.reason, error.remedy)
        return
    finally:
        reader.close()
    yield Line("GPUs", "ok", f"NVML shows {len(sample['gpus'])} GPUs")
    yield from gpu_lines(parse(Record(SOURCE, {**sample, "health": health})), os.environ.get("CUDA_VISIBLE_DEVICES"))


def _health(reader: NvmlReader, sample: Payload) -> Iterator[Payload]:
    """It comes with one of the next samples: until all GPUs have told theirs."""
    told, until = 0, time.monotonic() + _HEALTH_WAIT_SECONDS
    while told < len(sample["gpus"]) and time.monotonic() < until:
        readings = sample.get("health", ())
        yield from readings
        told += len(readings)
        if told < len(sample["gpus"]):
            time.sleep(0.05)
            sample = reader.latest(5.0)


def gpu_lines(facts: Iterable[Observation], visible: str | None) -> Iterator[Line]:
    """Of the GPUs in `visible` (CUDA_VISIBLE_DEVICES, numbers or uuids; None: all)."""
    known = [fact for fact in facts if isinstance(fact, (GpuSample, GpuHealth)) and _is_visible(fact, visible)]
    samples = {fact.index: fact for fact in known if isinstance(fact, GpuSample)}
    healths = [fact for fact in known if isinstance(fact, GpuHealth)]
    for gpu in samples.values():
        yield from _held(gpu)
    for health in healths:
        yield from _sick(health)
        name = samples[health.index].name if health.index in samples else ""
        alike = [one for one in healths if one.index not in samples or samples[one.index].name == name]
        up, most = _up(health), max(map(_up, alike))
        if up < most:
            yield Line(f"GPU {health.index}", "problem", f"{up} of its NVLinks are up, {most} on others of its kind",
                       "see `nvidia-smi nvlink -s` and the fabric manager; reset the node's GPUs or take it out", "nvlink-fault")


def _is_visible(fact: GpuSample | GpuHealth, visible: str | None) -> bool:
    words = [word.strip() for word in (visible or "").split(",") if word.strip()]
    return not words or any(word == str(fact.index) or (not word.isdigit() and fact.uuid.startswith(word)) for word in words)


def _held(gpu: GpuSample) -> Iterator[Line]:
    used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
    if used is None or not total or used < _MUCH * total:
        return
    who = ", ".join(str(pid) for pid in gpu.pids[:8])
    yield Line(
        f"GPU {gpu.index}", "problem", f"{used / 2**30:.1f} GiB of its {total / 2**30:.1f} GiB are in use before the job starts"
        + (f", by process {who}" if who else "; no process is shown (another container, or one that is gone)"),
        "end what an earlier run left behind, or choose other GPUs with CUDA_VISIBLE_DEVICES", "cuda-oom",
    )


def _sick(health: GpuHealth) -> Iterator[Line]:
    what = f"GPU {health.index}"
    if health.remap_failed:
        yield Line(what, "problem", "a bad memory row could not be mapped out", "the GPU has to be replaced", "ecc-error")
    elif health.remap_pending or health.retired_pages_pending:
        yield Line(what, "problem", "a bad memory row waits for a reset to be mapped out",
                   f"end all processes on it, then `nvidia-smi --gpu-reset -i {health.index}`, or reboot", "ecc-error")
    elif health.recovery_action not in ("", "none"):
        yield Line(what, "problem", f"its driver asks for: {health.recovery_action.replace('_', ' ')}",
                   "do so before the job starts; `dmesg` has the Xid that led to it", "gpu-fault")
    if health.ecc_enabled is False:
        yield Line(what, "note", "ECC is off: memory errors go unseen", "`nvidia-smi -e 1` and a reset of the GPU turn it on")


def _up(health: GpuHealth) -> int:
    return sum(bool(link.active) for link in health.nvlinks)
