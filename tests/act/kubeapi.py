"""A stand-in for the part of Kubernetes' API that a lease needs: objects with versions, of which it takes no change of an old
one (https://kubernetes.io/docs/reference/using-api/api-concepts/)."""

from __future__ import annotations

import http.client
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from diag.agent.act.kubernetes_lease import Api

BASE = "/apis/coordination.k8s.io/v1/namespaces/training/leases"


class Server:
    """`allowed` are the verbs that the account may use; `broken` is a status that is answered to all."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.version, self.broken, self.asked = 0, 0, 0
        self.allowed = {"GET", "POST", "PUT", "DELETE"}
        self.tokens: list[str] = []
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                outer.tokens.append(self.headers["Authorization"])
                with outer._lock:
                    status, document = outer.take(self.command, self.path, body)
                text = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_PUT = do_DELETE = _answer

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    def __enter__(self) -> Server:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def api(self) -> Api:
        port = self._server.server_port
        return Api(
            lambda: http.client.HTTPConnection("127.0.0.1", port, timeout=5), "training", lambda: "secret\n"
        )

    def take(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        self.asked += 1
        parts = urlsplit(path)
        assert parts.path.startswith(BASE), path
        name = parts.path.removeprefix(BASE).strip("/")
        if self.broken or method not in self.allowed:
            return self.broken or 403, {}
        if method == "GET" and not name:
            label, _, value = parse_qs(parts.query)["labelSelector"][0].partition("=")
            items = [
                one for one in self.objects.values() if one["metadata"].get("labels", {}).get(label) == value
            ]
            return 200, {"kind": "LeaseList", "items": items}
        if method == "POST":
            name = body["metadata"]["name"]
            return (409, {}) if name in self.objects else (201, self._keep(name, body))
        known = self.objects.get(name)
        if known is None:
            return 404, {"reason": "NotFound"}
        if method == "PUT":
            if body["metadata"].get("resourceVersion") != known["metadata"]["resourceVersion"]:
                return 409, {"reason": "Conflict"}
            return 200, self._keep(name, body)
        return 200, known if method == "GET" else self.objects.pop(name)

    def _keep(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        metadata = {**body["metadata"], "resourceVersion": str(self.version)}
        self.objects[name] = {**body, "metadata": metadata}
        return self.objects[name]
