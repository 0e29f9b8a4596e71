"""What NVML says seldom or by itself: error counters, links and limits of each GPU once a minute, and Xids as
events.

The first half runs in the helper process of `nvml`, in threads of its own: a GPU that does not answer here
holds up no sample.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from diag.model import Payload, Record
from diag.model.observations import GpuHealth, NvlinkSeen, Observation, Unparsed, XidReported

HEALTH_SECONDS = 60.0  # gpud and dcgm-exporter read these each 30-60 s
_EVENT_WAIT_MS = 1000
_EVENT_RETRY_SECONDS = 10.0
_MOST_LINKS = 36  # NVML_NVLINK_MAX_LINKS of pynvml 13; H200 has 18
_MOST_WAITING = 1000


class HealthWatch:
    """Reads all GPUs each `seconds`, and waits for events; `take` gives what came since the last time."""

    def __init__(self, nvml: Any, count: int, seconds: float) -> None:
        self._nvml = nvml
        self._count = count
        self._seconds = seconds
        self._lock = threading.Lock()
        self._health: list[Payload] = []
        self._events: list[Payload] = []
        self._refused: set[tuple[Any, ...]] = set()  # (GPU, call, arguments) that the driver does not have

    def start(self) -> None:
        threading.Thread(target=self._read_on, name="health", daemon=True).start()
        threading.Thread(target=self._wait_on, name="events", daemon=True).start()

    def take(self) -> tuple[list[Payload], list[Payload]]:
        with self._lock:
            taken = self._health, self._events
            self._health, self._events = [], []
        return taken

    # -- health ---------------------------------------------------------------------------------------------

    def _read_on(self) -> None:
        while True:
            for index in range(self._count):
                reading = self._read(index)
                with self._lock:
                    self._health = [*self._health[-_MOST_WAITING:], reading]
            time.sleep(self._seconds)

    def _read(self, index: int) -> Payload:
        """One GPU in NVML's own units; None for what it does not have."""
        nvml = self._nvml
        try:
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:
            return {"index": index, "t": time.time(), "error": str(error)}

        def ask(name: str, *args: Any) -> Any:
            return self._ask((index, name, *args), getattr(nvml, "nvmlDeviceGet" + name, None), gpu, *args)

        pci = ask("PciInfo")
        return {
            "index": index,
            "t": time.time(),
            "uuid": _text(ask("UUID")),
            "pci": _text(getattr(pci, "busId", None)),
            "ecc_mode": ask("EccMode"),
            "ecc": {
                f"{error}_{counter}": ask("TotalEccErrors", kind, span)
                for kind, error in enumerate(("corrected", "uncorrected"))
                for span, counter in enumerate(("volatile", "aggregate"))
            },
            "remapped": ask("RemappedRows"),
            "retired_pending": ask("RetiredPagesPendingStatus"),
            "violation_ns": {
                name: getattr(ask("ViolationStatus", policy), "violationTime", None)
                for name, policy in (
                    ("power", nvml.NVML_PERF_POLICY_POWER),
                    ("thermal", nvml.NVML_PERF_POLICY_THERMAL),
                )
            },
            "slowdown_temp": ask("TemperatureThreshold", nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
            "memory_temp": self._field(gpu, index, "NVML_FI_DEV_MEMORY_TEMP"),
            "max_sm_clock_mhz": ask("MaxClockInfo", nvml.NVML_CLOCK_SM),
            "pcie": {
                "generation": ask("CurrPcieLinkGeneration"),
                "max_generation": ask("MaxPcieLinkGeneration"),
                "width": ask("CurrPcieLinkWidth"),
                "max_width": ask("MaxPcieLinkWidth"),
                "replays": ask("PcieReplayCounter"),
            },
            "nvlinks": list(self._links(ask)),
            "recovery": self._field(gpu, index, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION"),
        }

    def _links(self, ask: Callable[..., Any]) -> Iterator[list[Any]]:
        """[link, active, replays, recoveries, CRC errors of flits]; ends at the first link that the GPU does
        not have."""
        for link in range(_MOST_LINKS):
            active = ask("NvLinkState", link)
            if active is None:
                return
            yield [link, active, *(ask("NvLinkErrorCounter", link, counter) for counter in range(3))]

    def _field(self, gpu: Any, index: int, name: str) -> Any:
        """One field value; a status of its own tells whether the GPU has it."""
        field = getattr(self._nvml, name, None)  # pynvml of before it has no such name
        if field is None or (index, name) in self._refused:
            return None
        answers = self._ask((index, name), self._nvml.nvmlDeviceGetFieldValues, gpu, [field])
        if answers is None:
            return None
        if answers[0].nvmlReturn != 0:
            self._refused.add((index, name))
            return None
        kinds = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
        kind = answers[0].valueType
        return getattr(answers[0].value, kinds[kind]) if kind < len(kinds) else None

    def _ask(self, key: tuple[Any, ...], question: Callable[..., Any] | None, *args: Any) -> Any:
        nvml = self._nvml
        if question is None or key in self._refused:
            return None
        try:
            return question(*args)
        except nvml.NVMLError as error:
            # the last: a link that the GPU does not have
            if error.value in (
                nvml.NVML_ERROR_NOT_SUPPORTED,
                nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
                nvml.NVML_ERROR_NO_PERMISSION,
                nvml.NVML_ERROR_INVALID_ARGUMENT,
            ):
                self._refused.add(key)
            return None

    # -- events ---------------------------------------------------------------------------------------------

    def _wait_on(self) -> None:
        """Xids as NVML tells them, for where the kernel log may not be read. It needs no right of its own."""
        nvml = self._nvml
        while True:
            try:
                events = nvml.nvmlEventSetCreate()
                for index in range(self._count):
                    gpu = nvml.nvmlDeviceGetHandleByIndex(index)
                    nvml.nvmlDeviceRegisterEvents(gpu, nvml.nvmlEventTypeXidCriticalError, events)
                while True:
                    self._wait(events)
            except nvml.NVMLError as error:
                if error.value == nvml.NVML_ERROR_NOT_SUPPORTED:
                    return  # vGPU, some desktop cards
                time.sleep(_EVENT_RETRY_SECONDS)

    def _wait(self, events: Any) -> None:
        nvml = self._nvml
        try:
            data = nvml.nvmlEventSetWait(events, _EVENT_WAIT_MS)
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_TIMEOUT:
                return
            raise
        pci = self._ask((), nvml.nvmlDeviceGetPciInfo, data.device)
        event = {"t": time.time(), "pci": _text(getattr(pci, "busId", None)), "xid": data.eventData}
        with self._lock:
            self._events = [*self._events[-_MOST_WAITING:], event]


def _text(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


# --- understanding it


_RECOVERY = ("none", "reset", "reboot", "drain_p2p", "drain_reset", "recover_imex", "bus_reset", "reboot")


def parse_health(record: Record, readings: Any) -> Iterator[Observation]:
    for reading in readings if isinstance(readings, list) else ():
        if not isinstance(reading, Mapping) or not isinstance(reading.get("index"), int):
            yield Unparsed(record.rank, "nvml", "no reading of a GPU's health", str(reading)[:200])
        elif "error" in reading:
            yield Unparsed(
                record.rank,
                "nvml",
                f"health of GPU {reading['index']}: {reading['error']}"[:200],
                str(reading)[:200],
            )
        else:
            yield _gpu_health(record, reading)


def parse_events(record: Record, events: Any) -> Iterator[Observation]:
    for event in events if isinstance(events, list) else ():
        xid = _whole(event, "xid")
        if xid is None or xid > 9999:
            yield Unparsed(record.rank, "nvml", "no event of a GPU", str(event)[:200])
        else:
            bus = str(event.get("pci") or "")[:100]
            yield XidReported(
                record.rank, bus, xid, None, f"NVML: Xid {xid} of the GPU at {bus or '?'}", "nvml"
            )


def _gpu_health(record: Record, reading: Mapping[str, Any]) -> GpuHealth:
    ecc, pcie, violation = (_mapping(reading.get(name)) for name in ("ecc", "pcie", "violation_ns"))
    remapped = reading.get("remapped")
    rows = remapped if isinstance(remapped, list) and len(remapped) >= 4 else [None] * 4
    mode = reading.get("ecc_mode")
    clock, recovery = _whole(reading, "max_sm_clock_mhz"), _whole(reading, "recovery")
    power, thermal = _whole(violation, "power"), _whole(violation, "thermal")
    slowdown, memory = _whole(reading, "slowdown_temp"), _whole(reading, "memory_temp")
    return GpuHealth(
        rank=record.rank,
        index=reading["index"],
        uuid=str(reading.get("uuid") or "")[:100],
        pci_bus_id=str(reading.get("pci") or "")[:100],
        ecc_enabled=bool(mode[0]) if isinstance(mode, list) and mode else None,
        ecc_corrected_volatile=_whole(ecc, "corrected_volatile"),
        ecc_uncorrected_volatile=_whole(ecc, "uncorrected_volatile"),
        ecc_corrected_aggregate=_whole(ecc, "corrected_aggregate"),
        ecc_uncorrected_aggregate=_whole(ecc, "uncorrected_aggregate"),
        remapped_rows_corrected=_count(rows[0]),
        remapped_rows_uncorrected=_count(rows[1]),
        remap_pending=_flag(rows[2]),
        remap_failed=_flag(rows[3]),
        retired_pages_pending=_flag(reading.get("retired_pending")),
        thermal_violation_seconds=None if thermal is None else thermal / 1e9,
        power_violation_seconds=None if power is None else power / 1e9,
        slowdown_celsius=None if slowdown is None else float(slowdown),
        memory_celsius=float(memory) if memory else None,
        max_sm_clock_hertz=None if clock is None else clock * 1_000_000,
        pcie_generation=_whole(pcie, "generation"),
        pcie_max_generation=_whole(pcie, "max_generation"),
        pcie_width=_whole(pcie, "width"),
        pcie_max_width=_whole(pcie, "max_width"),
        pcie_replays=_whole(pcie, "replays"),
        nvlinks=tuple(_links(reading.get("nvlinks"))),
        recovery_action=_RECOVERY[recovery] if recovery is not None and recovery < len(_RECOVERY) else "",
    )


def _links(rows: Any) -> Iterator[NvlinkSeen]:
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, list) and len(row) == 5 and isinstance(row[0], int):
            yield NvlinkSeen(row[0], _flag(row[1]), _count(row[4]), _count(row[2]), _count(row[3]))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _whole(reading: Any, name: str) -> int | None:
    return _count(reading.get(name)) if isinstance(reading, Mapping) else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and 0 <= value < 1 << 63 else None


def _flag(value: Any) -> bool | None:
    number = _count(value)
    return None if number is None else bool(number)
