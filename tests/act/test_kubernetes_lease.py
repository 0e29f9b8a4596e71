"""The lease as an object of Kubernetes; that nodes agree by it as they do by files is in test_together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from diag.agent.act.kubernetes_lease import Api, KubernetesLease
from diag.agent.act.lease import TTL_SECONDS, FileLease
from diag.agent.act.together import lease_of
from tests.act.kubeapi import Server
from tests.act.test_lease import ROOT_TOKEN, Clock


def nodes(server: Server, *names: str) -> tuple[Clock, list[KubernetesLease]]:
    clock = Clock()
    made = [KubernetesLease.of(server.api, ROOT_TOKEN, name) for name in names]
    for one in made:
        one.clock, one._known = clock, (None, -1e9)
    return clock, made


def test_object_is_a_lease_as_others_read_it() -> None:
    with Server() as server:
        _, (one,) = nodes(server, "one")
        assert one.hold() == 1
        (found,) = server.objects.values()
        assert (found["apiVersion"], found["kind"]) == ("coordination.k8s.io/v1", "Lease")
        spec = found["spec"]
        assert (spec["holderIdentity"], spec["leaseTransitions"], spec["leaseDurationSeconds"]) == (
            "one",
            1,
            20,
        )
        assert set(server.tokens) == {"Bearer secret"} and ROOT_TOKEN not in json.dumps(found)


def test_change_of_a_version_that_somebody_else_has_changed_is_not_taken() -> None:
    with Server() as server:
        clock, (one, other) = nodes(server, "one", "other")
        one.hold()
        other.hold()
        clock.now += TTL_SECONDS
        read = one._read()
        assert read is not None and other.hold() == 2

        assert not one._put(read)  # as one that was away between reading and writing
        assert not one.order(1, {"rule": "hang=end"}) and not one.conclude(1, "go")
        assert other.order(2, {"rule": "hang=end"}) and other.ordered(2) == ({"rule": "hang=end"}, "")


def test_nodes_of_a_healthy_job_ask_seldom_and_while_something_is_open_each_time() -> None:
    with Server() as server:
        clock, (one, other) = nodes(server, "one", "other")
        number, before = one.hold(), server.asked
        for _ in range(10):
            clock.now += 0.25
            other.number()
        assert server.asked - before <= 2

        one.order(number, {"rule": "hang=end", "ends": True})
        clock.now += 3.0
        other.number()
        before = server.asked
        for _ in range(4):
            other.ordered(number)
        assert server.asked - before == 4


@pytest.mark.parametrize("odd", ["nine", None, True])
def test_object_that_somebody_else_has_changed_is_no_error(odd: Any) -> None:
    with Server() as server:
        _, (one,) = nodes(server, "one")
        one.hold()
        found = server.objects[one.key]
        found["spec"]["leaseTransitions"] = odd
        found["metadata"]["annotations"] = {"diag/orders": "[" * 5000}
        one._known = (None, -1e9)
        assert one.number() == 0 and one.ordered(1) == (None, "")


@pytest.mark.parametrize("status", [500, 429, 503])
def test_server_that_fails_is_an_oserror(status: int) -> None:
    with Server() as server:
        _, (one,) = nodes(server, "one")
        server.broken, one._known = status, (None, -1e9)
        for call in (one.hold, one.words, one.number, lambda: one.say({})):
            with pytest.raises(OSError, match=str(status)):
                call()


def account(folder: Path) -> Path:
    for name, text in (("token", "secret"), ("namespace", "training")):
        (folder / name).write_text(text)
    return folder


def test_no_pod_or_no_account_is_no_api(tmp_path: Path) -> None:
    assert Api.of_pod({}, account(tmp_path)) is None
    assert Api.of_pod({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path / "none") is None


def test_account_without_the_right_leaves_it_to_the_shared_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Server() as server:
        monkeypatch.setattr(Api, "of_pod", lambda: server.api)
        assert isinstance(lease_of(tmp_path, ROOT_TOKEN, "one"), KubernetesLease)
        server.allowed = set()
        assert isinstance(lease_of(tmp_path, ROOT_TOKEN, "one"), FileLease)
        server.broken = 500  # all nodes have to come to the same: it is asked again
        with pytest.raises(OSError, match="500"):
            lease_of(tmp_path, ROOT_TOKEN, "one")
    assert lease_of(tmp_path, None, "one") is None
