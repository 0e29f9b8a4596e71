"""Whether the GPUs are fit for a job: memory that waits for a reset, lost links, and who else holds their
memory."""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from diag.launch.launchers import redacted
from diag.launch.launchers.command.shell_script import is_computed
from diag.model import Payload, Record
from diag.model.observations import GpuHealth, GpuSample, Observation
from diag.preflight.launch_facts import launch_facts
from diag.preflight.line import Line
from diag.sources.gpu.nvml import SOURCE, NvmlReader, NvmlUnavailable, parse
from diag.sources.gpu.nvml_health import HEALTH_SECONDS
from diag.sources.host.process_tree import read_raw
from diag.text.units import format_bytes

_HEALTH_WAIT_SECONDS = 3.0  # 70 ms a GPU on an H200, eight of them one after the other
_MOST_NAMED = 8  # processes of one GPU
_MOST_LETTERS = 80  # of a command line
_MUCH = 0.1  # of a GPU's memory: a driver with persistence keeps less than 1 %


def check_gpus(command: Sequence[str]) -> Iterator[Line]:
    facts, failed = _look()
    if failed is not None:
        yield Line("GPUs", "not checked", failed.reason, failed.remedy)
        return
    yield from count_lines(facts)
    environment = launch_facts(command, os.environ).environment
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    yield from gpu_lines(facts, None if is_computed(visible or "") else visible, holder_of)


def count_lines(facts: Sequence[Observation]) -> Iterator[Line]:
    """How many there are, and of which nothing was heard."""
    samples = [fact for fact in facts if isinstance(fact, GpuSample)]
    if not samples:
        yield Line(
            "GPUs",
            "not checked",
            "NVML shows no GPU",
            "docker --gpus all; Kubernetes: resources.limits nvidia.com/gpu",
        )
        return
    told = {fact.index for fact in facts if isinstance(fact, GpuHealth)}
    silent = [fact.index for fact in samples if fact.index not in told]
    blind = [fact.index for fact in samples if fact.memory_used_bytes is None or not fact.memory_total_bytes]
    for numbers, what in ((silent, "bad rows, NVLinks and ECC"), (blind, "memory in use")):
        if numbers:
            said = f"{what} of GPU {', '.join(map(str, numbers))}: NVML did not say"
            yield Line("GPUs", "not checked", said, "nvidia-smi -q")
    yield Line("GPUs", "ok", f"NVML shows {len(samples)} GPUs")


@functools.lru_cache(maxsize=1)
def _look() -> tuple[tuple[Observation, ...], NvmlUnavailable | None]:
    """Once: the start of NVML alone may take seconds."""
    reader = NvmlReader(interval=0.0, health_seconds=HEALTH_SECONDS)
    try:
        sample = reader.latest(20.0)
        health = list(_health(reader, sample))
    except NvmlUnavailable as error:
        return (), error
    finally:
        reader.close()
    return tuple(parse(Record(SOURCE, {**sample, "health": health}))), None


def uuids_here(
    proc: Path = Path("/proc/driver/nvidia/gpus"), dev: Path = Path("/dev")
) -> tuple[str, ...] | None:
    """Of the GPUs here, in NVML's order; by the driver's own files where NVML cannot be asked. None where
    neither is there."""
    facts, failed = _look()
    if failed is None:
        return tuple(
            uuid
            for _, uuid in sorted((fact.index, fact.uuid) for fact in facts if isinstance(fact, GpuSample))
        )
    found = []
    # /proc/driver/nvidia/gpus/0000:1b:00.0/information, driver 570:
    #   GPU UUID: \t GPU-5c2e1f4a-...
    for path in sorted(proc.glob("*/information")):
        text = (read_raw(str(path)) or b"").decode(errors="replace")
        uuid = re.search(r"^GPU UUID:[ \t]{1,20}(GPU-[0-9a-f?-]{1,60})", text, re.MULTILINE)
        found.append(uuid[1] if uuid else "")
    nodes = sum(1 for path in dev.glob("nvidia[0-9]*") if path.name[6:].isdecimal())
    return tuple(found[:nodes]) if found and nodes else None


def memory_of_processes() -> dict[int, int]:
    """Bytes of GPU memory by pid, as NVML tells: pids of the host's own namespace."""
    held: dict[int, int] = {}
    for fact in _look()[0]:
        for pid, size in fact.process_memory if isinstance(fact, GpuSample) else ():
            held[pid] = held.get(pid, 0) + size
    return held


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


