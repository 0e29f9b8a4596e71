"""GPUs: what NVML reads, what the driver reports, and what CUDA reported to the program."""

from __future__ import annotations

from dataclasses import dataclass

from diag.model.observations.base import Observation


@dataclass(frozen=True, slots=True)
class GpuSample(Observation):
    """One GPU now; None for what the driver did not say.

    The last three are read while the job is suspected only, and by GPUs that can: which share of the SMs held
    a warp, and which share of the warps that all SMs can hold was there, both on average since the sample
    before; how many SMs it has.
    """

    index: int
    uuid: str
    pci_bus_id: str
    name: str
    utilization_ratio: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    power_watts: float | None
    power_limit_watts: float | None
    sm_clock_hertz: int | None
    temperature_celsius: float | None
    throttle_reasons: int | None = None  # bits of nvml.h, nvmlClocksEventReason*
    pids: tuple[int, ...] = ()
    process_memory: tuple[
        tuple[int, int], ...
    ] = ()  # (pid, bytes) as NVML reports; other containers' pids may be 0
    sm_utilization_ratio: float | None = None
    sm_occupancy_ratio: float | None = None
    sm_count: int | None = None


@dataclass(frozen=True, slots=True)
class NpuSample(Observation):
    """One chip of an Ascend NPU now; None for what npu-smi did not say. `index`: its number as the machine counts chips
    (Phy-ID); `npu` and `chip` as npu-smi names it."""

    index: int
    npu: int
    chip: int
    name: str
    bus_id: str
    health: str
    core_utilization_ratio: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    power_watts: float | None
    temperature_celsius: float | None


@dataclass(frozen=True, slots=True)
class NvlinkSeen:
    """One NVLink of a GPU; counters are since the driver was loaded, None where it does not say."""

    link: int
    active: bool | None
    crc_errors: int | None = None
    replays: int | None = None
    recoveries: int | None = None


@dataclass(frozen=True, slots=True)
class GpuHealth(Observation):
    """One GPU's slow facts, read seldom; None for what the driver or the GPU does not have.

    `volatile` counters are since the driver was loaded, `aggregate` over the GPU's life. Violations are
    seconds of held back clocks since the driver was loaded.
    """

    index: int
    uuid: str
    pci_bus_id: str
    ecc_enabled: bool | None = None
    ecc_corrected_volatile: int | None = None
    ecc_uncorrected_volatile: int | None = None
    ecc_corrected_aggregate: int | None = None
    ecc_uncorrected_aggregate: int | None = None
    remapped_rows_corrected: int | None = None
    remapped_rows_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    retired_pages_pending: bool | None = None
    thermal_violation_seconds: float | None = None
    power_violation_seconds: float | None = None
    slowdown_celsius: float | None = None
    memory_celsius: float | None = None
    max_sm_clock_hertz: int | None = None
    pcie_generation: int | None = None
    pcie_max_generation: int | None = None
    pcie_width: int | None = None
    pcie_max_width: int | None = None
    pcie_replays: int | None = None
    nvlinks: tuple[NvlinkSeen, ...] = ()
    recovery_action: str = ""  # driver 570 and later: none, reset, reboot, drain_p2p, drain_reset


@dataclass(frozen=True, slots=True)
class XidReported(Observation):
    """NVIDIA's driver reported an error of a GPU; `pid` where the message names one, `origin`: kmsg or nvml
    (an event).

    `host_pids`: the pid is of the namespace that diag sees, so one that is none of the job's is another's.
    """

    pci_bus_id: str
    xid: int
    pid: int | None
    text: str
    origin: str = "kmsg"
    host_pids: bool = False


@dataclass(frozen=True, slots=True)
class SxidReported(Observation):
    """The driver reported an error of an NVSwitch."""

    pci_bus_id: str
    sxid: int
    fatal: bool | None
    link: int | None
    text: str


@dataclass(frozen=True, slots=True)
class CudaOutOfMemory(Observation):
    """PyTorch could not allocate GPU memory; numbers as its message gives them, None where that version does
    not.

    `device` is the program's own number. `reserved_bytes` is what PyTorch holds from the driver and does not
    use. In a container the process itself may be one of `others`, by its number outside.
    """

    device: int | None
    tried_bytes: int
    total_bytes: int | None
    free_bytes: int | None
    in_use_bytes: int | None
    allocated_bytes: int | None
    reserved_bytes: int | None
    others: tuple[tuple[int, int], ...] = ()  # (pid, bytes) of other processes on the GPU
    text: str = ""
    allowed_bytes: int | None = None  # torch.cuda.set_per_process_memory_fraction
    private_bytes: int | None = None  # of what is allocated: in private pools (CUDA graphs)


@dataclass(frozen=True, slots=True)
class CudaErrorRaised(Observation):
    """A CUDA call failed for another reason. `error` is CUDA's own text; `host_memory`: pinned host memory
    was asked for."""

    error: str
    text: str
    host_memory: bool = False


@dataclass(frozen=True, slots=True)
class GpuDumpStarted(Observation):
    """The CUDA driver says in the rank's output that it writes a GPU core dump: after an exception, or
    because it was asked."""

    text: str


@dataclass(frozen=True, slots=True)
class GpuKernel:
    """One grid that was on the GPU. `name` without its types, empty where it is not known; `blocks` of it
    were on the GPU then, of those that `grid` counts."""

    name: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    blocks: int = 0
    device: int = 0


@dataclass(frozen=True, slots=True)
class GpuKernels(Observation):
    """What ran on a rank's GPU when a core dump of it was taken. Without kernels: it ran nothing of this
    rank."""

    kernels: tuple[GpuKernel, ...]
