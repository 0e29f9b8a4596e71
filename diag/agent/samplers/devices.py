"""The devices of the node: GPUs, RDMA ports and IP interfaces. A driver that holds up a reading holds up nothing else."""

from __future__ import annotations

from collections.abc import Callable

from diag.agent.samplers.context import NodeContext, NodeSampler
from diag.agent.samplers.sampler import Reporter
from diag.model import Payload
from diag.sources.gpu import npu_smi
from diag.sources.gpu.nvml import SOURCE, NvmlReader
from diag.sources.gpu.nvml_health import HEALTH_SECONDS
from diag.sources.network import infiniband, interfaces
from diag.state.view import JobView
from diag.text.errors import SourceUnavailable

_NPU_SECONDS = 60.0


class GpuSampler(NodeSampler):
    """Under suspicion also what runs on the SMs."""

    name, what, sources = "gpus", "gpu", (SOURCE,)

    def __init__(self, reporter: Reporter, every_seconds: float) -> None:
        super().__init__(reporter, every_seconds)
        self.closer = False
        self._reader = NvmlReader(every_seconds, health_seconds=HEALTH_SECONDS)

    @classmethod
    def of(cls, node: NodeContext) -> GpuSampler:
        return cls(node.reporter, node.settings.node_seconds)

    def tend(self, closer: bool, job: JobView) -> None:
        self.closer = closer

    def sample(self) -> None:
        self.read(self.what, SOURCE, lambda: self._reader.latest(closer=self.closer), timed=False)

    def period(self, cpu: float, wall: float) -> float:
        return wall + self.every_seconds

    def tidy(self) -> None:
        self._reader.close()

    def close(self) -> None:
        """End the helper that asks NVML."""
        self.stop()
        self._reader.end()


class NpuSampler(NodeSampler):
    """Seldom, since each look starts a program; for a dump once more. Ends at once where there are no NPUs."""

    name, what, sources = "npus", "npu", (npu_smi.SOURCE,)
    read_for_dumps = True

    @classmethod
    def of(cls, node: NodeContext) -> NpuSampler:
        return cls(node.reporter, _NPU_SECONDS)

    def sample(self) -> None:
        if npu_smi.is_there():
            self.read(self.what, npu_smi.SOURCE, npu_smi.read)
        else:
            self.stop()

    def period(self, cpu: float, wall: float) -> float:
        return wall + self.every_seconds


class NetworkSampler(NodeSampler):
    """`rank_pid` gives a living rank, whose network namespace is read, or None for now."""

    name, what, sources = "networks", "interfaces", (infiniband.SOURCE, interfaces.SOURCE)
    read_for_dumps = True

    def __init__(
        self,
        reporter: Reporter,
        rank_pid: Callable[[], int | None],
        ports: infiniband.InfinibandReader | None = None,
        net: interfaces.InterfacesReader | None = None,
        every_seconds: float = 10.0,
    ) -> None:
        super().__init__(reporter, every_seconds)
        self._rank_pid = rank_pid
        self._ports = ports or infiniband.InfinibandReader()
        self._net = net or interfaces.InterfacesReader()

    @classmethod
    def of(cls, node: NodeContext) -> NetworkSampler:
        return cls(node.reporter, node.some_rank)

    def sample(self) -> None:
        self.read("RDMA ports", infiniband.SOURCE, self._ports.sample)
        self.read("network interfaces", interfaces.SOURCE, self._sample_interfaces)

    def _sample_interfaces(self) -> Payload:
        pid = self._rank_pid()
        if pid is not None:
            try:
                return self._net.sample(pid)
            except SourceUnavailable:
                pass  # it ended meanwhile, or hides: ours are most often the same
        return self._net.sample()
