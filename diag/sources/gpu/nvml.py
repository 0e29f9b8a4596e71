"""GPUs through NVML (the official `pynvml` module), asked by a helper process that can be killed.

A sick GPU makes NVML calls block forever in the kernel, or crash; the helper (`nvml_helper`) is then abandoned
and the agent goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from diag.launch import isolated
from diag.model import Payload, Record
from diag.model.observations import GpuSample, Observation, Unparsed
from diag.sources.gpu.nvml_health import parse_events, parse_health
from diag.sources.gpu.nvml_helper import CLOSER, SAMPLE, SICK
from diag.sources.payload import rows, scaled, whole
from diag.text.errors import SourceUnavailable
from diag.text.units import format_seconds

SOURCE = "nvml"

BACKOFF_SECONDS = 10.0  # doubled at each failure in a row, up to the next; ours
LONGEST_BACKOFF_SECONDS = 300.0
# SMs of compute capability 9.0 to 12.x have 128 FP32 lanes each (CUDA C++ Programming Guide); GPM is of
# Hopper and newer.
_CORES_PER_SM = 128
START_SECONDS = 60.0  # nvmlInit wakes all GPUs: some seconds each without the persistence daemon


class NvmlReader:
    """Owns the helper, which starts with the first `latest`. Not thread-safe."""

    def __init__(
        self,
        interval: float = 5.0,
        start_seconds: float = START_SECONDS,
        health_seconds: float = 0.0,
        environ: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`interval`: a sample younger than this is given again. `clock` decides when to retry, not how long to
        wait.

        `health_seconds`: with each sample the health that was read since and the events come too, if it is
        not 0.
        """
        self._interval = interval
        self._start_seconds = start_seconds
        self._health_seconds = health_seconds
        self._environ = dict(os.environ if environ is None else environ)
        self._clock = clock
        self._helper: subprocess.Popen[bytes] | None = None
        self._abandoned: list[subprocess.Popen[bytes]] = []
        self._buffer = b""
        self._started = 0.0
        self._ready: Payload = None
        self._last: Payload = None
        self._last_at = 0.0
        self._failures = 0
        self._retry_at = 0.0
        self._hopeless = False
        self._asked = SAMPLE
        self._may_look_closer = True
        self._failure = ("NVML has not been queried yet", "")

    def latest(self, deadline: float = 5.0, *, closer: bool = False) -> Payload:
        """A sample of all GPUs, at most `deadline` seconds from now. Raises SourceUnavailable.

        `closer`: with what runs on the SMs since the last closer one, of GPUs that have it.
        """
        now = self._clock()
        if self._hopeless:
            raise SourceUnavailable(*self._failure)
        if self._last is not None and now - self._last_at < self._interval:
            return self._last
        until = time.monotonic() + deadline
        if self._helper is None:
            self._start(now)
        if self._ready is None:
            self._wait_for_start(until)
        gpus: list[Payload] = []
        beside: dict[str, Payload] = {}  # health and events, when there are any
        assert self._helper is not None and self._helper.stdin is not None
        self._asked = CLOSER if closer and self._may_look_closer else SAMPLE
        with contextlib.suppress(OSError):  # it died since; reading says how
            self._helper.stdin.write(self._asked)
        while True:
            message = self._message(until)
            if message is None:
                raise self._give_up(
                    f"NVML did not answer for {format_seconds(deadline)} (GPU {len(gpus)})", SICK
                )
            if "gpu" not in message:
                beside = {name: message[name] for name in ("health", "events") if message.get(name)}
                break
            gpus.append(message["gpu"])
        self._failures = 0
        self._last, self._last_at = {**self._ready, "gpus": gpus, **beside}, now
        return self._last

    def end(self) -> None:
        """End the helper from another thread than the one that asks: that one sees it die."""
        helper = self._helper
        if helper is not None:
            helper.kill()

    def _start(self, now: float) -> None:
        self._abandoned = [helper for helper in self._abandoned if helper.poll() is None]
        if self._abandoned:
            raise SourceUnavailable(
                f"NVML is stuck in the kernel (helper process {self._abandoned[0].pid} cannot be killed)",
                SICK,
            )
        if now < self._retry_at:
            raise SourceUnavailable(*self._failure)
        try:
            self._helper = subprocess.Popen(
                isolated.argv(
                    "diag.sources.gpu.nvml_helper", str(self._health_seconds if self._failures < 2 else 0.0)
                ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                cwd="/",
                env=dict(self._environ),
                start_new_session=True,  # the terminal's Ctrl-C is not for it
            )
        except OSError as error:  # no process or no descriptor left
            raise self._give_up(
                f"the helper that queries NVML cannot be started: {error.strerror}",
                "raise the limits of processes and files (ulimit -u, ulimit -n)",
            ) from None
        self._buffer = b""
        self._ready = None
        self._started = time.monotonic()

    def _wait_for_start(self, until: float) -> None:
        message = self._message(min(until, self._started + self._start_seconds))
        if message is not None:
            self._ready = message
        elif time.monotonic() >= self._started + self._start_seconds:
            raise self._give_up(f"NVML did not start within {format_seconds(self._start_seconds)}", SICK)
        else:
            raise SourceUnavailable("NVML is still starting")

    def _message(self, until: float) -> dict[str, Any] | None:
        """The helper's next line; None when there is none in time. Raises SourceUnavailable when it died or
        gave up."""
        assert self._helper is not None and self._helper.stdout is not None
        poll = select.poll()
        poll.register(self._helper.stdout, select.POLLIN)
        while b"\n" not in self._buffer:
            if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                return None
            data = os.read(self._helper.stdout.fileno(), 65536)
            if not data:
                raise self._give_up(self._how_it_died(), SICK)
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: dict[str, Any] = json.loads(line)  # the helper's: it lets nothing else write there
        if "failed" in message:
            self._hopeless = message["final"]
            raise self._give_up(message["failed"], message["remedy"])
        return message

    def _how_it_died(self) -> str:
        assert self._helper is not None
        try:
            returncode = self._helper.wait(1.0)
        except subprocess.TimeoutExpired:
            return "the NVML helper closed its output"
        if returncode < 0:
            self._health_seconds = 0.0  # samples matter more than the seldom calls, which may have done it
            return f"NVML crashed its process (signal {-returncode}: {signal.strsignal(-returncode)})"
        return f"the NVML helper ended with exit code {returncode}"

    def _give_up(self, reason: str, remedy: str) -> SourceUnavailable:
        self.close()
        if self._asked == CLOSER:
            self._may_look_closer = False  # samples matter more than these calls, which may have done it
        backoff = min(BACKOFF_SECONDS * 2**self._failures, LONGEST_BACKOFF_SECONDS)
        self._failures = min(self._failures + 1, 10)
        self._retry_at = self._clock() + backoff
        self._last = None
        self._failure = (reason, remedy)
        return SourceUnavailable(reason, remedy)

    def close(self) -> None:
        helper, self._helper, self._ready = self._helper, None, None
        if helper is None:
            return
        helper.kill()
        for pipe in (helper.stdin, helper.stdout):
            if pipe is not None:
                pipe.close()
        try:
            helper.wait(0.5)
        except subprocess.TimeoutExpired:  # in D state: SIGKILL waits for the driver, we do not
            self._abandoned.append(helper)


# --- understanding it


def parse(record: Record) -> Iterator[Observation]:
    """One GpuSample a GPU; one that NVML could not even open is Unparsed with NVML's reason. Health and
    events when they came."""
    payload = record.payload
    gpus = payload.get("gpus") if isinstance(payload, Mapping) else None
    if not isinstance(gpus, list):
        yield Unparsed(record.rank, SOURCE, "no list of GPUs", str(payload)[:200])
        return
    for gpu in gpus:
        if not isinstance(gpu, Mapping) or not isinstance(gpu.get("index"), int):
            yield Unparsed(record.rank, SOURCE, "no GPU", str(gpu)[:200])
        elif "error" in gpu:
            yield Unparsed(record.rank, SOURCE, f"GPU {gpu['index']}: {gpu['error']}"[:200], str(gpu)[:200])
        else:
            yield _gpu_sample(record, gpu)
    yield from parse_health(record, payload.get("health"))
    yield from parse_events(record, payload.get("events"))


# The payload's name, the fact's, and the payload's unit.
_FIGURES = (
    ("util", "utilization_ratio", 0.01),
    ("mem_used", "memory_used_bytes", 1),
    ("mem_total", "memory_total_bytes", 1),
    ("power_mw", "power_watts", 0.001),
    ("power_limit_mw", "power_limit_watts", 0.001),
    ("sm_clock_mhz", "sm_clock_hertz", 1_000_000),
    ("temp", "temperature_celsius", 1.0),
    ("throttle", "throttle_reasons", 1),
)


def _gpu_sample(record: Record, gpu: Mapping[str, Any]) -> GpuSample:
    pids, cores = gpu.get("pids"), whole(gpu.get("cores"))
    return GpuSample(
        rank=record.rank,
        index=gpu["index"],
        uuid=str(gpu.get("uuid") or "")[:100],
        pci_bus_id=str(gpu.get("pci") or "")[:100],
        name=str(gpu.get("name") or "")[:100],
        pids=tuple(pid for pid in pids if isinstance(pid, int)) if isinstance(pids, list) else (),
        process_memory=tuple((pid, used) for pid, used in rows(gpu.get("pid_mem"), int, int)),
        sm_utilization_ratio=_share(gpu.get("sm_util")),
        sm_occupancy_ratio=_share(gpu.get("sm_occupancy")),
        sm_count=cores // _CORES_PER_SM if cores and cores % _CORES_PER_SM == 0 else None,
        **{field: scaled(gpu.get(name), unit) for name, field, unit in _FIGURES},
    )


def _share(value: Any) -> float | None:
    """Of percent; NaN is none either."""
    fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 100
    return value * 0.01 if fits else None
