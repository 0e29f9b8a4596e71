"""`diag doctor --manifest`: what is wrong with a training's manifests, by what they say themselves. No
cluster is asked.

What a template fills in later, and unknown kinds, are not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from diag.preflight.line import Line, line
from diag.preflight.manifest.container import Trainer
from diag.preflight.manifest.counts import count_lines, restart_lines
from diag.preflight.manifest.edits import ManifestLine, once
from diag.preflight.manifest.job import ManifestJob, Manifests, known
from diag.preflight.manifest.memory import environment_lines, memory_lines, network_lines
from diag.preflight.manifest.names import name_lines
from diag.preflight.manifest.pods import WORKLOADS
from diag.preflight.manifest.reading import Document, read_manifests
from diag.preflight.manifest.sidecar import monitor_lines, sidecar_lines
from diag.text.units import format_count

__all__ = ["check_manifests", "manifest_lines"]

CHECKS: tuple[Callable[[Manifests], Iterator[Line]], ...] = (
    restart_lines,
    name_lines,
    count_lines,
    memory_lines,
    network_lines,
    environment_lines,
    sidecar_lines,
    monitor_lines,
)

_AT_START = "what its container starts is known only when it starts"


def check_manifests(places: Sequence[str], rdma: str = "") -> Iterator[Line]:
    """Of files, folders and - for stdin; `rdma`: see Manifests. Raises DiagError for a path that is not there."""
    documents, unread = read_manifests(places)
    yield from unread
    if documents or not unread:
        yield from manifest_lines(documents, rdma)


def manifest_lines(documents: Sequence[Document], rdma: str = "") -> Iterator[Line]:
    """Pure. A job of which nothing is wrong has a line that says what was compared."""
    manifests = Manifests.of(documents, rdma)
    found = [one for check in CHECKS for one in check(manifests)]
    bad = {one.what for one in found if one.status in ("problem", "not checked")}
    yield from _merged(found)
    for job in manifests.jobs:
        titles = list(dict.fromkeys(trainer.group.document.title for trainer in job.trainers))
        if job.pods is None:
            yield line("manifest.pods_unknown", what=", ".join(titles))
        elif not bad.intersection([*titles, *_services(job)]):
            unknown, what, summary = _unknown(job), ", ".join(titles), _summary(job)
            key = "manifest.not_all_known" if unknown else "manifest.fits"
            yield line(key, what=what, summary=summary, unknown=unknown)
    if not manifests.jobs:
        yield line("manifest.no_job", why=_nothing(manifests), kinds=", ".join(WORKLOADS))


def _services(job: ManifestJob) -> list[str]:
    """That the address of node 0 leads to, should it be wrong itself."""
    address = job.trainers[0].meeting.address or ""
    return [f"Service/{part}" for part in address.split(".")[:2]]


def _merged(lines: Sequence[Line]) -> Iterator[Line]:
    """What is said of several manifests in the same words, said once: of Pods that are written out."""
    alike: dict[tuple[str, ...], list[Line]] = {}
    for one in lines:
        said = one.said.partition(": ")[2] if isinstance(one, ManifestLine) else one.said
        alike.setdefault((one.status, one.severity, said, one.remedy, one.id), []).append(one)
    for first, *others in alike.values():
        titles = [title for title in dict.fromkeys(each.what for each in others) if title != first.what]
        if not isinstance(first, ManifestLine) or not titles:
            yield from (first, *others)
            continue
        edits = [edit for each in (first, *others) if isinstance(each, ManifestLine) for edit in each.edits]
        also = f"{first.said} (also in {', '.join(titles)})"
        yield replace(first, said=also, edits=once(edits))


def _unknown(job: ManifestJob) -> str:
    """What of the job cannot be known from what was given; "" where nothing is missing, or an operator fills
    it in."""
    for trainer in job.trainers:
        if trainer.group.is_worker and trainer.group.index != "mpirun" and not trainer.waits:
            reason = _unknown_ranks(trainer) or _unknown_meeting(trainer, job)
            if reason:
                return reason
    return ""


def _unknown_ranks(trainer: Trainer) -> str:
    launch, sets = trainer.facts.launch, trainer.group.sets
    if launch is None:
        why = trainer.facts.unread
        return _AT_START if "\x01" in why else f"its command could not be read: {why}"
    if launch.opaque:
        ranks = f"how many ranks its container starts is not known: {launch.opaque}"
        return _AT_START if "\x01" in ranks else ranks
    if launch.unseen:
        return (
            _AT_START
            if "\x01" in launch.unseen
            else f"`{launch.unseen}` in its script may set other variables"
        )
    if not trainer.all_known:
        return "some of its variables come from a ConfigMap or Secret that was not given (envFrom)"
    later = {name for name, value in trainer.environment.items() if value and not known(value)} - sets
    if not launch.processes_from and later & {"NPROC_PER_NODE", "PET_NPROC_PER_NODE"}:
        return "how many ranks its container starts is known only when it runs"
    return ""


def _unknown_meeting(trainer: Trainer, job: ManifestJob) -> str:
    sets, address = trainer.group.sets, trainer.meeting.address
    if job.nodes_of(trainer) is None and "PET_NNODES" not in sets:
        return "how many nodes CMD waits for is known only when it runs"
    if job.pods != 1 and address and not known(address) and "PET_MASTER_ADDR" not in sets:
        return "where they meet is known only when they run"
    return ""


def _summary(job: ManifestJob) -> str:
    first, pods = job.trainers[0], job.pods
    parts = ["some pods" if pods is None else f"{pods} pod{'' if pods == 1 else 's'}"]
    if first.gpus:
        in_all = f" ({first.gpus * pods} in all)" if pods and pods > 1 else ""
        parts.append(f"{format_count(first.gpus, 'GPU')} each{in_all}")
    address = first.meeting.address
    if pods != 1 and known(address):
        parts.append(f"they meet at {address}")
    return ", ".join(parts)


def _nothing(manifests: Manifests) -> str:
    if manifests.groups:
        titles = list(dict.fromkeys(group.document.title for group in manifests.groups))
        return f"nothing shows that {', '.join(titles[:5])}{' ...' if len(titles) > 5 else ''} trains"
    kinds = sorted({document.kind for document in manifests.documents if document.kind})
    return f"no training job among {', '.join(kinds)}" if kinds else "no manifest was found"
