"""Kubernetes: an Event of the pod for each finding (events.k8s.io/v1), and a condition in the pod's status.

Both by the pod's own service account; RBAC for it is in deploy/kubernetes/components/feed. An Event's name is made of
what it says, so the same again is no second Event but the first one's series.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote

from diag.outputs.feeds.feed import (
    Change,
    Environment,
    Feed,
    Options,
    Telling,
    Told,
    camel,
    cut,
    is_replaced,
    sentence,
    title,
)
from diag.outputs.feeds.https import Response, ask

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"  # where Kubernetes mounts it
CONDITION = "diag/Healthy"
_CONTROLLER = "diag"
_NOTE_BYTES = 1024  # of events.k8s.io/v1: longer ones are refused
_MESSAGE_BYTES = 1024  # ours: it is in every `kubectl get pod -o yaml`
_OFF = "off"


def lacking(options: Options, environment: Environment) -> str:
    if not environment.get("KUBERNETES_SERVICE_HOST"):
        return "this is no pod of Kubernetes: KUBERNETES_SERVICE_HOST is not set"
    account = _account(options)
    if not (account / "token").exists():
        return f"there is no service account in {account} (automountServiceAccountToken)"
    return "" if _namespace(options, environment) else "the namespace is not known: set POD_NAMESPACE"


def payload(telling: Telling, options: Options, environment: Environment) -> dict[str, Any] | None:
    """`events` and `condition` as they are sent, but for the pod's uid where POD_UID does not say it."""
    if not telling.changes:
        return None
    pod = {
        "apiVersion": "v1", "kind": "Pod", "name": _pod(environment), "namespace": _namespace(options, environment),
        "uid": environment.get("POD_UID", ""),
    }  # fmt: skip
    events = (
        []
        if options.get("events") == _OFF
        else [event(change, pod) for change in telling.changes if not is_replaced(change)]
    )
    wanted = options.get("condition") != _OFF
    return {"pod": pod, "events": events, "condition": condition(telling) if wanted else None}


def event(change: Change, pod: Mapping[str, str]) -> dict[str, Any]:
    finding = change["finding"]
    over = change["change"] == "resolved"
    same = (
        change["change"] == "resolved",
        *(finding[name] for name in ("id", "subject", "class", "cause", "ranks")),
    )
    digest = hashlib.sha256(repr(same).encode()).hexdigest()[:16]
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"{pod['name'][:220]}.diag-{digest}", "namespace": pod["namespace"]},
        "eventTime": _time(change["at"], "microseconds"),
        "reportingController": _CONTROLLER,
        "reportingInstance": pod["name"][:128],
        "action": "Resolved" if over else "Found",
        "reason": camel(finding["id"])[:128],
        "type": "Warning" if not over and finding["severity"] in ("critical", "warning") else "Normal",
        "regarding": dict(pod),
        "note": cut(sentence(change), _NOTE_BYTES),
    }


def condition(telling: Telling) -> dict[str, Any]:
    """False while a finding is open. What is said is of the gravest of them. Unknown once another finding took its place
    that is not told here."""
    if telling.ends_untold:
        last = telling.changes[-1]
        changed, reason = last["at"], camel(last["finding"]["id"])
        message = f"{title(last['finding'])}: another finding has taken its place"
    elif not telling.open:
        last = telling.changes[-1]
        changed, reason, message = last["at"], camel(last["finding"]["id"]), sentence(last)
    else:
        first = telling.open[0]
        changed, reason = telling.since or first["since"], camel(first["id"])
        others = [title(one) for one in telling.open[1:]]
        message = f"{title(first)}: {first['summary']}" + (f"; also {'; '.join(others)}" if others else "")
    return {
        "type": CONDITION,
        "status": "Unknown" if telling.ends_untold else "False" if telling.open else "True",
        "reason": reason,
        "message": cut(message, _MESSAGE_BYTES),
        "lastTransitionTime": _time(changed, "seconds"),
    }


def send(payload: dict[str, Any], options: Options, environment: Environment) -> Told:
    api = _Api(options, environment)
    pod = payload["pod"]
    path = f"api/v1/namespaces/{quote(pod['namespace'])}/pods/{quote(pod['name'])}"
    refused: list[Response] = []
    if not pod["uid"] and payload["events"]:  # `kubectl describe pod` asks for the events of this uid
        answer = api.ask("GET", path)
        pod["uid"] = answer.body["metadata"]["uid"] if answer.accepted else ""
        refused += [] if answer.accepted else [answer]
    for each in payload["events"]:
        each["regarding"]["uid"] = pod["uid"]
        if not (answer := _tell(api, each)).accepted:
            refused.append(answer)
    if payload["condition"] is not None:
        patch = {"status": {"conditions": [payload["condition"]]}}
        answer = api.ask("PATCH", f"{path}/status", patch, "application/strategic-merge-patch+json")
        refused += [] if answer.accepted else [answer]
    if not refused:
        return Told(True, "accepted")
    return Told(
        False, "; ".join(dict.fromkeys(one.reason for one in refused)), any(one.again for one in refused)
    )


def _tell(api: _Api, event: dict[str, Any]) -> Response:
    """Once more where it is there already: its series is counted on. The same event a second time, because the first
    answer did not come, counts for nothing."""
    path = f"apis/events.k8s.io/v1/namespaces/{quote(event['metadata']['namespace'])}/events"
    answer = api.ask("POST", path, event)
    if answer.status != 409:
        return answer
    path = f"{path}/{quote(event['metadata']['name'])}"
    known = api.ask("GET", path)
    if not known.accepted:
        return known
    series = known.body.get("series") or {}
    if event["eventTime"] in (known.body.get("eventTime"), series.get("lastObservedTime")):
        return known
    counted = {"count": max(1, series.get("count", 1)) + 1, "lastObservedTime": event["eventTime"]}
    return api.ask("PATCH", path, {"series": counted}, "application/merge-patch+json")


class _Api:
    def __init__(self, options: Options, environment: Environment) -> None:
        host, account = environment["KUBERNETES_SERVICE_HOST"], _account(options)
        host = f"[{host}]" if ":" in host else host
        port = environment.get("KUBERNETES_SERVICE_PORT_HTTPS") or environment.get(
            "KUBERNETES_SERVICE_PORT", "443"
        )
        self._url, self._ca, self._token = f"https://{host}:{port}", account / "ca.crt", account / "token"

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Response:
        try:
            token = self._token.read_text().strip()  # each time: Kubernetes renews it
        except OSError as error:
            return Response(0, None, f"{self._token} cannot be read: {error.strerror}")
        return ask(method, f"{self._url}/{path}", token=token, ca=str(self._ca), body=body, kind=kind)


def _account(options: Options) -> Path:
    return Path(options.get("account", ACCOUNT))


def _namespace(options: Options, environment: Environment) -> str:
    if found := environment.get("POD_NAMESPACE"):
        return found
    try:
        return (_account(options) / "namespace").read_text().strip()
    except OSError:
        return ""


def _pod(environment: Environment) -> str:
    """A pod's name is its host name, unless its spec gives it another: then POD_NAME has to say it."""
    return environment.get("POD_NAME") or os.uname().nodename


def _time(at: float, precision: str) -> str:
    """RFC 3339 in UTC, as MicroTime and Time are written.

    >>> _time(1000.5, "microseconds"), _time(1000.5, "seconds")
    ('1970-01-01T00:16:40.500000Z', '1970-01-01T00:16:40Z')
    """
    return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec=precision).replace("+00:00", "Z")


FEED = Feed("kubernetes", ("events", "condition", "account"), lacking, payload, send)
