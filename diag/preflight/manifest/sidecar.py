"""diag's own container in the pod, and whether Prometheus will find its port: what would leave diag blind."""

from __future__ import annotations

from collections.abc import Iterator

from diag.preflight.line import Line
from diag.preflight.manifest.container import Trainer, is_sidecar, user_of
from diag.preflight.manifest.job import Manifests, told
from diag.preflight.manifest.pods import PodGroup
from diag.preflight.manifest.reading import Field


def sidecar_lines(manifests: Manifests) -> Iterator[Line]:
    trainers = {id(trainer.group): trainer for job in manifests.jobs for trainer in job.trainers}
    pods = {id(trainer.group): job.pods for job in manifests.jobs for trainer in job.trainers}
    for group in manifests.groups:
        for part in ("initContainers", "containers"):
            for container in group.spec.at(part).items:
                if is_sidecar(container):
                    trainer = trainers.get(id(group))
                    yield from _sidecar(group, container, trainer, part)
                    if (pods.get(id(group)) or 1) > 1 and not _tokened(container):
                        yield told(
                            container.at("env"),
                            "not checked",
                            "without DIAG_TOKEN each diag judges its own node alone",
                            "- name: DIAG_TOKEN\n  valueFrom: {secretKeyRef: {name: diag-token, key: token}}",
                        )


def _tokened(container: Field) -> bool:
    names = {item.at("name").text for item in container.at("env").items}
    return bool(names & {"DIAG_TOKEN", "DIAG_TOKEN_FILE"}) or container.at("envFrom").there


def _sidecar(group: PodGroup, container: Field, trainer: Trainer | None, part: str) -> Iterator[Line]:
    if part == "initContainers" and container.at("restartPolicy").text != "Always":
        yield told(
            container,
            "problem",
            "an init container has to end before the next one starts, and `diag watch` waits for the "
            "trainer: neither ever goes on",
            "restartPolicy: Always  (Kubernetes 1.29; before: among containers)",
            "hang",
            "critical",
        )
    yield from _probe(container, part)
    shares = group.spec.at("shareProcessNamespace").text == "true" or group.spec.at("hostPID").text == "true"
    if not shares and not group.spec.at("shareProcessNamespace").is_template:
        yield told(
            group.spec.at("shareProcessNamespace"),
            "not checked",
            "without it diag sees no process but its own: no rank will be watched",
            "shareProcessNamespace: true",
        )
    yield from _may_look(group, container, trainer)
    limit = container.at("resources", "limits", "memory")
    if not limit.there and not container.at("resources").is_template:
        yield told(
            container.at("resources", "limits"),
            "note",
            "diag has no memory limit of its own: when the pod or node is full, it may be killed with the trainer",
            "resources:\n  limits: {memory: 2Gi}",
        )


def _probe(container: Field, part: str) -> Iterator[Line]:
    """The kubelet asks the pod's own address, and diag listens on loopback unless told otherwise."""
    probe = next(
        (
            container.at(name)
            for name in ("startupProbe", "livenessProbe")
            if container.at(name, "httpGet").there
        ),
        None,
    )
    words = [item.text for name in ("command", "args") for item in container.at(name).items]
    names = {item.at("name").text for item in container.at("env").items}
    if (
        probe is None
        or "DIAG_HOST" in names
        or any(word.startswith("--host") for word in words)
        or container.at("envFrom").there
    ):
        return
    waits = (
        ", and the trainer waits for it"
        if part == "initContainers" and probe.path[-1] == "startupProbe"
        else ""
    )
    yield told(
        probe,
        "problem",
        f"the kubelet asks the pod's address, and diag listens on 127.0.0.1: the probe fails{waits}",
        "- {name: DIAG_HOST, value: 0.0.0.0}",
        "hang",
        "critical" if waits else "warning",
    )


def _may_look(group: PodGroup, container: Field, trainer: Trainer | None) -> Iterator[Line]:
    security = container.at("securityContext")
    if security.at("privileged").value is True:
        return
    added = {item.text.removeprefix("CAP_") for item in security.at("capabilities", "add").items}
    user = user_of(group, container)
    if trainer is not None and user is not None and trainer.user is not None and user != trainer.user:
        yield told(
            security.at("runAsUser"),
            "not checked",
            f"diag is user {user} and the trainer {trainer.user}: environment, open "
            "files and traffic of the ranks stay closed to it"
            + ("" if "SYS_PTRACE" in added else ", stacks too"),
            f"runAsUser: {trainer.user}",
        )
    elif "SYS_PTRACE" in added:
        if user:
            yield told(
                security.at("capabilities", "add"),
                "note",
                f"Kubernetes gives added capabilities to root's processes alone: for "
                f"user {user} SYS_PTRACE does nothing, the same user is what lets diag look",
                "",
            )
    elif trainer is None or not user or trainer.user is None or trainer.capabilities:
        yield told(
            security,
            "not checked",
            "without SYS_PTRACE diag may read no stack of the ranks",
            "securityContext:\n  capabilities:\n    add: [SYS_PTRACE]",
        )


def monitor_lines(manifests: Manifests) -> Iterator[Line]:
    for document in manifests.documents:
        if document.kind != "PodMonitor":
            continue
        wanted = document.root.at("spec", "selector", "matchLabels").mapping
        selected = [
            group
            for group in manifests.groups
            if wanted and all(group.labels.get(k) == v for k, v in wanted.items())
        ]
        names = {
            port.at("name").text
            for group in selected
            for part in ("initContainers", "containers")
            for container in group.spec.at(part).items
            for port in container.at("ports").items
        }
        for endpoint in document.root.at("spec", "podMetricsEndpoints").items:
            port = endpoint.at("port")
            if selected and port.text and port.text not in names:
                has = ", ".join(sorted(name for name in names if name)) or "no name"
                yield told(
                    port,
                    "not checked",
                    f"no container of {selected[0].document.title} has a port of the name {port.text} "
                    f"(they have: {has}): Prometheus scrapes nothing, and says nothing",
                    f"ports:\n- {{name: {port.text}, containerPort: 9095}}",
                )
