"""diag's own container in the pod, and whether Prometheus will find its port: what would leave diag blind."""

from __future__ import annotations

from collections.abc import Iterator

from diag.preflight.line import Line
from diag.preflight.manifest.container import Trainer, capabilities_of, command_of, is_sidecar, user_of
from diag.preflight.manifest.edits import add, put
from diag.preflight.manifest.job import Manifests, report
from diag.preflight.manifest.pods import PodGroup
from diag.preflight.manifest.reading import Field


def sidecar_lines(manifests: Manifests) -> Iterator[Line]:
    jobs = {id(trainer.group): (trainer, job) for job in manifests.jobs for trainer in job.trainers}
    for group in manifests.groups:
        trainer, job = jobs.get(id(group), (None, None))
        for container in group.containers:
            if is_sidecar(container):
                yield from _sidecar(group, container, trainer)
                names = _variables(container)
                tokened = names & {"DIAG_TOKEN", "DIAG_TOKEN_FILE"} or container.at("envFrom").there
                if job is not None and (job.pods or 1) > 1 and not tokened:
                    yield report(container.at("env"), "no_token")


def _variables(container: Field) -> set[str]:
    return {item.at("name").text for item in container.at("env").items}


def _sidecar(group: PodGroup, container: Field, trainer: Trainer | None) -> Iterator[Line]:
    is_init = "initContainers" in container.path
    if is_init and container.at("restartPolicy").text != "Always":
        yield report(container, "init_container", edits=[put(container.at("restartPolicy"), "Always")])
    yield from _probe(container, is_init=is_init)
    shares = group.spec.at("shareProcessNamespace")
    if "true" not in (shares.text, group.spec.at("hostPID").text) and not shares.is_template:
        yield report(shares, "no_shared_processes")
    yield from _may_look(group, container, trainer)
    resources = container.at("resources")
    if not resources.at("limits", "memory").there and not resources.is_template:
        yield report(resources.at("limits"), "no_own_limit")


def _probe(container: Field, *, is_init: bool) -> Iterator[Line]:
    """The kubelet asks the pod's own address, and diag listens on loopback unless configured otherwise."""
    words = command_of(container)
    listens = "DIAG_HOST" in _variables(container) or any(word.startswith("--host") for word in words)
    for name in ("startupProbe", "livenessProbe"):
        if container.at(name, "httpGet").there:
            if not listens and not container.at("envFrom").there:
                blocks = is_init and name == "startupProbe"
                waits = ", and the trainer waits for it" if blocks else ""
                severity = "critical" if blocks else ""
                edits = [add(container.at("env"), {"name": "DIAG_HOST", "value": "0.0.0.0"})]
                yield report(container.at(name), "probe", edits=edits, waits=waits, severity=severity)
            return


def _may_look(group: PodGroup, container: Field, trainer: Trainer | None) -> Iterator[Line]:
    security = container.at("securityContext")
    if security.at("privileged").value is True:
        return
    has_ptrace = "SYS_PTRACE" in capabilities_of(container)
    user = user_of(group, container)
    if trainer is not None and user is not None and trainer.user is not None and user != trainer.user:
        stacks = "" if has_ptrace else ", stacks too"
        place = security.at("runAsUser")
        yield report(place, "other_user", user=user, trainer=trainer.user, stacks=stacks)
    elif has_ptrace:
        if user:
            yield report(security.at("capabilities", "add"), "capability_of_user", user=user)
    elif trainer is None or not user or trainer.user is None or trainer.capabilities:
        yield report(security, "no_ptrace")


def monitor_lines(manifests: Manifests) -> Iterator[Line]:
    for document in manifests.documents:
        if document.kind != "PodMonitor":
            continue
        wanted = document.root.at("spec", "selector", "matchLabels").mapping
        selected = [group for group in manifests.groups if group.has_labels(wanted)]
        containers = [container for group in selected for container in group.containers]
        names = {port.at("name").text for container in containers for port in container.at("ports").items}
        has = ", ".join(sorted(name for name in names if name)) or "no name"
        for endpoint in document.root.at("spec", "podMetricsEndpoints").items:
            port = endpoint.at("port")
            if selected and port.text and port.text not in names:
                title = selected[0].document.title
                yield report(port, "no_such_port", title=title, port=port.text, has=has)
