"""What would mend a manifest: changes of its fields, each of which leaves everything else as it is. Makes none of
them (fix.py)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from diag.preflight.line import Line
from diag.preflight.manifest.reading import Field

if TYPE_CHECKING:
    from diag.preflight.manifest.container import Trainer


@dataclass(frozen=True, slots=True)
class Edit:
    """`how`: put (`value` at `place`), add (`value` to the list there), drop, swap (`value` for `old` within the text
    there), document (`value` as a further one, beside that of `place`)."""

    place: Field
    how: Literal["put", "add", "drop", "swap", "document"]
    value: Any = None
    old: str = ""


Edits = Sequence[Edit]


@dataclass(frozen=True, slots=True)
class ManifestLine(Line):
    """`edits` end a problem; without them it is for a person to decide."""

    edits: tuple[Edit, ...] = ()


def once(edits: Edits) -> tuple[Edit, ...]:
    """Without those that are there already; a new document is one, whichever it is for."""
    found: dict[object, Edit] = {}
    for edit in edits:
        document = edit.place.document
        where = (document.file, document.number, *document.within, *edit.place.path)
        found.setdefault(
            (() if edit.how == "document" else where, edit.how, repr(edit.value), edit.old), edit
        )
    return tuple(found.values())


def put(place: Field, value: Any) -> Edit:
    return Edit(place, "put", value)


def add(place: Field, value: Any) -> Edit:
    return Edit(place, "add", value)


def drop(*places: Field) -> list[Edit]:
    """Of what is there."""
    return [Edit(place, "drop") for place in places if place.there]


def swap_in_script(trainer: Trainer, old: str, new: str) -> list[Edit]:
    """In the command, or in the script that it runs. None where `old` is also a part of other words there."""
    words = [item for part in ("command", "args") for item in trainer.container.at(part).items]
    alone = re.compile(rf"(?<![\w.$-]){re.escape(old)}(?![\w.-])")
    return [
        Edit(field, "swap", new, old)
        for field in (*words, *trainer.scripts)
        if (count := field.script.count(old)) and len(alone.findall(field.script)) == count
    ]


def set_variable(trainer: Trainer, name: str, value: Any) -> list[Edit]:
    """A text, or the mapping that stands under valueFrom. What the script sets itself it keeps setting."""
    field = trainer.fields.get(name)
    given = {"value": value} if isinstance(value, str) else {"valueFrom": value}
    if field is None:
        return [add(trainer.container.at("env"), {"name": name, **given})]
    if not isinstance(field.value, dict):  # of a ConfigMap
        return [put(field, value)] if isinstance(value, str) else []
    other = "valueFrom" if isinstance(value, str) else "value"
    return [*(put(field.at(key), inner) for key, inner in given.items()), *drop(field.at(other))]


def drop_variable(trainer: Trainer, name: str, value: str) -> list[Edit]:
    """Wherever this value is from: the manifest, or an assignment in the script."""
    field = trainer.fields.get(name)
    if field is not None and (not isinstance(field.value, dict) or field.at("value").text == value):
        return drop(field)
    for written in (f"export {name}={value}\n", f"{name}={value} \\\n", f"{name}={value} "):
        edits = [
            Edit(item, "swap", "", written)
            for part in ("command", "args")
            for item in trainer.container.at(part).items
            if re.search(rf"(^|\s){re.escape(written)}", item.script)
        ]
        edits += [Edit(each, "swap", "", written) for each in trainer.scripts if written in each.script]
        if edits:
            return edits
    return []


def set_address(trainer: Trainer, new: str) -> list[Edit]:
    """The address at which the nodes meet, where its launcher reads it."""
    meeting = trainer.meeting
    old, name = meeting.address or "", meeting.address_from
    field = trainer.fields.get(name)
    if field is not None:
        text = field.at("value") if isinstance(field.value, dict) else field
        host, colon, port = text.text.partition(":")
        if host == old:
            return [put(text, f"{new}{colon}{port}")]
    if old:
        return swap_in_script(trainer, old, new)
    return set_variable(trainer, "MASTER_ADDR", new) if not name else []


def set_devices(trainer: Trainer, count: int) -> list[Edit]:
    """What the container asks for, in requests and limits alike."""
    name = str(trainer.gpus_field.path[-1])
    if trainer.gpus is None:
        return [put(trainer.container.at("resources", "limits", "nvidia.com/gpu"), count)]
    parts = (trainer.container.at("resources", part, name) for part in ("requests", "limits"))
    return [put(field, count) for field in parts if field.there]


def may_lock(trainer: Trainer) -> list[Edit]:
    if trainer.capabilities & {"IPC_LOCK", "ALL"} or trainer.user:
        return []
    return [add(trainer.container.at("securityContext", "capabilities", "add"), "IPC_LOCK")]


def mount_shm(trainer: Trainer, size: str) -> list[Edit]:
    """By a volume in memory that is there and not mounted, or a new one."""
    volumes, mounts = trainer.group.spec.at("volumes"), trainer.container.at("volumeMounts")
    mounted = {
        item.at("name").text for each in trainer.group.containers for item in each.at("volumeMounts").items
    }
    names = {item.at("name").text: item.at("emptyDir", "medium").text == "Memory" for item in volumes.items}
    free = next((name for name, in_memory in names.items() if in_memory and name not in mounted), "")
    name = free or next(name for name in ("shm", "dshm", "shared-memory") if name not in names)
    made = {"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": size}}
    mount = add(mounts, {"name": name, "mountPath": "/dev/shm"})
    return [mount] if free else [add(volumes, made), mount]


def headless(service: Field) -> list[Edit]:
    """A Service of one address, or of each node's port, cannot be headless."""
    spec = service.at("spec")
    outside = spec.at("type").text in ("NodePort", "LoadBalancer")
    ports = [item.at("nodePort") for item in spec.at("ports").items]
    own = [spec.at("clusterIPs"), *([spec.at("type"), *ports] if outside else [])]
    return [put(spec.at("clusterIP"), "None"), *drop(*own)]


