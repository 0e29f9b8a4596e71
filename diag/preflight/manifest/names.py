"""Whether the address at which the nodes meet will resolve, and to one pod."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence

from diag.preflight.line import Line, table
from diag.preflight.manifest.container import Trainer
from diag.preflight.manifest.job import ManifestJob, Manifests, known, report
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
        reported: set[str] = set()
        for trainer in job.trainers:
            if job.is_one_node(trainer) or not trainer.group.is_worker:
                continue
            for line in _of_trainer(trainer, job, manifests):
                if line.said.partition(": ")[2] not in reported:  # once for two Pods that are alike
                    reported.add(line.said.partition(": ")[2])
                    yield line


def _of_trainer(trainer: Trainer, job: ManifestJob, manifests: Manifests) -> Iterator[Line]:
    group, address = trainer.group, trainer.meeting.address
    place = trainer.place(*_ADDRESS)
    if address is None or not known(address):
        if _is_random(group) and (group.count or 2) > 1 and trainer.meeting.backend == "static":
            yield _random(group)
    elif address in ("localhost", "127.0.0.1", "::1", "0.0.0.0"):
        if (job.nodes_of(trainer) or 2) > 1:
            pods = job.pods or "several"
            yield report(place, "loopback", pods=pods, address=address, first=_first_name(group))
    elif _is_ip(address):
        if not group.spec.at("hostNetwork").value:
            yield report(place, "pod_address", address=address, first=_first_name(group))
    else:
        yield from _resolves(trainer, job, manifests, address, place)
        policy, network = group.spec.at("dnsPolicy"), group.spec.at("hostNetwork")
        if network.value is True and policy.text != "ClusterFirstWithHostNet" and not policy.is_template:
            yield report(policy if policy.there else network, "dns_policy")


def _is_ip(address: str) -> bool:
    try:
        return bool(ipaddress.ip_address(address))
    except ValueError:
        return False


def _first_name(group: PodGroup) -> str:
    name = group.names[0] if group.names else f"{group.document.name}-0"
    return f"{name}.{_subdomain(group)}"


def _subdomain(group: PodGroup) -> str:
    """That of the pods, or the one to give them."""
    return group.subdomain or group.document.name


def _is_random(group: PodGroup) -> bool:
    """Whether its pods have neither number nor name."""
    return group.kind == "Job" and not group.index


def _random(group: PodGroup) -> Line:
    place, values = (
        group.owner.at("completionMode"),
        {"subdomain": _subdomain(group), "name": group.document.name},
    )
    return report(place, "random_names", count=group.count or "N", **values)


def _resolves(
    trainer: Trainer, job: ManifestJob, manifests: Manifests, address: str, place: Field
) -> Iterator[Line]:
    group = trainer.group
    host, *rest = address.split(".")
    space = _namespace(rest)
    if space and space != group.document.namespace:
        yield from _other_namespace(group, manifests, address, place)
        if group.document.namespace:
            return
    sub = rest[0] if rest else ""
    owner = next((other for other in manifests.groups if host in other.names), None)
    service = manifests.service(host, group)
    if owner is not None and sub and (service is None or sub not in ("svc", group.document.namespace)):
        yield from _pod_name(owner, sub, manifests, place, address)
    elif service is not None:
        yield from _by_service(trainer, service, manifests, place)
    elif owner is not None:
        if not owner.bare_names:
            name = owner.document.name
            also = f"\nwith subdomain: {name} in the pod's spec and a headless Service of that name"
            also = "" if owner.subdomain else also
            yield report(place, "bare_name", address=address, host=host, service=_subdomain(owner), also=also)
    elif _is_random(group) and (host.startswith(group.document.name) or sub in _own_names(group)):
        yield _random(group)
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


def _other_namespace(group: PodGroup, manifests: Manifests, address: str, place: Field) -> Iterator[Line]:
    """The name is of another namespace than the pods: it resolves to somebody else's pods, or to nothing."""
    own, (host, *rest) = group.document.namespace, address.split(".")
    space = _namespace(rest)
    if not own:
        values = {"address": address, "space": space, "title": group.document.title}
        yield report(place, "unnamed_namespace", **values)
        return
    services = (item for item in manifests.documents if item.kind == "Service" and item.namespace == space)
    if not any(item.name in (host, rest[0]) for item in services):
        right = address.replace(f".{space}.svc", f".{own}.svc", 1)
        yield report(place, "other_namespace", address=address, space=space, own=own, right=right)


def _own_names(group: PodGroup) -> tuple[str, ...]:
    return tuple(name for name in (group.subdomain, group.document.name) if name)


