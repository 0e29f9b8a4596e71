"""Whether the address at which the nodes meet will resolve, and to one pod."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import yaml

from diag.preflight.line import Line, table
from diag.preflight.manifest.container import Trainer
from diag.preflight.manifest.counts import meets
from diag.preflight.manifest.edits import Edit, drop, headless, put, set_address
from diag.preflight.manifest.job import LOOPBACK, ManifestJob, Manifests, known, report
from diag.preflight.manifest.pods import PodGroup
from diag.preflight.manifest.reading import Document, Field
from diag.text.tables import fill

_ADDRESS = ("MASTER_ADDR", "PET_MASTER_ADDR", "PET_RDZV_ENDPOINT")
# Labels that only one pod of a set has.
_ONE_POD = (
    "statefulset.kubernetes.io/pod-name",
    "apps.kubernetes.io/pod-index",
    "batch.kubernetes.io/job-completion-index",
    "training.kubeflow.org/replica-index",
    "training.kubeflow.org/job-role",
    "jobset.sigs.k8s.io/job-index",
)


def name_lines(manifests: Manifests) -> Iterator[Line]:
    for job in manifests.jobs:
        for trainer in job.trainers:
            if not job.is_one_node(trainer) and trainer.group.is_worker:
                yield from _of_trainer(trainer, job, manifests)


def _of_trainer(trainer: Trainer, job: ManifestJob, manifests: Manifests) -> Iterator[Line]:
    group, address = trainer.group, trainer.meeting.address
    place = trainer.place(*_ADDRESS)
    if address is None or not known(address):
        together = trainer.meeting.nodes_from or meets(trainer)  # and not each on its own, as in a sweep
        if _is_random(group) and (group.count or 2) > 1 and trainer.meeting.backend == "static" and together:
            yield _random(trainer, manifests)
    elif address in LOOPBACK:
        if (job.nodes_of(trainer) or 2) > 1:
            pods, first = job.pods or "several", _first(job, group, manifests)
            edits = _meet_at(trainer, job, first)
            yield report(place, "loopback", edits=edits, pods=pods, address=address, first=first.address)
    elif _is_ip(address):
        if not group.spec.at("hostNetwork").value:
            first = _first(job, group, manifests)
            yield report(place, "pod_address", address=address, first=first.address)
    else:
        yield from _resolves(trainer, job, manifests, address, place)
        policy, network = group.spec.at("dnsPolicy"), group.spec.at("hostNetwork")
        if network.value is True and policy.text != "ClusterFirstWithHostNet" and not policy.is_template:
            wanted = [put(policy, "ClusterFirstWithHostNet")]
            yield report(policy if policy.there else network, "dns_policy", edits=wanted)


def _is_ip(address: str) -> bool:
    try:
        return bool(ipaddress.ip_address(address))
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class _First:
    """The name of node 0, and what gives it this name."""

    address: str
    edits: tuple[Edit, ...] = ()


def _first(job: ManifestJob, group: PodGroup, manifests: Manifests) -> _First:
    group = _first_group(job, group)
    subdomain = manifests.subdomain_of(group)
    if group.names or group.kind != "Pod":
        return _First(f"{group.names[0] if group.names else f'{group.document.name}-0'}.{subdomain}")
    named = put(group.spec.at("hostname"), group.document.name)
    return _First(f"{group.document.name}.{subdomain}", (named,))


def _first_group(job: ManifestJob, group: PodGroup) -> PodGroup:
    """Of Pods that are written out the one that is node 0."""
    zeros = [each.group for each in job.trainers if job.rank_of(each) == "0"]
    return zeros[0] if group.kind == "Pod" and len(zeros) == 1 else group


def _meet_at(trainer: Trainer, job: ManifestJob, first: _First) -> list[Edit]:
    """None where more pods than these belong to the job: node 0 may be another one."""
    nodes, pods = job.nodes_of(trainer), job.pods
    if pods is None or (nodes is not None and nodes > pods):
        return []
    edits = set_address(trainer, first.address)
    return [*first.edits, *edits] if edits else []


def _is_random(group: PodGroup) -> bool:
    """Whether its pods have neither number nor name."""
    return group.kind == "Job" and not group.index


def _random(trainer: Trainer, manifests: Manifests) -> Line:
    """All that it takes, in one piece: pods with numbers, names that resolve, and the Service that makes them
    resolve."""
    group, owner = trainer.group, trainer.group.owner
    name, subdomain, count = group.document.name, manifests.subdomain_of(group), group.count
    edits: list[Edit] = []
    if count is not None:
        edits = [put(owner.at("completionMode"), "Indexed"), put(group.spec.at("subdomain"), subdomain)]
        edits += [put(owner.at(each), count) for each in ("completions", "parallelism")]
    there = manifests.service(subdomain, group)
    service = "" if there is not None else f"\nand this Service:\n{_service_text(group, subdomain)}"
    return report(
        owner.at("completionMode"),
        "random_names",
        edits=edits,
        count=count or "N",
        subdomain=subdomain,
        address=f"{name}-0.{subdomain}",
        how=table("manifest")["node_rank"]["JOB_COMPLETION_INDEX"],
        service=service,
    )


def _resolves(
    trainer: Trainer, job: ManifestJob, manifests: Manifests, address: str, place: Field
) -> Iterator[Line]:
    group = trainer.group
    host, *rest = address.split(".")
    space = _namespace(rest)
    if space and space != group.document.namespace:
        yield from _other_namespace(trainer, manifests, address, place)
        if group.document.namespace:
            return
    sub = rest[0] if rest else ""
    owner = next((other for other in manifests.groups if host in other.names), None)
    service = manifests.service(host, group)
    if owner is not None and sub and (service is None or sub not in ("svc", group.document.namespace)):
        yield from _pod_name(trainer, owner, manifests, place, address)
    elif service is not None:
        yield from _by_service(trainer, job, service, manifests, place)
    elif owner is not None:
        if not owner.bare_names:
            service_name = manifests.subdomain_of(owner)
            also = f"\nwith subdomain: {service_name} in the pod's spec and a headless Service of that name"
            also = "" if owner.subdomain else also
            edits = set_address(trainer, f"{host}.{service_name}")
            values = {"address": address, "host": host, "service": service_name, "also": also}
            yield report(place, "bare_name", edits=edits, **values)
    elif _is_random(group) and (host.startswith(group.document.name) or sub in _own_names(group, manifests)):
        yield _random(trainer, manifests)
    else:
        yield from _no_such(trainer, job, manifests, address, place)


def _namespace(rest: Sequence[str]) -> str:
    """The namespace that a name in the cluster's DNS has, HOST[.SERVICE].NAMESPACE.svc...; "" where it has
    none.

    >>> _namespace("default.svc.cluster.local".split(".")), _namespace(["dpo", "team-a", "svc"]), _namespace(["dpo"])
    ('default', 'team-a', '')
    """
    at = list(rest).index("svc") if "svc" in rest else 0
    return rest[at - 1] if at else ""


def _other_namespace(trainer: Trainer, manifests: Manifests, address: str, place: Field) -> Iterator[Line]:
    """The name is of another namespace than the pods: it resolves to somebody else's pods, or to nothing."""
    group = trainer.group
    own, (host, *rest) = group.document.namespace, address.split(".")
    space = _namespace(rest)
    if not own:
        title = group.document.title
        yield report(place, "unnamed_namespace", address=address, space=space, title=title)
        return
    services = (item for item in manifests.documents if item.kind == "Service" and item.namespace == space)
    if not any(item.name in (host, rest[0]) for item in services):
        right = address.replace(f".{space}.svc", f".{own}.svc", 1)
        edits = set_address(trainer, right)
        key = "other_namespace"
        yield report(place, key, edits=edits, address=address, space=space, own=own, right=right)


