"""Variables of the ranks' environments that harm the job, or that nothing reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from diag.detectors.contract import Detector
from diag.knowledge.env_lint import Advice, lint
from diag.model import Confidence, Evidence, Finding, Severity
from diag.state.rank_view import RankView
from diag.state.view import JobView
from diag.text.units import format_ranks


@dataclass(frozen=True, slots=True)
class _Question:
    """What the answer depends on."""

    rdma: bool | None
    desktop: bool
    nccl_version: str
    environments: tuple[tuple[object, ...], ...]  # rank, its variables, its nccl.conf


def _question(job: JobView) -> _Question:
    ports = job.network.rdma_ports()
    rdma = None if ports is None else bool(ports)
    nets = {net for process in job.nccl_processes.living() for net in process.nets_between_nodes()}
    if nets and not nets & {"IB", "Socket"}:
        rdma = False  # another plugin's network: NCCL's own RDMA, and what switches it off, does not matter
    desktop = bool(job.machine.gpus) and all("GeForce" in gpu.name for _, gpu in job.machine.gpus.values())
    environments = tuple((number, rank.variables, rank.rdma) for number, rank in sorted(job.ranks.items()))
    return _Question(rdma, desktop, job.nccl.version, environments)


class _EnvironmentDetector(Detector):
    """One of the two: both read the same table (`diag.knowledge.env_lint`)."""

    name = ""

    def __init__(self) -> None:
        self._asked: _Question | None = None
        self._known: tuple[Finding, ...] = ()

    def tick(self, now: float, job: JobView) -> None:
        """Judged again only when an environment, the node's RDMA devices or NCCL's version changed."""
        asked = _question(job)
        if asked != self._asked:
            self._asked, self._known = asked, tuple(self._judge(now, job, asked.rdma, desktop=asked.desktop))

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        asked = _question(job)
        if asked == self._asked:
            yield from self._known
        else:
            yield from self._judge(now, job, asked.rdma, desktop=asked.desktop)

    def _judge(self, now: float, job: JobView, rdma: bool | None, *, desktop: bool) -> Iterator[Finding]:
        version = tuple(int(part) for part in job.nccl.version.split(".") if part.isdecimal()) or None
        found: dict[tuple[str, str], tuple[Advice, list[RankView], str]] = {}
        for _, rank in sorted(job.ranks.items()):
            conf = rank.rdma.nccl_conf if rank.rdma else ()
            origin = {name: path for path, name, _ in conf if name not in rank.variables}
            variables = {name: value for _, name, value in conf} | {**rank.variables}
            for advice in lint(variables, nodes=_nodes(rank), nccl_version=version, rdma=rdma):
                if advice.id == self.name:
                    where = origin.get(advice.variable, "")
                    found.setdefault((advice.variable, advice.value), (advice, [], where))[1].append(rank)
        for (variable, value), (advice, ranks, where) in found.items():
            numbers = tuple(rank.rank for rank in ranks)
            place, source, kind = (
                (f" (set in {where})", f"{where}: ", "nccl.conf") if where else ("", "", "environ")
            )
            first = ranks[0]
            # Desktop cards have no P2P, and drivers that claim it hang: there the switch is right.
            severity = Severity.INFO if desktop and variable.startswith("NCCL_P2P_") else advice.severity
            yield Finding(
                id=self.name,
                subject=variable,
                severity=severity,
                confidence=Confidence.HIGH,
                ranks=numbers,
                since=first.found_at,
                cause=variable.lower(),
                summary=f"{variable}={value[:100]}{place} on {format_ranks(numbers)}: {advice.does}",
                advice=_sentence(advice.instead),
                evidence=(Evidence(kind, f"{source}{variable}={value}"[:500], first.found_at, first.rank),),
            )


def _sentence(order: str) -> str:
    word = order.split(" ", 1)[0].rstrip(",;")
    return (order[:1].upper() + order[1:] if word.isalpha() else order) + "."


def _nodes(rank: RankView) -> int | None:
    """How many nodes the job has, as the launcher shows; None where it does not."""
    place = rank.placement
    number = rank.variables.get("SLURM_STEP_NUM_NODES", "") if place.launcher == "slurm" else ""
    if number.isdecimal() and len(number) < 7:
        return int(number)
    if place.launcher == "captured" or not place.local_world_size:
        return None
    return -(-place.world_size // place.local_world_size)


class EnvHarmfulDetector(_EnvironmentDetector):
    name = "env-harmful"


class EnvNoEffectDetector(_EnvironmentDetector):
    name = "env-no-effect"
