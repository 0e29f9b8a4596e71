"""What the checks of manifests share: the trainers that belong to one job, and how a line of doctor reports a
field."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from diag.preflight.line import Line, line
from diag.preflight.manifest.container import INDEX, UNKNOWN, Trainer, trainer_of
from diag.preflight.manifest.edits import Edits, ManifestLine
from diag.preflight.manifest.pods import PodGroup, pod_groups
from diag.preflight.manifest.reading import Document, Field

LOOPBACK = ("localhost", "127.0.0.1", "::1", "0.0.0.0")
_NODES = ("NNODES ", "PET_NNODES ", "--nnodes ", "--num_machines ", "--num_nodes ")
_RANKS = ("NODE_RANK ", "PET_NODE_RANK ", "--node_rank ", "--node-rank ", "--machine_rank ")


@dataclass(frozen=True, slots=True)
class ManifestJob:
    """Trainers of one document, or of several that name the same address."""

    trainers: tuple[Trainer, ...]

    @property
    def pods(self) -> int | None:
        """How many run at the same time; None where that is filled in later."""
        counts = [trainer.group.count for trainer in self.trainers if trainer.group.is_worker]
        return None if None in counts else sum(count or 0 for count in counts)

    def nodes_of(self, trainer: Trainer) -> int | None:
        """As CMD sees it; None where only the pod will know."""
        return None if any(bad.startswith(_NODES) for bad in trainer.meeting.bad) else trainer.meeting.nodes

    def is_one_node(self, trainer: Trainer) -> bool:
        return self.pods == 1 and (self.nodes_of(trainer) or 2) == 1

    def rank_of(self, trainer: Trainer) -> str:
        """The digits, INDEX, another mark, or "" where nothing states it."""
        for bad in trainer.meeting.bad:
            if bad.startswith(_RANKS):
                return bad.partition(" ")[2]
        if trainer.meeting.rank_from in ("", "the default"):
            return ""
        return str(trainer.meeting.node_rank)


def _each_at_its_own(sets: dict[object, list[Trainer]]) -> dict[object, list[Trainer]]:
    """Nodes of one job that each look for node 0 on their own loopback: as many Pods as there are nodes, with a
    rank each. They are taken out of `sets`."""
    alone = {
        key: each[0]
        for key, each in sets.items()
        if len(each) == 1 and each[0].meeting.address in LOOPBACK and each[0].group.count == 1
    }
    ranks = {trainer.meeting.node_rank for trainer in alone.values()}
    if len(alone) < 2 or any(trainer.meeting.nodes != len(alone) for trainer in alone.values()):
        return {}
    if ranks != set(range(len(alone))):
        return {}
    return {"loopback": [sets.pop(key)[0] for key in alone]}


@dataclass(frozen=True, slots=True)
class Manifests:
    """`rdma` is what the cluster calls its RDMA devices: "none" where it has none, "" where nobody said it."""

    documents: tuple[Document, ...]
    groups: tuple[PodGroup, ...]
    jobs: tuple[ManifestJob, ...]
    rdma: str = ""

    @classmethod
    def of(cls, documents: Sequence[Document], rdma: str = "") -> Manifests:
        groups = pod_groups(documents)
        trainers = [trainer for group in groups if (trainer := trainer_of(group, documents)) is not None]
        sets: dict[object, list[Trainer]] = {}
        for trainer in trainers:
            address = trainer.meeting.address or ""
            shared = "\x01" not in address and address not in ("", *LOOPBACK)
            single = trainer.group.kind in ("Pod", "Job") and trainer.group.count == 1
            sets.setdefault(address if single and shared else id(trainer.group.document), []).append(trainer)
        sets |= _each_at_its_own(sets)
        jobs = tuple(ManifestJob(tuple(each)) for each in sets.values())
        return cls(tuple(documents), tuple(groups), jobs, rdma)

    def service(self, name: str, group: PodGroup | None = None) -> Document | None:
        """The Service of that name, in the namespace of these pods."""
        named = (item for item in self.documents if item.kind == "Service" and item.name == name)
        spaces = (item for item in named if group is None or item.namespace == group.document.namespace)
        return next(spaces, None)

    def subdomain_of(self, group: PodGroup) -> str:
        """That of the pods, or the one to give them: a headless Service that selects them, else their own name."""
        if group.subdomain:
            return group.subdomain
        for item in self.documents:
            spec = item.root.at("spec")
            same = item.kind == "Service" and item.namespace == group.document.namespace
            if same and spec.at("clusterIP").text == "None" and group.has_labels(spec.at("selector").mapping):
                return item.name
        return group.document.name


def report(
    field: Field, key: str, *, status: str = "", severity: str = "", edits: Edits = (), **values: object
) -> ManifestLine:
    """The line of a field by its row in lines/manifest.yaml; `values` are those of its text and its remedy."""
    found = line(f"manifest.{key}", **values)
    return at(
        field, replace(found, status=status or found.status, severity=severity or found.severity), edits
    )


def at(field: Field, found: Line, edits: Edits = ()) -> ManifestLine:
    """A line that says which field it is about. What is written in no file can be changed in none."""
    can = all(edit.place.document.number >= 0 for edit in edits)
    texts = (field.document.title, found.status, f"{field.spot}: {found.said}", found.remedy)
    return ManifestLine(*texts, found.id, found.severity, edits=tuple(edits) if can else ())


def known(text: str | None) -> bool:
    """Whether it is text that was written, and not filled in by the pod or computed by a shell."""
    return bool(text) and not any(word in (text or "") for word in (INDEX, UNKNOWN, "\x01", "$", "`"))
