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
from diag.sources.gpu.nvml_gpm import text_of
from diag.sources.payload import mapping, rows, scaled, whole

HEALTH_SECONDS = 60.0  # gpud and dcgm-exporter read these each 30-60 s
_EVENT_WAIT_MS = 1000
_EVENT_RETRY_SECONDS = 10.0
_MOST_LINKS = 36  # NVML_NVLINK_MAX_LINKS of pynvml 13; H200 has 18
_MOST_WAITING = 1000
# As nvmlDeviceGetTotalEccErrors counts them: by kind of error, then volatile and aggregate.
_ECC = ("corrected_volatile", "corrected_aggregate", "uncorrected_volatile", "uncorrected_aggregate")
_PCIE = {
    "generation": "CurrPcieLinkGeneration",
    "max_generation": "MaxPcieLinkGeneration",
    "width": "CurrPcieLinkWidth",
    "max_width": "MaxPcieLinkWidth",
    "replays": "PcieReplayCounter",
}


class HealthWatch:
    """Reads all GPUs every `seconds`, and waits for events; `take` returns what has arrived since the last call."""

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
            "uuid": text_of(ask("UUID")),
            "pci": text_of(getattr(pci, "busId", None)),
            "ecc_mode": ask("EccMode"),
            "ecc": {name: ask("TotalEccErrors", *divmod(number, 2)) for number, name in enumerate(_ECC)},
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
            "pcie": {name: ask(call) for name, call in _PCIE.items()},
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
        """One field value; a status of its own says whether the GPU has it."""
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
        """Xids as NVML reports them, for where the kernel log may not be read. It needs no right of its own."""
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
        event = {"t": time.time(), "pci": text_of(getattr(pci, "busId", None)), "xid": data.eventData}
        with self._lock:
            self._events = [*self._events[-_MOST_WAITING:], event]


# --- understanding it


_RECOVERY = ("none", "reset", "reboot", "drain_p2p", "drain_reset", "recover_imex", "bus_reset", "reboot")


def parse_health(record: Record, readings: Any) -> Iterator[Observation]:
    for reading in readings if isinstance(readings, list) else ():
        if not isinstance(reading, Mapping) or not isinstance(reading.get("index"), int):
            yield Unparsed(record.rank, "nvml", "no reading of a GPU's health", str(reading)[:200])
        elif "error" in reading:
            reason = f"health of GPU {reading['index']}: {reading['error']}"[:200]
            yield Unparsed(record.rank, "nvml", reason, str(reading)[:200])
        else:
            yield _gpu_health(record, reading)


def parse_events(record: Record, events: Any) -> Iterator[Observation]:
    for event in events if isinstance(events, list) else ():
        xid = whole(mapping(event).get("xid"), 10_000)
        if xid is None:
            yield Unparsed(record.rank, "nvml", "no event of a GPU", str(event)[:200])
        else:
            bus = str(event.get("pci") or "")[:100]
            yield XidReported(
                record.rank, bus, xid, None, f"NVML: Xid {xid} of the GPU at {bus or '?'}", "nvml"
            )


def _gpu_health(record: Record, reading: Mapping[str, Any]) -> GpuHealth:
    ecc, pcie, violation = (mapping(reading.get(name)) for name in ("ecc", "pcie", "violation_ns"))
    remapped, mode, memory = (
        reading.get("remapped"),
        reading.get("ecc_mode"),
        whole(reading.get("memory_temp")),
    )
    remaps = remapped if isinstance(remapped, list) and len(remapped) >= 4 else [None] * 4
    recovery = whole(reading.get("recovery"), len(_RECOVERY))
    return GpuHealth(
        rank=record.rank,
        index=reading["index"],
        uuid=str(reading.get("uuid") or "")[:100],
        pci_bus_id=str(reading.get("pci") or "")[:100],
        ecc_enabled=bool(mode[0]) if isinstance(mode, list) and mode else None,
        **{f"ecc_{name}": whole(ecc.get(name)) for name in _ECC},
        remapped_rows_corrected=whole(remaps[0]),
        remapped_rows_uncorrected=whole(remaps[1]),
        remap_pending=_flag(remaps[2]),
        remap_failed=_flag(remaps[3]),
        retired_pages_pending=_flag(reading.get("retired_pending")),
        thermal_violation_seconds=scaled(violation.get("thermal"), 1e-9),
        power_violation_seconds=scaled(violation.get("power"), 1e-9),
        slowdown_celsius=scaled(reading.get("slowdown_temp"), 1.0),
        memory_celsius=float(memory) if memory else None,
        max_sm_clock_hertz=scaled(reading.get("max_sm_clock_mhz"), 1_000_000),
        **{f"pcie_{name}": whole(pcie.get(name)) for name in _PCIE},
        nvlinks=tuple(
            NvlinkSeen(link, _flag(active), whole(errors), whole(replays), whole(recoveries))
            for link, active, replays, recoveries, errors in rows(reading.get("nvlinks"), int, *[object] * 4)
        ),
        recovery_action="" if recovery is None else _RECOVERY[recovery],
    )


def _flag(value: Any) -> bool | None:
    number = whole(value)
    return None if number is None else bool(number)