def gpu_lines(
    facts: Iterable[Observation], visible: str | None, who: Callable[[int], str] = "process {}".format
) -> Iterator[Line]:
    """Of the GPUs in `visible` (CUDA_VISIBLE_DEVICES, numbers or uuids; None: all). `who` says what a pid of
    NVML is."""
    known = [
        fact for fact in facts if isinstance(fact, (GpuSample, GpuHealth)) and _is_visible(fact, visible)
    ]
    samples = {fact.index: fact for fact in known if isinstance(fact, GpuSample)}
    healths = [fact for fact in known if isinstance(fact, GpuHealth)]
    for gpu in samples.values():
        yield from _held(gpu, who)
    for health in healths:
        yield from _sick(health)
        name = samples[health.index].name if health.index in samples else ""
        alike = [one for one in healths if one.index not in samples or samples[one.index].name == name]
        up, most = _up(health), max(map(_up, alike))
        if up < most:
            yield Line(
                f"GPU {health.index}",
                "problem",
                f"{up} of its NVLinks are up, {most} on others of its kind",
                "see `nvidia-smi nvlink -s` and the fabric manager; reset the node's GPUs or take it out",
                "nvlink-fault",
            )


def _is_visible(fact: GpuSample | GpuHealth, visible: str | None) -> bool:
    words = [word.strip() for word in (visible or "").split(",") if word.strip()]
    return not words or any(
        word == str(fact.index) or (not word.isdigit() and fact.uuid.startswith(word)) for word in words
    )


def _held(gpu: GpuSample, who: Callable[[int], str]) -> Iterator[Line]:
    used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
    if used is None or not total or used < _MUCH * total:
        return
    sizes = dict(gpu.process_memory)
    names = [
        who(pid) + (f" with {format_bytes(sizes[pid])}" if sizes.get(pid) else "")
        for pid in gpu.pids[:_MOST_NAMED]
    ]
    if len(gpu.pids) > _MOST_NAMED:
        names.append(f"{len(gpu.pids) - _MOST_NAMED} more")
    yield Line(
        f"GPU {gpu.index}",
        "problem",
        f"{format_bytes(used)} of its {format_bytes(total)} are in use before the job starts"
        + (
            f", by {', '.join(names)}"
            if names
            else "; no process is shown (another container, or one that is gone)"
        ),
        "end what an earlier run left behind, or choose other GPUs with CUDA_VISIBLE_DEVICES",
        "cuda-oom",
    )


def holder_of(pid: int, proc: Path = Path("/proc")) -> str:
    """A pid as NVML tells it, which is the host's: in a container it is another process, or none."""
    if not names_host_pids(proc):
        return f"process {pid} of the host (this container has pids of its own: look at it from outside)"
    command = (read_raw(f"{proc}/{pid}/cmdline") or b"").replace(b"\0", b" ").decode(errors="replace").strip()
    if not command:
        return f"process {pid}"
    said = " ".join(redacted(command.split()))
    return f"process {pid} ({said[:_MOST_LETTERS]}{'...' if len(said) > _MOST_LETTERS else ''})"


def names_host_pids(proc: Path = Path("/proc")) -> bool:
    """Whether pids here are those of the host: linux/proc_ns.h, PROC_PID_INIT_INO."""
    try:
        return os.readlink(proc / "self/ns/pid") == "pid:[4026531836]"
    except OSError:
        return False


def _sick(health: GpuHealth) -> Iterator[Line]:
    what = f"GPU {health.index}"
    if health.remap_failed:
        yield Line(
            what,
            "problem",
            "a bad memory row could not be mapped out",
            "the GPU has to be replaced",
            "ecc-error",
        )
    elif health.remap_pending or health.retired_pages_pending:
        yield Line(
            what,
            "problem",
            "a bad memory row waits for a reset to be mapped out",
            f"end all processes on it, then `nvidia-smi --gpu-reset -i {health.index}`, or reboot",
            "ecc-error",
        )
    elif health.recovery_action not in ("", "none"):
        yield Line(
            what,
            "problem",
            f"its driver asks for: {health.recovery_action.replace('_', ' ')}",
            "do so before the job starts; `dmesg` has the Xid that led to it",
            "gpu-fault",
        )
    if health.ecc_enabled is False:
        yield Line(
            what,
            "note",
            "ECC is off: memory errors go unseen",
            "`nvidia-smi -e 1` and a reset of the GPU turn it on",
        )


def _up(health: GpuHealth) -> int:
    return sum(bool(link.active) for link in health.nvlinks)
