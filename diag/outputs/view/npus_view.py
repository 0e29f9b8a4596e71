"""The newest reading of each NPU, as a dump has it."""

from __future__ import annotations

from typing import Any

from diag.engine.engine import Engine
from diag.model.observations import NpuSample
from diag.outputs.view.network_view import picked
from diag.text.units import format_bytes, format_ratio, format_seconds


def npus_json(engine: Engine) -> dict[str, Any]:
    """`devices`, and `text`: a line for each. Empty lists where there are none."""
    known = [pair for _, pair in sorted(engine.job.machine.npus.items())]
    names = (
        "index", "npu", "chip", "name", "bus_id", "health", "core_utilization_ratio", "memory_used_bytes",
        "memory_total_bytes", "power_watts", "temperature_celsius",
    )  # fmt: skip
    return {
        "devices": [{"at": at, **picked(npu, *names)} for at, npu in known],
        "text": [_line(npu, engine.now - at) for at, npu in known],
    }


def _line(npu: NpuSample, age: float) -> str:
    cores = "?" if npu.core_utilization_ratio is None else format_ratio(npu.core_utilization_ratio)
    parts = [
        f"NPU {npu.index} ({npu.name}): AI cores {cores}",
        f"memory {format_bytes(npu.memory_used_bytes)} of {format_bytes(npu.memory_total_bytes)}",
        *([f"health {npu.health}"] if npu.health != "OK" else []),
        *([f"{format_seconds(age)} ago"] if age >= 1 else []),
    ]
    return ", ".join(parts)
