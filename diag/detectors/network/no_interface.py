"""NCCL has no interface over which its ranks find each other, or one that leads nowhere."""

from __future__ import annotations

import re
from collections.abc import Iterator

from diag.detectors.contract import Detector
from diag.detectors.findings import finding, on_ranks
from diag.detectors.network.evidence import line_evidence
from diag.detectors.network.unlogged import one_node, several_nodes
from diag.model import Evidence, Finding
from diag.model.observations import NcclFact
from diag.state.ncclprocess import NcclProcess
from diag.state.view import JobView

# Addresses of these mean something on their own machine only.
# br- and 12 hexadecimal digits is docker's; a host's own uplink may be called br-ex or br0.
_NOWHERE = re.compile(
    r"lo|docker\d+|virbr\d+|br-[0-9a-f]{12}|cni\d*|cni-podman\d+|flannel.*|veth.*|podman\d+"
)


class NoInterfaceDetector(Detector):
    name = "nccl-no-interface"

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        missing, wrong = lost_interfaces(job)
        if missing:
            yield _missing(missing, now)
        elif wrong:
            yield _wrong(wrong, now)


def lost_interfaces(job: JobView) -> tuple[dict[int, NcclProcess], dict[int, NcclProcess]]:
    """Processes without an interface, and those whose interface leads nowhere; by rank, or below 0 where
    that is not known."""
    nccl = job.nccl_processes
    placed = nccl.placed() or {-1 - number: process for number, process in enumerate(nccl.living())}
    missing = {
        rank: process
        for rank, process in placed.items()
        if any(one.use != "oob" for one in process.no_interface)
    }
    spread = (
        several_nodes(job)
        or len(nccl.hosts()) > 1
        or any((process.nodes or 0) > 1 for process in placed.values())
    )
    if not spread or one_node(job):
        return missing, {}
    return missing, {rank: process for rank, process in placed.items() if _leads_nowhere(process)}


def _leads_nowhere(process: NcclProcess) -> bool:
    """By its name, and by what came of it: a communicator between nodes that was made shows that they reached
    each other."""
    if process.bootstrap is None or _NOWHERE.fullmatch(process.bootstrap.interface) is None:
        return False
    met = any(comm.made and (comm.nodes or 0) > 1 for comm in process.communicators.values())
    return not met and not process.connected


def _missing(found: dict[int, NcclProcess], now: float) -> Finding:
    rank, process = min(found.items())
    fact = next(one for one in process.no_interface if one.use != "oob")
    setting = process.environment.get("NCCL_SOCKET_IFNAME")
    wanted = setting.value if setting is not None else fact.wanted
    ranks = _known(found)
    what = "no interface is up and has an address"
    if wanted:
        what = f"NCCL_SOCKET_IFNAME={wanted} names no interface that is up and has an address"
    return finding(
        "nccl-no-interface",
        "ifname_matches_nothing" if wanted else "no_interface",
        ranks=ranks,
        since=process.told.get(fact.line, now),
        summary=f"NCCL cannot start{on_ranks(ranks)}: {what}",
        evidence=_evidence(process, rank, now, setting, fact),
    )


def _wrong(found: dict[int, NcclProcess], now: float) -> Finding:
    rank, process = min(found.items())
    fact = process.bootstrap
    assert fact is not None
    setting = process.environment.get("NCCL_SOCKET_IFNAME")
    loop = fact.interface == "lo"
    remedy = "Set NCCL_SOCKET_IFNAME to the interface that the nodes reach each other by (`ip -br addr`)"
    if setting is not None and loop:
        remedy = "Remove NCCL_SOCKET_IFNAME=lo"
    why = f" (NCCL_SOCKET_IFNAME={setting.value})" if setting is not None else ""
    ranks = _known(found)
    return finding(
        "nccl-no-interface",
        "loopback" if loop else "bridge",
        ranks=ranks,
        since=process.told.get(fact.line, now),
        summary=f"NCCL{on_ranks(ranks)} gives its peers the address {fact.address} of {fact.interface}{why}, which other nodes "
        f"{'cannot' if loop else 'most likely cannot'} reach",
        words={"remedy": remedy},
        evidence=_evidence(process, rank, now, setting, fact),
    )


def _known(found: dict[int, NcclProcess]) -> tuple[int, ...]:
    return tuple(sorted(rank for rank in found if rank >= 0))


def _evidence(process: NcclProcess, rank: int, now: float, *facts: NcclFact | None) -> list[Evidence]:
    return [line_evidence(fact.line, process, rank, now) for fact in facts if fact is not None]