def _own_names(group: PodGroup, manifests: Manifests) -> tuple[str, ...]:
    """What its pods' names may end in."""
    return (group.document.name, manifests.subdomain_of(group))


def _no_such(
    trainer: Trainer, job: ManifestJob, manifests: Manifests, address: str, place: Field
) -> Iterator[Line]:
    group, pods = trainer.group, job.pods
    host, *rest = address.split(".")
    nodes = job.nodes_of(trainer)
    sub = rest[0] if rest else ""
    first, title = _first(job, group, manifests), group.document.title
    if pods is None or (nodes is not None and nodes > pods):
        yield report(place, "part_of_the_job", address=address)
    elif group.kind == "Pod" and not group.names and host == group.document.name:
        subdomain = sub or manifests.subdomain_of(group)
        values = {"address": address, "host": host, "subdomain": subdomain}
        edits = [put(group.spec.at("hostname"), host), put(group.spec.at("subdomain"), subdomain)]
        yield report(group.spec.at("hostname"), "pod_without_hostname", edits=edits, **values)
    elif (
        host.startswith(f"{group.document.name}-")
        or sub in _own_names(group, manifests)
        or (rest and manifests.service(sub, group) is not None)
    ):
        names = f"{group.names[0]} to {group.names[-1]}" if group.names else "at random"
        values = {"host": host, "title": title, "names": names, "first": first.address}
        yield report(place, "no_such_pod", edits=_meet_at(trainer, job, first), **values)
    else:
        yield report(place, "unknown_name", address=address, first=first.address)