def _no_such(
    trainer: Trainer, job: ManifestJob, manifests: Manifests, address: str, place: Field
) -> Iterator[Line]:
    group, pods = trainer.group, job.pods
    host, *rest = address.split(".")
    nodes = job.nodes_of(trainer)
    sub = rest[0] if rest else ""
    first, title = _first_name(group), group.document.title
    if pods is None or (nodes is not None and nodes > pods):
        yield report(place, "part_of_the_job", address=address)
    elif group.kind == "Pod" and not group.names and host == group.document.name:
        values = {"address": address, "host": host, "subdomain": sub or "SERVICE"}
        yield report(group.spec.at("hostname"), "pod_without_hostname", **values)
    elif (
        host.startswith(f"{group.document.name}-")
        or sub in _own_names(group)
        or (rest and manifests.service(sub, group) is not None)
    ):
        names = f"{group.names[0]} to {group.names[-1]}" if group.names else "at random"
        yield report(place, "no_such_pod", host=host, title=title, names=names, first=first)
    else:
        yield report(place, "unknown_name", address=address, first=first)


def _pod_name(owner: PodGroup, sub: str, manifests: Manifests, place: Field, address: str) -> Iterator[Line]:
    if owner.bare_names and not owner.subdomain:
        return  # a Service of each pod's own: POD.NAMESPACE
    if not owner.subdomain:
        values = {"address": address, "name": sub, "service": _service_text(owner, sub)}
        yield report(owner.spec.at("subdomain"), "no_subdomain", **values)
    elif sub != owner.subdomain:
        host = address.partition(".")[0]
        yield report(place, "other_subdomain", address=address, subdomain=owner.subdomain, host=host)
    elif not owner.has_service:
        service, elsewhere = manifests.service(sub, owner), manifests.service(sub)
        if service is not None:
            yield from _headless(service, owner, address)
        elif elsewhere is not None:
            own = owner.document.namespace
            yield report(
                elsewhere.root.at("metadata", "namespace"),
                "service_elsewhere",
                space=elsewhere.namespace or "(none)",
                title=owner.document.title,
                own=own or "(none)",
                address=address,
                remedy=f"namespace: {own}" if own else "the same for both",
            )
        else:
            text = _service_text(owner, sub)
            yield report(place, "no_service", address=address, name=sub, service=text)


def _headless(service: Document, owner: PodGroup, address: str) -> Iterator[Line]:
    spec = service.root.at("spec")
    cluster_ip, selector = spec.at("clusterIP"), spec.at("selector")
    if cluster_ip.text != "None" and not cluster_ip.is_template:
        yield report(cluster_ip, "not_headless", address=address)
    if not owner.has_labels(selector.mapping) and not selector.has_template:
        yield report(selector, "selects_nothing", title=owner.document.title, labels=_labels(owner))
    publishes = spec.at("publishNotReadyAddresses")
    if publishes.text != "true" and not publishes.is_template:
        probed = any(item.at("readinessProbe").there for item in owner.spec.at("containers").items)
        why = "which the readinessProbe delays until they train" if probed else "which takes some seconds"
        yield report(publishes, "not_ready", status="" if probed else "note", why=why)


def _labels(group: PodGroup) -> str:
    return ", ".join(f"{name}: {value}" for name, value in list(group.labels.items())[:3]) or "none"


def _by_service(trainer: Trainer, service: Document, manifests: Manifests, place: Field) -> Iterator[Line]:
    spec, group = service.root.at("spec"), trainer.group
    selector = spec.at("selector").mapping
    if not selector or any(name in selector for name in _ONE_POD):
        return
    selected = [each for each in manifests.groups if each.has_labels(selector)]
    counts = [each.count for each in selected]
    pods = None if None in counts else sum(count or 0 for count in counts)
    headless = spec.at("clusterIP").text == "None"
    if pods == 0:
        title = group.document.title
        yield report(spec.at("selector"), "service_without_pods", title=title, labels=_labels(group))
    elif pods is not None and pods > 1:
        yield report(
            place,
            "service_of_many",
            service=service.name,
            pods=pods,
            how="resolves to all of them" if headless else "leads to any of them",
            first=_first_name(selected[0]),
            also="" if headless else ", and clusterIP: None in the Service",
        )
    elif pods == 1 and not headless:
        ports, port = spec.at("ports"), trainer.meeting.port
        numbers = [item.at("port").number for item in ports.items]
        if port not in numbers and None not in numbers:
            yield report(ports, "port_not_passed", port=port)


def _service_text(owner: PodGroup, name: str) -> str:
    added = ("batch.kubernetes.io/", "jobset.sigs")  # by controllers
    own = {key: value for key, value in owner.labels.items() if not key.startswith(added)}
    if len(own) > 1:
        own.pop("job-name", None)
    labels = ", ".join(f"{key}: {value}" for key, value in list(own.items())[:2])
    return fill(table("manifest")["service"], name=name, labels=labels)
