"""Whether the address at which the nodes meet will resolve, and to one pod."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence

from diag.preflight.line import Line
from diag.preflight.manifest.container import Trainer
from diag.preflight.manifest.job import ManifestJob, Manifests, known, told
from diag.preflight.manifest.pods import PodGroup
from diag.preflight.manifest.reading import Document, Field

_ID = "hostname-resolution"
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
        said: set[str] = set()
        for trainer in job.trainers:
            if job.is_one_node(trainer) or not trainer.group.is_worker:
                continue
            for line in _of_trainer(trainer, job, manifests):
                if line.said.partition(": ")[2] not in said:  # once for two Pods that are alike
                    said.add(line.said.partition(": ")[2])
                    yield line


def _of_trainer(trainer: Trainer, job: ManifestJob, manifests: Manifests) -> Iterator[Line]:
    group, address = trainer.group, trainer.meeting.address
    place = trainer.place(*_ADDRESS)
    if address is not None and known(address):
        if address in ("localhost", "127.0.0.1", "::1", "0.0.0.0"):
            if (job.nodes_of(trainer) or 2) > 1:
                yield told(
                    place,
                    "problem",
                    f"each of {job.pods or 'several'} pods would wait for the others at its own {address}",
                    f"MASTER_ADDR: {_first_name(group)}",
                    "rendezvous-failure",
                    "critical",
                )
            return
        if _is_ip(address):
            if not group.spec.at("hostNetwork").value:
                yield told(
                    place,
                    "note",
                    f"{address} is the address of one pod of one start: the next pod has another",
                    f"MASTER_ADDR: {_first_name(group)}",
                    _ID,
                )
            return
        yield from _resolves(trainer, job, manifests, address, place)
        yield from _dns_policy(group)
    elif (
        group.kind == "Job"
        and not group.index
        and (group.count or 2) > 1
        and trainer.meeting.backend == "static"
    ):
        yield _random(trainer)


def _is_ip(address: str) -> bool:
    try:
        return bool(ipaddress.ip_address(address))
    except ValueError:
        return False


def _first_name(group: PodGroup) -> str:
    name = group.names[0] if group.names else f"{group.document.name}-0"
    return f"{name}.{group.subdomain or group.document.name}"


def _random(trainer: Trainer) -> Line:
    group = trainer.group
    count = group.count or "N"
    return told(
        group.owner.at("completionMode"),
        "problem",
        f"without it the {count} pods of this Job have random names and no number: no name of node 0 resolves, none knows its "
        "NODE_RANK",
        f"spec:\n  completionMode: Indexed\n  completions: {count}\n  parallelism: {count}\n  template:\n    spec:\n"
        f"      subdomain: {group.subdomain or group.document.name}\nand MASTER_ADDR: "
        f"{group.document.name}-0.{group.subdomain or group.document.name}, with a headless Service of that name",
        _ID,
        "critical",
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
    if owner is not None and sub and not (service is not None and sub in ("svc", group.document.namespace)):
        yield from _pod_name(owner, sub, manifests, place, address)
    elif owner is not None and service is None:
        if not owner.bare_names:
            yield told(
                place,
                "problem",
                f"{address}: a pod's bare name does not resolve, only POD.SERVICE does",
                _service_remedy(owner, f"{host}.{owner.subdomain or owner.document.name}"),
                _ID,
                "critical",
            )
    elif service is not None:
        yield from _by_service(trainer, service, manifests, place)
    elif (
        group.kind == "Job"
        and not group.index
        and (host.startswith(group.document.name) or sub in _own_words(group))
    ):
        yield _random(trainer)
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
    own, (host, *rest) = trainer.group.document.namespace, address.split(".")
    space = _namespace(rest)
    if not own:
        said = f"{address} is of namespace {space}, and the manifest of {trainer.group.document.title} names none"
        yield told(
            place,
            "not checked",
            f"{said}: it is the one that kubectl puts it in",
            f"metadata:\n  namespace: {space}",
        )
        return
    known_there = any(
        item.kind == "Service" and item.namespace == space and item.name in (host, rest[0])
        for item in manifests.documents
    )
    if known_there:
        return
    right = address.replace(f".{space}.svc", f".{own}.svc", 1)
    yield told(
        place,
        "problem",
        f"{address} is of namespace {space}, and these pods are in {own}: it does not resolve, or to another job's pods",
        f"MASTER_ADDR: {right}",
        _ID,
        "critical",
    )


def _own_words(group: PodGroup) -> tuple[str, ...]:
    return tuple(word for word in (group.subdomain, group.document.name) if word)


def _no_such(
    trainer: Trainer, job: ManifestJob, manifests: Manifests, address: str, place: Field
) -> Iterator[Line]:
    group, pods = trainer.group, job.pods
    host, *rest = address.split(".")
    nodes = job.nodes_of(trainer)
    elsewhere = group.kind == "Pod" and not group.names
    if (pods is not None and nodes is not None and nodes > pods) or pods is None:
        yield told(
            place,
            "not checked",
            f"{address} is no pod or Service of what was given, which is not the whole job",
            "give all of it: diag doctor --manifest FOLDER",
        )
    elif elsewhere and host == group.document.name:
        yield told(
            group.spec.at("hostname"),
            "problem",
            f"{address} does not resolve: a Pod's name is not its host name in the cluster's DNS",
            f"spec:\n  hostname: {host}\n  subdomain: {rest[0] if rest else 'SERVICE'}",
            _ID,
            "critical",
        )
    elif (
        host.startswith(f"{group.document.name}-")
        or (rest and rest[0] in _own_words(group))
        or (rest and manifests.service(rest[0], group) is not None)
    ):
        names = f"{group.names[0]} to {group.names[-1]}" if group.names else "at random"
        yield told(
            place,
            "problem",
            f"no pod will be called {host}: those of {group.document.title} are named {names}",
            f"MASTER_ADDR: {_first_name(group)}",
            _ID,
            "critical",
        )
    else:
        yield told(
            place,
            "not checked",
            f"{address} is no pod or Service of what was given",
            f"give its manifest too, or MASTER_ADDR: {_first_name(group)}",
        )


def _pod_name(owner: PodGroup, sub: str, manifests: Manifests, place: Field, address: str) -> Iterator[Line]:
    if owner.bare_names and not owner.subdomain:
        return  # a Service of each pod's own: POD.NAMESPACE
    if not owner.subdomain:
        yield told(
            owner.spec.at("subdomain"),
            "problem",
            f"without it {address} does not resolve: Kubernetes makes names for pods of a headless Service alone",
            _service_remedy(owner, sub, subdomain=True),
            _ID,
            "critical",
        )
        return
    if sub != owner.subdomain:
        yield told(
            place,
            "problem",
            f"{address}: the pods' subdomain is {owner.subdomain}, so that their names end in it",
            f"MASTER_ADDR: {address.partition('.')[0]}.{owner.subdomain}",
            _ID,
            "critical",
        )
        return
    if owner.has_service:
        return
    service = manifests.service(sub, owner)
    if service is None:
        other = next(
            (item for item in manifests.documents if item.kind == "Service" and item.name == sub), None
        )
        if other is not None:
            yield told(
                other.root.at("metadata", "namespace"),
                "problem",
                f"it is in namespace {other.namespace or '(none)'}, and {owner.document.title} in "
                f"{owner.document.namespace or '(none)'}: {address} does not resolve there",
                f"namespace: {owner.document.namespace}" if owner.document.namespace else "the same for both",
                _ID,
                "critical",
            )
        else:
            yield told(
                place,
                "problem",
                f"{address} needs a headless Service {sub}, and there is none in what was given",
                "its file too (--manifest), or:\n" + _service_text(owner, sub),
                _ID,
                "critical",
            )
        return
    yield from _headless(service, owner, manifests, address)


def _headless(service: Document, owner: PodGroup, manifests: Manifests, address: str) -> Iterator[Line]:
    spec = service.root.at("spec")
    cluster_ip = spec.at("clusterIP")
    if cluster_ip.text != "None" and not cluster_ip.is_template:
        yield told(
            cluster_ip,
            "problem",
            f"{address} does not resolve: only a headless Service gives its pods names",
            "clusterIP: None",
            _ID,
            "critical",
        )
    if not manifests.selected(service, owner) and not spec.at("selector").has_template:
        labels = ", ".join(f"{name}: {value}" for name, value in list(owner.labels.items())[:3]) or "none"
        yield told(
            spec.at("selector"),
            "problem",
            f"it selects no pod of {owner.document.title}, whose labels are {{{labels}}}",
            "selector: {" + labels + "}",
            _ID,
            "critical",
        )
    publishes = spec.at("publishNotReadyAddresses")
    if publishes.text != "true" and not publishes.is_template:
        probed = any(item.at("readinessProbe").there for item in owner.spec.at("containers").items)
        why = "which the readinessProbe delays until they train" if probed else "which takes some seconds"
        yield told(
            publishes,
            "problem" if probed else "note",
            f"pods have no name before they are ready, {why}: nodes that look node 0 up earlier fail or wait",
            "publishNotReadyAddresses: true",
            _ID,
        )


def _by_service(trainer: Trainer, service: Document, manifests: Manifests, place: Field) -> Iterator[Line]:
    spec = service.root.at("spec")
    selector = spec.at("selector").mapping
    if not selector or any(name in selector for name in _ONE_POD):
        return
    selected = [group for group in manifests.groups if manifests.selected(service, group)]
    counts = [group.count for group in selected]
    headless = spec.at("clusterIP").text == "None"
    pods = None if None in counts else sum(count or 0 for count in counts)
    if pods == 0:
        labels = (
            ", ".join(f"{name}: {value}" for name, value in list(trainer.group.labels.items())[:3]) or "none"
        )
        yield told(
            spec.at("selector"),
            "problem",
            f"it selects no pod of what was given; those of {trainer.group.document.title} have {{{labels}}}",
            "selector: the labels of the pod template of node 0",
            _ID,
            "critical",
        )
    elif pods is not None and pods > 1:
        how = "resolves to all of them" if headless else "leads to any of them"
        yield told(
            place,
            "problem",
            f"Service {service.name} has {pods} pods and its name {how}: nodes would meet at different ones",
            f"MASTER_ADDR: {_first_name(selected[0])}"
            + ("" if headless else ", and clusterIP: None in the Service"),
            _ID,
            "critical",
        )
    elif pods == 1 and not headless:
        ports = [item.at("port").number for item in spec.at("ports").items]
        if trainer.meeting.port not in ports and None not in ports and known(str(trainer.meeting.port)):
            yield told(
                spec.at("ports"),
                "problem",
                f"it does not pass on port {trainer.meeting.port}, at which the nodes meet, nor "
                "those that NCCL chooses by itself",
                "clusterIP: None",
                "rendezvous-failure",
                "critical",
            )


def _service_text(owner: PodGroup, name: str) -> str:
    own = {
        key: value
        for key, value in owner.labels.items()
        if not key.startswith(("batch.kubernetes.io/", "jobset.sigs"))
    }
    if len(own) > 1:
        own.pop("job-name", None)
    labels = ", ".join(f"{key}: {value}" for key, value in list(own.items())[:2])
    return (
        f"apiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\nspec:\n  clusterIP: None\n  publishNotReadyAddresses: true\n"
        f"  selector: {{{labels}}}"
    )


def _service_remedy(owner: PodGroup, name: str, *, subdomain: bool = False) -> str:
    if subdomain:
        return f"subdomain: {name}\nand, unless it is there:\n" + _service_text(owner, name)
    said = (
        ""
        if owner.subdomain
        else f"\nwith subdomain: {owner.document.name} in the pod's spec and a headless Service of that name"
    )
    return f"MASTER_ADDR: {name}{said}"


def _dns_policy(group: PodGroup) -> Iterator[Line]:
    policy = group.spec.at("dnsPolicy")
    if (
        group.spec.at("hostNetwork").value is True
        and policy.text != "ClusterFirstWithHostNet"
        and not policy.is_template
    ):
        yield told(
            policy if policy.there else group.spec.at("hostNetwork"),
            "problem",
            "with hostNetwork the node's own DNS is asked, which knows no pod and no Service",
            "dnsPolicy: ClusterFirstWithHostNet",
            _ID,
            "critical",
        )
