"""The lease of a job of several nodes as an object of Kubernetes (coordination.k8s.io/v1 Lease), where the pods' service
account may use it. Its server takes a change only of the version that was read, so that a number and what is ordered under
it are changed together or not at all. Each node's word is an object of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from diag.agent.act.lease import FRESH_SECONDS, TTL_SECONDS, Document, Stamps, awake_or_not

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_GROUP = "/apis/coordination.k8s.io/v1/namespaces"
_JOB = "diag-job"  # label
_WORD, _ORDERS = "diag/word", "diag/orders"  # annotations
_KEPT = 20  # numbers
_TIMEOUT_SECONDS = 4.0
_MOST_BYTES = 8 << 20
_CALM_SECONDS = 3.0  # a healthy job's nodes ask the server so often
_MOST_TRIES = 3
_MADE, _THERE, _CONFLICT, _NOT_THERE = 201, 200, 409, 404
_REFUSED = (401, 403)


@dataclass(frozen=True, slots=True)
class Api:
    """The server as a pod reaches it. `connect` makes the connection."""

    connect: Callable[[], http.client.HTTPConnection]
    namespace: str
    token: Callable[[], str]  # it is renewed in its file

    @classmethod
    def of_pod(cls, env: Mapping[str, str] = os.environ, account: Path = ACCOUNT) -> Api | None:
        """None where this is no pod, or its service account is not mounted. Raises OSError."""
        host, port = env.get("KUBERNETES_SERVICE_HOST"), env.get("KUBERNETES_SERVICE_PORT", "443")
        if not host or not port.isdecimal() or not (account / "token").exists():
            return None
        trusted = ssl.create_default_context(cafile=str(account / "ca.crt"))

        def connect() -> http.client.HTTPConnection:
            return http.client.HTTPSConnection(host, int(port), timeout=_TIMEOUT_SECONDS, context=trusted)

        return cls(connect, (account / "namespace").read_text().strip(), (account / "token").read_text)

    def ask(
        self, method: str, name: str = "", body: Document | None = None, query: str = ""
    ) -> tuple[int, Any]:
        """Status and document. Raises OSError; PermissionError where the account may not."""
        path = f"{_GROUP}/{quote(self.namespace)}/leases" + (f"/{name}" if name else "") + query
        headers = {"Authorization": f"Bearer {self.token().strip()}", "Content-Type": "application/json"}
        connection = self.connect()
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read(_MOST_BYTES)
        except http.client.HTTPException as error:
            raise OSError(f"{type(error).__name__}: {error}") from None
        finally:
            connection.close()
        if answer.status in _REFUSED:
            raise PermissionError(f"the pods' service account may not {method} leases of {self.namespace}")
        if answer.status not in (_THERE, _MADE, _CONFLICT, _NOT_THERE):
            raise OSError(f"the Kubernetes API answers {answer.status}")
        try:
            return answer.status, json.loads(text)
        except (ValueError, RecursionError):
            raise OSError("the Kubernetes API answers no JSON") from None


@dataclass(eq=False)
class KubernetesLease:
    """See `Lease`. `owner` is this run's id. For one thread."""

    api: Api
    key: str
    owner: str
    clock: Callable[[], float] = awake_or_not
    _stamps: Stamps = field(default_factory=Stamps)
    _mine: tuple[int, float] = (0, 0.0)
    _known: tuple[dict[str, Any] | None, float] = (None, -1e9)

    @classmethod
    def of(cls, api: Api, token: str, owner: str) -> KubernetesLease:
        """Of the pods that have this token and are in this namespace. Raises OSError, PermissionError where the account has
        no right to it."""
        lease = cls(api, f"diag-{hashlib.sha256(f'diag lease {token}'.encode()).hexdigest()[:24]}", owner)
        lease._read()
        return lease

    # -- words --------------------------------------------------------------------------------------------

    @property
    def _own(self) -> str:
        return f"{self.key}-{hashlib.sha256(self.owner.encode()).hexdigest()[:10]}"

    def say(self, word: Document) -> None:
        text = json.dumps({"run_id": self.owner, "word": word})
        for _ in range(_MOST_TRIES):
            status, known = self.api.ask("GET", self._own)
            if status == _NOT_THERE:
                made = _object(self._own, {_WORD: text}, {_JOB: self.key}, {"holderIdentity": self.owner})
                status, _ = self.api.ask("POST", body=made)
            else:
                known["metadata"].setdefault("annotations", {})[_WORD] = text
                known["spec"]["renewTime"] = _now()
                status, _ = self.api.ask("PUT", self._own, known)
            if status in (_THERE, _MADE):
                return
        raise OSError("the word of this node is not taken")

    def words(self) -> dict[str, Document]:
        found: dict[str, Document] = {}
        now = self.clock()
        _, listed = self.api.ask("GET", query=f"?labelSelector={quote(f'{_JOB}={self.key}')}")
        for one in listed.get("items", ()):
            metadata = one.get("metadata", {})
            stamp = metadata.get("resourceVersion")
            said = _parsed((metadata.get("annotations") or {}).get(_WORD))
            run_id, word = said.get("run_id"), said.get("word")
            quiet = self._stamps.unchanged(str(metadata.get("name")), stamp, now, first=FRESH_SECONDS)
            if isinstance(run_id, str) and isinstance(word, dict) and quiet < FRESH_SECONDS:
                found[run_id] = word
        return found

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.api.ask("DELETE", self._own)

    # -- the lease ----------------------------------------------------------------------------------------

    def number(self) -> int:
        return _number(self._read(_CALM_SECONDS))

    def hold(self) -> int:
        began, known = self.clock(), self._read()
        number = _number(known)
        if known is None:
            made = {"holderIdentity": self.owner, "leaseTransitions": 1}
            status, _ = self.api.ask("POST", body=_object(self.key, {}, {}, made))
            return self._took(1, began) if status == _MADE else 0
        ours = known["spec"].get("holderIdentity") == self.owner
        stamp = known["metadata"].get("resourceVersion")
        if ours and number == self._mine[0] and began - self._mine[1] < TTL_SECONDS / 2:
            return self._took(number, began) if self._put(known) else 0
        if not ours and self._stamps.unchanged(self.key, stamp, began, first=0.0) < TTL_SECONDS:
            return 0
        known["spec"] |= {"holderIdentity": self.owner, "leaseTransitions": number + 1}
        return self._took(number + 1, began) if self._put(known) else 0

    def _took(self, number: int, began: float) -> int:
        self._mine = (number, began)
        return number

    def release(self, number: int) -> None:
        if self._mine[0] == number:
            self._mine = (0, 0.0)

    def holds(self, number: int) -> bool:
        mine = number > 0 and number == self._mine[0] and self.clock() - self._mine[1] < TTL_SECONDS / 2
        return mine and _number(self._read()) == number

    def order(self, number: int, document: Document) -> bool:
        return self._add(number, "order", document)

    def conclude(self, number: int, outcome: str) -> bool:
        return self._add(number, "outcome", outcome)

    def _add(self, number: int, name: str, value: Any) -> bool:
        for _ in range(_MOST_TRIES):
            known = self._read()
            if known is None or _number(known) != number:
                return False
            orders = _orders(known)
            if name in orders.get(str(number), {}):
                return False
            orders.setdefault(str(number), {})[name] = value
            kept = {
                str(one): orders[str(one)] for one in range(number - _KEPT, number + 1) if str(one) in orders
            }
            for one, said in kept.items():  # of earlier ones what they were
                if int(one) < number:
                    said["order"] = {"what": said.get("order", {}).get("what")}
            known["metadata"].setdefault("annotations", {})[_ORDERS] = json.dumps(kept)
            if self._put(known):
                return True
        return False

    def ordered(self, number: int) -> tuple[Document | None, str]:
        said = _orders(self._read(_CALM_SECONDS)).get(str(number), {})
        document = said.get("order")
        return document if isinstance(document, dict) else None, str(said.get("outcome") or "")

    # -- its object ---------------------------------------------------------------------------------------

    def _read(self, old_seconds: float = 0.0) -> dict[str, Any] | None:
        """As it is now, or was so long ago at most; never an old one where an end is ordered and not void."""
        known, at = self._known
        newest = _orders(known).get(str(_number(known)), {})
        calm = not (newest.get("order") or {}).get("ends") or newest.get("outcome") == "void"
        if not old_seconds or not calm or self.clock() - at >= old_seconds:
            status, found = self.api.ask("GET", self.key)
            known = found if status == _THERE and isinstance(found.get("spec"), dict) else None
            self._known = (known, self.clock())
        return json.loads(json.dumps(known)) if known is not None else None

    def _put(self, known: dict[str, Any]) -> bool:
        """False where somebody else was first."""
        known["spec"]["renewTime"] = _now()
        status, found = self.api.ask("PUT", self.key, known)
        if status == _THERE:
            self._known = (found, self.clock())
        return status == _THERE


def _object(
    name: str, annotations: dict[str, str], labels: dict[str, str], spec: dict[str, Any]
) -> dict[str, Any]:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "annotations": annotations, "labels": labels},
        "spec": {"leaseDurationSeconds": int(TTL_SECONDS), "renewTime": _now(), **spec},
    }


def _now() -> str:
    """For people who look at it: nobody compares it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())


def _number(known: Mapping[str, Any] | None) -> int:
    number = known["spec"].get("leaseTransitions") if known is not None else None
    return number if type(number) is int else 0


def _orders(known: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    found = _parsed((known["metadata"].get("annotations") or {}).get(_ORDERS)) if known is not None else {}
    return {number: said for number, said in found.items() if isinstance(said, dict)}


def _parsed(text: object) -> dict[str, Any]:
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
