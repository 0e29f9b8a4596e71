"""All samplers of a node, started and ended together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from diag.agent.samplers.checkpoints import CheckpointSampler
from diag.agent.samplers.context import NodeContext, NodeSampler
from diag.agent.samplers.devices import GpuSampler, NetworkSampler, NpuSampler
from diag.agent.samplers.estimate import EstimateSampler
from diag.agent.samplers.kernel import KernelLogSampler
from diag.agent.samplers.outliving import OutlivingSampler
from diag.agent.samplers.program import ProgramSampler
from diag.agent.samplers.ras import RasSampler
from diag.agent.samplers.ray import RaySampler
from diag.agent.samplers.starter import StarterSampler
from diag.agent.samplers.store import StoreSampler
from diag.model import Placement
from diag.state.view import JobView
from diag.text.errors import shortage

T = TypeVar("T", bound=NodeSampler)

NODE_SAMPLERS: tuple[type[NodeSampler], ...] = (
    GpuSampler,
    NpuSampler,
    NetworkSampler,
    KernelLogSampler,
    StoreSampler,
    OutlivingSampler,
    CheckpointSampler,
    EstimateSampler,
    RasSampler,
    ProgramSampler,
    StarterSampler,
    RaySampler,
)


class NodeSamplers:
    def __init__(self, node: NodeContext, kinds: Iterable[type[NodeSampler]] = NODE_SAMPLERS) -> None:
        self._node = node
        self._all = [kind.of(node) for kind in kinds]

    def __getitem__(self, kind: type[T]) -> T:
        return next(one for one in self._all if isinstance(one, kind))

    def start(self, argv: Sequence[str], pid: int, *, launched: bool = True, attached: bool = False) -> None:
        """The job's root process is `pid`, its command `argv`. `launched`: what is below that process is the
        job. `attached`: diag did not start it."""
        node = self._node
        node.argv, node.pid, node.launched, node.attached = tuple(argv), pid, launched, attached
        for sampler in self._all:
            self._try(sampler, sampler.start)

    def rank_found(self, place: Placement, variables: dict[str, str]) -> None:
        for sampler in self._all:
            self._try(sampler, lambda one=sampler: one.rank_found(place, variables))  # type: ignore[misc]

    def _try(self, sampler: NodeSampler, work: Callable[[], None]) -> None:
        """Where there is no thread or file left for one of them, the others go on."""
        try:
            work()
        except (OSError, RuntimeError) as error:
            if not (lacking := shortage(error)):
                raise
            self._node.reporter.failed(sampler.what, f"not watched: out of {lacking}", "raise the limit")

    def tend(self, closer: bool, job: JobView) -> None:
        for sampler in self._all:
            sampler.tend(closer, job)

    def read_soon(self) -> None:
        """For a dump: what changes slowly is due now. Does not wait."""
        for sampler in self._all:
            if sampler.read_for_dumps:
                sampler.wake()

    def stop(self) -> None:
        for sampler in self._all:
            sampler.stop()

    def finish(self) -> None:
        """CMD has ended and all that it printed is in: last readings."""
        for sampler in self._all:
            sampler.finish()

    def close(self) -> None:
        for sampler in self._all:
            sampler.close()
