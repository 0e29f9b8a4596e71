"""The RDMA ports and IP interfaces of the node. A driver that holds up a reading of /sys holds up nothing else."""

from __future__ import annotations

from collections.abc import Callable

from diag.agent.samplers.context import NodeContext, NodeSampler
from diag.agent.samplers.sampler import Reporter
from diag.model import Payload
from diag.sources.network import infiniband, interfaces
from diag.text.errors import SourceUnavailable


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
