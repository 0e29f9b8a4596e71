"""Whether the GPUs and NPUs are fit for a job: memory that waits for a reset, lost links, and who else holds their
memory."""

from __future__ import annotations

import functools
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from diag.launch.launchers.command.shell_script import is_computed
from diag.launch.launchers.secrets import redacted
from diag.model import Payload, Record
from diag.model.observations import GpuHealth, GpuSample, Observation
from diag.preflight.launch_facts import LaunchFacts
from diag.preflight.line import Line, line
from diag.preflight.run_command import CommandFailed, run_command
from diag.sources.gpu.nvml import SOURCE, NvmlReader, parse
from diag.sources.gpu.nvml_health import HEALTH_SECONDS
from diag.sources.host.process_tree import read_raw
from diag.text.errors import SourceUnavailable
from diag.text.units import format_bytes, format_count

_HEALTH_WAIT_SECONDS = 3.0  # 70 ms a GPU on an H200, eight of them one after the other
_MOST_NAMED = 8  # processes of one GPU
_MOST_LETTERS = 80  # of a command line
_MUCH = 0.1  # of a GPU's memory: a driver with persistence keeps less than 1 %


def check_gpus(launch: LaunchFacts) -> Iterator[Line]:
    facts, failed = _look()
    if failed is not None:
        yield line("gpus.unavailable", error=failed)
        return
    yield from count_lines(facts)
    visible = launch.environment.get("CUDA_VISIBLE_DEVICES")
    yield from gpu_lines(facts, None if is_computed(visible or "") else visible, holder_of)


def count_lines(facts: Sequence[Observation]) -> Iterator[Line]:
    """How many there are, and which of them report nothing."""
    samples = [fact for fact in facts if isinstance(fact, GpuSample)]
    if not samples:
        yield line("gpus.none")
        return
    healthy = {fact.index for fact in facts if isinstance(fact, GpuHealth)}
    silent = [fact.index for fact in samples if fact.index not in healthy]
    blind = [fact.index for fact in samples if fact.memory_used_bytes is None or not fact.memory_total_bytes]
    for numbers, what in ((silent, "bad rows, NVLinks and ECC"), (blind, "memory in use")):
        if numbers:
            yield line("gpus.silent", what=what, numbers=", ".join(map(str, numbers)))
    yield line("gpus.shown", count=len(samples))


@functools.lru_cache(maxsize=1)
def _look() -> tuple[tuple[Observation, ...], SourceUnavailable | None]:
    """Once: the start of NVML alone may take seconds."""
    reader = NvmlReader(interval=0.0, health_seconds=HEALTH_SECONDS)
    try:
        sample = reader.latest(20.0)
        health = list(_health(reader, sample))
    except SourceUnavailable as error:
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
        seen = sorted((fact.index, fact.uuid) for fact in facts if isinstance(fact, GpuSample))
        return tuple(uuid for _, uuid in seen)
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
    """Bytes of GPU memory by pid, as NVML reports it: pids of the host's own namespace."""
    held: dict[int, int] = {}
    for fact in _look()[0]:
        for pid, size in fact.process_memory if isinstance(fact, GpuSample) else ():
            held[pid] = held.get(pid, 0) + size
    return held


def _health(reader: NvmlReader, sample: Payload) -> Iterator[Payload]:
    """It comes with one of the next samples: until all GPUs have reported theirs."""
    heard, until = 0, time.monotonic() + _HEALTH_WAIT_SECONDS
    while heard < len(sample["gpus"]) and time.monotonic() < until:
        readings = sample.get("health", ())
        yield from readings
        heard += len(readings)
        if heard < len(sample["gpus"]):
            time.sleep(0.05)
            sample = reader.latest(5.0)


def gpu_lines(
    facts: Iterable[Observation], visible: str | None, who: Callable[[int], str] = "process {}".format
) -> Iterator[Line]:
    """Of the GPUs in `visible` (CUDA_VISIBLE_DEVICES, numbers or uuids; None: all). `who` names a pid of
    NVML."""
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
            yield line("gpus.links-down", index=health.index, up=up, most=most)


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
    unseen = "; no process is shown (another container, or one that is gone)"
    by = f", by {', '.join(names)}" if names else unseen
    yield line("gpus.in-use", index=gpu.index, used=format_bytes(used), total=format_bytes(total), by=by)


def holder_of(pid: int, proc: Path = Path("/proc")) -> str:
    """A pid as NVML reports it, which is the host's: in a container it is another process, or none."""
    if not names_host_pids(proc):
        return f"process {pid} of the host (this container has pids of its own: see it from outside)"
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
    index = health.index
    if health.remap_failed:
        yield line("gpus.remap-failed", index=index)
    elif health.remap_pending or health.retired_pages_pending:
        yield line("gpus.remap-pending", index=index)
    elif health.recovery_action not in ("", "none"):
        yield line("gpus.recovery", index=index, action=health.recovery_action.replace("_", " "))
    if health.ecc_enabled is False:
        yield line("gpus.ecc-off", index=index)


def _up(health: GpuHealth) -> int:
    return sum(bool(link.active) for link in health.nvlinks)


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
    status = f"npu-smi ended with status {done.returncode}"
    return None, f"npu-smi printed {printed[0][:160]!r}" if printed else status


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