def _pod_name(
    trainer: Trainer, owner: PodGroup, manifests: Manifests, place: Field, address: str
) -> Iterator[Line]:
    """The address begins with the name of a pod."""
    host, sub, *_ = address.split(".")
    if owner.bare_names and not owner.subdomain:
        return  # a Service of each pod's own: POD.NAMESPACE
    if not owner.subdomain:
        values = {"address": address, "name": sub, "service": _service_text(owner, sub)}
        place, edits = owner.spec.at("subdomain"), [put(owner.spec.at("subdomain"), sub)]
        yield report(place, "no_subdomain", edits=edits, **values)
    elif sub != owner.subdomain:
        values = {"address": address, "subdomain": owner.subdomain, "host": host}
        edits = set_address(trainer, f"{host}.{owner.subdomain}")
        yield report(place, "other_subdomain", edits=edits, **values)
    elif not owner.has_service:
        service, elsewhere = manifests.service(sub, owner), manifests.service(sub)
        if service is not None:
            yield from _headless(service, owner, address)
        elif elsewhere is not None:
            own = owner.document.namespace
            spaced = elsewhere.root.at("metadata", "namespace")
            yield report(
                spaced,
                "service_elsewhere",
                edits=[put(spaced, own)] if own else drop(spaced),
                space=elsewhere.namespace or "(none)",
                title=owner.document.title,
                own=own or "(none)",
                address=address,
                remedy=f"namespace: {own}" if own else "the same for both",
            )
        else:
            text = _service_text(owner, sub)
            edits = _new_service(owner, sub, text)
            yield report(place, "no_service", edits=edits, address=address, name=sub, service=text)


def _new_service(owner: PodGroup, name: str, text: str) -> list[Edit]:
    value = yaml.safe_load(text)
    if owner.document.namespace:
        value["metadata"]["namespace"] = owner.document.namespace
    edits = []
    if not value["spec"]["selector"]:
        value["spec"]["selector"] = {"app": name}
        edits = [put(owner.metadata.at("labels", "app"), name)]
    return [*edits, Edit(owner.document.root, "document", value)]


