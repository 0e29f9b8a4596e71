"""Servers of a cluster on this machine, over HTTPS: the part of Kubernetes' API that is used here, with what it refuses
(k8s.io/api events/v1 and its validation), and the status server of Kubeflow's Trainer (KEP-2779, Trainer 2.3)."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

UID = "6f1c0c5e-0000-4000-8000-1234567890ab"
TOKEN = "token-of-the-pod"
_EVENT = re.compile(r"/apis/events\.k8s\.io/v1/namespaces/training/events(?:/([^/]+))?")
_POD = re.compile(r"/api/v1/namespaces/training/pods/dpo-0(/status)?")
_REQUIRED = {
    "eventTime": str, "reportingController": str, "reportingInstance": str, "action": str, "reason": str, "type": str,
    "regarding": dict, "note": str,
}  # fmt: skip
_MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:Z|[+-]\d\d:\d\d)")
Answer = tuple[int, Any]


def wrong_of_event(event: dict[str, Any]) -> str:
    """What the API server refuses of a new Event."""
    for name, kind in _REQUIRED.items():
        if not isinstance(event.get(name), kind) or not event[name]:
            return f"{name}: Required value"
    if strange := set(event) - {*_REQUIRED, "apiVersion", "kind", "metadata", "series", "related"}:
        return f"unknown field {sorted(strange)}"
    if not _MICRO_TIME.fullmatch(event["eventTime"]):
        return "eventTime: not a MicroTime"
    for name, most in (("reportingInstance", 128), ("action", 128), ("reason", 128), ("note", 1024)):
        if len(event[name].encode()) > most:
            return f"{name}: can have at most {most} characters"
    if event["type"] not in ("Warning", "Normal"):
        return "type: has invalid value"
    if event["metadata"]["namespace"] != event["regarding"]["namespace"]:
        return "involvedObject.namespace: does not match event.namespace"
    if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", event["metadata"]["name"]):
        return "metadata.name: a lowercase RFC 1123 subdomain"
    return ""


@dataclass
class Cluster:
    """`forbidden`: words in the path of what RBAC does not allow. `down`: statuses that are answered first."""

    port: int = 0
    events: dict[str, dict[str, Any]] = field(default_factory=dict)
    conditions: dict[str, dict[str, Any]] = field(default_factory=dict)
    statuses: list[dict[str, Any]] = field(default_factory=list)  # of the TrainJob
    asked: list[tuple[str, str]] = field(default_factory=list)
    forbidden: tuple[str, ...] = ()
    down: list[int] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def wait(self, condition: Callable[[], Any], seconds: float = 60.0) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, seconds), self.asked

    def answer(self, method: str, path: str, kind: str, token: str, body: Any) -> Answer:
        with self.changed:
            self.asked.append((method, path))
            try:
                return self._answer(method, path, kind, token, body)
            finally:
                self.changed.notify_all()

    def _answer(self, method: str, path: str, kind: str, token: str, body: Any) -> Answer:
        if self.down:
            return _refusal(self.down.pop(0), "etcdserver: request timed out")
        if token != f"Bearer {TOKEN}":
            return _refusal(401, "Unauthorized")
        if any(word in path for word in self.forbidden):
            return _refusal(
                403,
                f'"{path}" is forbidden: User "system:serviceaccount:training:default" cannot {method} it',
            )
        if path.endswith("/trainjobs/dpo/status"):
            return self._train_job(method, body)
        if found := _POD.fullmatch(path):
            return self._pod(method, bool(found[1]), kind, body)
        if found := _EVENT.fullmatch(path):
            return self._event(method, found[1], kind, body)
        return _refusal(404, "the server could not find the requested resource")

    def _event(self, method: str, name: str | None, kind: str, body: Any) -> Answer:
        if method == "POST" and name is None:
            if wrong := wrong_of_event(body):
                return _refusal(422, f"Event is invalid: {wrong}")
            if body["metadata"]["name"] in self.events:
                return _refusal(409, "already exists")
            self.events[body["metadata"]["name"]] = body
            return 201, body
        if name not in self.events:
            return _refusal(404, f'events "{name}" not found')
        if method == "PATCH":
            # all but the series of an Event is immutable
            if kind != "application/merge-patch+json" or set(body) != {"series"}:
                return _refusal(422, "field is immutable")
            if set(body["series"]) != {"count", "lastObservedTime"} or body["series"]["count"] < 2:
                return _refusal(422, "series is invalid")
            self.events[name]["series"] = body["series"]
        return 200, self.events[name]

    def _pod(self, method: str, status: bool, kind: str, body: Any) -> Answer:
        if method == "PATCH" and status:
            if kind != "application/strategic-merge-patch+json":
                return _refusal(415, "the list of conditions would be replaced")
            for one in body["status"]["conditions"]:
                assert set(one) == {"type", "status", "reason", "message", "lastTransitionTime"}
                assert one["status"] in ("True", "False", "Unknown") and _TIME.fullmatch(
                    one["lastTransitionTime"]
                )
                self.conditions[one["type"]] = one
        return 200, {"kind": "Pod", "metadata": {"name": "dpo-0", "uid": UID}}

    def _train_job(self, method: str, body: Any) -> Answer:
        status = body["trainerStatus"]
        known = {"progressPercentage", "estimatedRemainingSeconds", "metrics", "lastUpdatedTime"}
        if method != "POST" or set(status) - known or not _TIME.fullmatch(status["lastUpdatedTime"]):
            return _refusal(422, "Validation failed")
        if not (0 <= status["progressPercentage"] <= 100 and status.get("estimatedRemainingSeconds", 0) >= 0):
            return _refusal(422, "Validation failed")
        self.statuses.append(status)
        return 200, body


def _refusal(code: int, message: str) -> Answer:
    return code, {"kind": "Status", "status": "Failure", "message": message, "code": code}


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[Cluster, dict[str, str]]]:
    """And the variables of a container in it. The pod's service account is in `folder`."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=stand-in", "-addext",
         "subjectAltName=IP:127.0.0.1", "-keyout", str(folder / "key"), "-out", str(folder / "ca.crt"), "-days", "2"],
        check=True, capture_output=True,
    )  # fmt: skip
    (folder / "token").write_text(f"{TOKEN}\n")
    (folder / "namespace").write_text("training")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.crt", folder / "key")
    kept = Cluster()

    class Handler(BaseHTTPRequestHandler):
        def _do(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            kind, token = self.headers.get("Content-Type", ""), self.headers.get("Authorization", "")
            status, body = kept.answer(
                self.command, self.path, kind, token, json.loads(data) if data else None
            )
            answer = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST = do_PATCH = _do

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.socket = context.wrap_socket(server.socket, server_side=True)
    kept.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield (
            kept,
            {
                "KUBERNETES_SERVICE_HOST": "127.0.0.1",
                "KUBERNETES_SERVICE_PORT": str(kept.port),
                "POD_NAME": "dpo-0",
                "POD_NAMESPACE": "training",
                "KUBEFLOW_TRAINER_SERVER_URL": f"https://127.0.0.1:{kept.port}/apis/trainer.kubeflow.org/v1alpha1/namespaces/training/trainjobs/dpo/status",
                "KUBEFLOW_TRAINER_SERVER_CA_CERT": str(folder / "ca.crt"),
                "KUBEFLOW_TRAINER_SERVER_TOKEN": str(folder / "token"),
            },
        )
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
