"""The GPUs of the node. A sick one takes its time to be given up."""

from __future__ import annotations

from diag.agent.samplers.context import NodeContext, NodeSampler
from diag.agent.samplers.sampler import Reporter
from diag.sources.gpu.nvml import SOURCE, NvmlReader
from diag.sources.gpu.nvml_health import HEALTH_SECONDS
from diag.state.view import JobView


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