def _headless(service: Document, owner: PodGroup, address: str) -> Iterator[Line]:
    spec = service.root.at("spec")
    cluster_ip, selector = spec.at("clusterIP"), spec.at("selector")
    if cluster_ip.text != "None" and not cluster_ip.is_template:
        yield report(cluster_ip, "not_headless", edits=headless(service.root), address=address)
    if not owner.has_labels(selector.mapping) and not selector.has_template:
        labels, title = _labels(owner), owner.document.title
        yield report(selector, "selects_nothing", edits=_select(selector, owner), title=title, labels=labels)
    publishes = spec.at("publishNotReadyAddresses")
    if publishes.text != "true" and not publishes.is_template:
        probed = any(item.at("readinessProbe").there for item in owner.spec.at("containers").items)
        why = "which the readinessProbe delays until they train" if probed else "which takes some seconds"
        status, edits = "" if probed else "note", [put(publishes, True)]
        yield report(publishes, "not_ready", status=status, edits=edits, why=why)


def _labels(group: PodGroup) -> str:
    return ", ".join(f"{name}: {value}" for name, value in list(group.labels.items())[:3]) or "none"


def _select(selector: Field, group: PodGroup) -> list[Edit]:
    """The pods by their own labels, which are given them where they have none."""
    labels = own_labels(group)
    if labels:
        return [put(selector, labels)]
    if selector.mapping:
        return [put(group.metadata.at("labels"), selector.mapping)]
    return [
        put(group.metadata.at("labels", "app"), group.document.name),
        put(selector.at("app"), group.document.name),
    ]


def _by_service(
    trainer: Trainer, job: ManifestJob, service: Document, manifests: Manifests, place: Field
) -> Iterator[Line]:
    spec, group = service.root.at("spec"), trainer.group
    selector = spec.at("selector").mapping
    if not selector or any(name in selector for name in _ONE_POD):
        return
    selected = [each for each in manifests.groups if each.has_labels(selector)]
    counts = [each.count for each in selected]
    pods = None if None in counts else sum(count or 0 for count in counts)
    is_headless = spec.at("clusterIP").text == "None"
    if pods == 0:
        node_0, chosen = _first_group(job, group), spec.at("selector")
        values = {"title": node_0.document.title, "labels": _labels(node_0)}
        yield report(chosen, "service_without_pods", edits=_select(chosen, node_0), **values)
    elif pods is not None and pods > 1:
        first = _first(job, selected[0], manifests)
        host, _, own = first.address.partition(".")
        first = _First(f"{host}.{own if selected[0].subdomain else service.name}", first.edits)
        edits = _meet_at(trainer, job, first)
        yield report(
            place,
            "service_of_many",
            edits=[*edits, *([] if is_headless or not edits else headless(service.root))],
            service=service.name,
            pods=pods,
            how="resolves to all of them" if is_headless else "leads to any of them",
            first=first.address,
            also="" if is_headless else ", and clusterIP: None in the Service",
        )
    elif pods == 1 and not is_headless:
        ports, port = spec.at("ports"), trainer.meeting.port
        numbers = [item.at("port").number for item in ports.items]
        if port not in numbers and None not in numbers:
            yield report(ports, "port_not_passed", edits=headless(service.root), port=port)


def own_labels(group: PodGroup) -> dict[str, str]:
    """Those by which a Service can choose these pods, two at most: what controllers add is left to them."""
    added = ("batch.kubernetes.io/", "jobset.sigs")
    own = {key: value for key, value in group.labels.items() if not key.startswith(added)}
    if len(own) > 1:
        own.pop("job-name", None)
    return dict(list(own.items())[:2])


def _service_text(owner: PodGroup, name: str) -> str:
    """YAML, whatever the names and labels hold."""
    return fill(table("manifest")["service"], name=_inline([name]), labels=_inline(own_labels(owner)))


def _inline(value: Mapping[str, str] | list[str]) -> str:
    """Without its brackets."""
    return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=math.inf).strip()[1:-1]
