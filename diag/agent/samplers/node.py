"""What is read once a node: GPUs, and networks. Each has a thread of its own: a sick GPU takes its time to be
given up, and a driver that holds up a reading of /sys holds up nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from diag.model import Record
from diag.sources.gpu.nvml import SOURCE as NVML_SOURCE
from diag.sources.gpu.nvml import NvmlReader, NvmlUnavailable
from diag.sources.gpu.nvml_health import HEALTH_SECONDS
from diag.sources.host import run as run_source
from diag.sources.network import infiniband, interfaces

__all__ = ["GpuWatch", "NetworkWatch"]

_SECONDS = 10.0
_COST_RATIO = 0.01  # of a core: a node of many virtual functions is read less often,
_LONGEST_SECONDS = 60.0  # but not so seldom that nobody sees a port go down


class GpuWatch:
    """Puts samples of all GPUs until it is stopped."""

    def __init__(self, host: str, put: Callable[[Record], None], seconds: float) -> None:
        self._host = host
        self._put = put
        self._seconds = seconds
        self._reader: NvmlReader | None = None
        self._closer = False
        self._stopped = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="gpus", daemon=True).start()

    def look_closer(self, closer: bool) -> None:
        """From the next sample on: with what runs on the SMs, or without again."""
        self._closer = closer

    def stop(self) -> None:
        self._stopped.set()

    def close(self) -> None:
        """End the helper that asks NVML."""
        self._stopped.set()
        if self._reader is not None:
            self._reader.end()

    def _run(self) -> None:
        self._reader = NvmlReader(self._seconds, health_seconds=HEALTH_SECONDS)
        told = ""
        while not self._stopped.is_set():
            try:
                sample = self._reader.latest(closer=self._closer)
                self._put(Record(NVML_SOURCE, sample, host=self._host, emitted=time.time()))
                if told:
                    told = ""
                    self._put(run_source.works("gpu", host=self._host))
            except NvmlUnavailable as error:
                if error.reason != told and not self._stopped.is_set():
                    told = error.reason
                    self._put(run_source.failed("gpu", error.reason, error.remedy, host=self._host))
            self._stopped.wait(self._seconds)
        self._reader.close()


class NetworkWatch:
    """Puts readings of RDMA ports and IP interfaces until it is stopped. `rank_pid` gives a living rank, or
    None for now."""

    def __init__(  # noqa: PLR0917 - one caller, the hub
        self,
        host: str,
        put: Callable[[Record], None],
        rank_pid: Callable[[], int | None],
        sampled: Callable[[str, float], None] = lambda source, seconds: None,
        ports: infiniband.InfinibandReader | None = None,
        net: interfaces.InterfacesReader | None = None,
        seconds: float = _SECONDS,
    ) -> None:
        self._host = host
        self._put = put
        self._rank_pid = rank_pid
        self._sampled = sampled
        self._ports = ports or infiniband.InfinibandReader()
        self._net = net or interfaces.InterfacesReader()
        self._seconds = seconds
        self._wake = threading.Event()
        self._stopped = False
        self._told: dict[str, str] = {}

    def start(self) -> None:
        threading.Thread(target=self._run, name="networks", daemon=True).start()

    def read_soon(self) -> None:
        """For a dump: the next reading is due now. Does not wait."""
        self._wake.set()

    def stop(self) -> None:
        self._stopped = True
        self._wake.set()

    def _run(self) -> None:
        while not self._stopped:
            began, spent = time.monotonic(), time.thread_time()
            self._read(infiniband.SOURCE, "RDMA ports", self._ports.sample)
            self._read(interfaces.SOURCE, "network interfaces", self._sample_interfaces)
            period = max(self._seconds, min((time.thread_time() - spent) / _COST_RATIO, _LONGEST_SECONDS))
            if self._wake.wait(max(0.0, began + period - time.monotonic())):
                self._wake.clear()

    def _sample_interfaces(self) -> Any:
        pid = self._rank_pid()
        if pid is not None:
            try:
                return self._net.sample(pid)
            except interfaces.InterfacesUnavailable:
                pass  # it ended meanwhile, or hides: ours are most often the same
        return self._net.sample()

    def _read(self, source: str, what: str, sample: Callable[[], Any]) -> None:
        """`what`: the name under which it is `not checked`."""
        began = time.monotonic()
        try:
            payload = sample()
        except (infiniband.InfinibandUnavailable, interfaces.InterfacesUnavailable) as error:
            self._failed(what, error.reason, error.remedy)
        except Exception as error:  # the outermost frame of a thread: the alternative is silence
            self._failed(what, f"bug in diag: {type(error).__name__}: {error}", "report it, please")
        else:
            self._sampled(source, time.monotonic() - began)
            self._put(Record(source, payload, host=self._host, emitted=time.time()))
            if self._told.pop(what, None) is not None:
                self._put(run_source.works(what, host=self._host))

    def _failed(self, what: str, reason: str, remedy: str) -> None:
        if self._told.get(what) != reason:
            self._told[what] = reason
            self._put(run_source.failed(what, reason, remedy, host=self._host))
