"""What runs on a GPU's SMs, from NVML's GPM counters (Hopper and newer; no root, no profiler): figures of the
time between two samples. For the helper process of `nvml`; not asked while the job is well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diag.model import Payload

_METRICS = {"sm_util": 2, "sm_occupancy": 3}  # nvml.h: NVML_GPM_METRIC_SM_UTIL, _SM_OCCUPANCY; percent


class Gpm:
    """Keeps the last sample of each GPU; whatever NVML or an older pynvml lacks only leaves the figures out."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._last: dict[int, Any] = {}
        self._cores: dict[int, int | None] = {}  # of GPUs that have the counters; None: does not say how many
        self._without: set[int] = set()

    def figures(self, index: int, gpu: Any) -> Mapping[str, Payload]:
        """Percent of the SMs that held a warp and of the warps that they can hold, since the last call; {} at
        the first."""
        if index in self._without:
            return {}
        try:
            if index not in self._cores:
                self._learn(index, gpu)
            return self._since_last(index, gpu) if index in self._cores else {}
        except (self._nvml.NVMLError, AttributeError):  # MIG, a lost GPU; a pynvml without these functions
            self._drop(index)
            return {}

    def forget(self) -> None:
        """Stop sampling for now: the samples are freed, and the next call starts afresh."""
        for index in tuple(self._last):
            self._drop(index)

    def _learn(self, index: int, gpu: Any) -> None:
        self._without.add(index)  # unless all goes well
        if not self._nvml.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice:
            return
        try:
            self._cores[index] = self._nvml.nvmlDeviceGetNumGpuCores(gpu)
        except (self._nvml.NVMLError, AttributeError):
            self._cores[index] = None
        self._without.discard(index)

    def _since_last(self, index: int, gpu: Any) -> Mapping[str, Payload]:
        sample = self._nvml.nvmlGpmSampleAlloc()
        try:
            self._nvml.nvmlGpmSampleGet(gpu, sample)
        except self._nvml.NVMLError:
            self._nvml.nvmlGpmSampleFree(sample)
            raise
        last, self._last[index] = self._last.get(index), sample
        if last is None:
            return {}
        try:
            found: dict[str, Payload] = dict(self._between(last, sample))
        finally:
            self._nvml.nvmlGpmSampleFree(last)
        if found and self._cores[index] is not None:
            found["cores"] = self._cores[index]
        return found

    def _between(self, before: Any, after: Any) -> Mapping[str, float]:
        asked = self._nvml.c_nvmlGpmMetricsGet_t()
        asked.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = len(_METRICS)
        asked.sample1, asked.sample2 = before, after
        for place, metric in enumerate(_METRICS.values()):
            asked.metrics[place].metricId = metric
        self._nvml.nvmlGpmMetricsGet(asked)
        # the array has room for all metrics there are
        return {
            name: round(answer.value, 4)
            for name, answer in zip(_METRICS, asked.metrics, strict=False)
            if answer.nvmlReturn == 0 and math.isfinite(answer.value)
        }

    def _drop(self, index: int) -> None:
        last = self._last.pop(index, None)
        if last is not None:
            try:
                self._nvml.nvmlGpmSampleFree(last)
            except self._nvml.NVMLError:
                pass  # some bytes of a helper that is killed sooner or later


def text_of(value: Any) -> Any:
    """Of an old pynvml, whose texts are bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