# Of a StatefulSet, a Deployment and a ReplicaSet, and no Job's.
_NO_JOBS = (
    "replicas", "selector", "serviceName", "podManagementPolicy", "updateStrategy", "strategy", "revisionHistoryLimit",
    "minReadySeconds", "persistentVolumeClaimRetentionPolicy", "ordinals", "paused", "progressDeadlineSeconds",
    "volumeClaimTemplates",
)  # fmt: skip


def as_job(trainer: Trainer, pods: int | None, subdomain: str, index: dict[str, Any] | None) -> list[Edit]:
    """An Indexed Job in the place of what restarts its pods for ever; its pods keep their names. None where it has
    claims of its own for each pod, or an unknown number of pods."""
    group = trainer.group
    root, spec = group.document.root, group.document.root.at("spec")
    if pods is None or spec.at("volumeClaimTemplates").items or spec.at("ordinals").there:
        return []
    numbers = [
        put(item.at("valueFrom"), index)
        for item in trainer.container.at("env").items
        if "pod-index" in item.at("valueFrom", "fieldRef", "fieldPath").text
    ]
    return [
        *numbers,
        put(root.at("apiVersion"), "batch/v1"),
        put(root.at("kind"), "Job"),
        *(
            Edit(spec.at(name), "drop")
            for name in _NO_JOBS
            if isinstance(spec.value, dict) and name in spec.value
        ),
        put(spec.at("completionMode"), "Indexed"),
        put(spec.at("completions"), pods),
        put(spec.at("parallelism"), pods),
        put(spec.at("backoffLimit"), 0),
        put(group.spec.at("restartPolicy"), "Never"),
        *(
            []
            if group.spec.at("subdomain").there or not subdomain
            else [put(group.spec.at("subdomain"), subdomain)]
        ),
    ]
