"""Health events of this node, as NVSentinel's schema reads them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diag.outputs.feeds.feed import Telling, Told
from diag.outputs.feeds.nvsentinel import FEED
from tests.feeds.facts import GPU, HANG, change, opened, over
from tests.feeds.platform_connector import Connector, platform_connector

NODE = {"NODE_NAME": "gpu-node-17"}


@pytest.fixture
def connector() -> Iterator[tuple[Connector, str]]:
    pytest.importorskip("grpc")
    pytest.importorskip("google.protobuf")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # a socket's path may have 107 characters
        socket = Path(folder) / "nvsentinel.sock"
        with platform_connector(socket) as kept:
            yield kept, str(socket)


def tell(telling: Telling, socket: str, **options: str) -> Told:
    options = {"socket": socket, **options}
    payload = FEED.payload(telling, options, NODE)
    assert payload is not None
    return FEED.send(payload, options, NODE)


def test_fault_of_a_gpu_is_kept_and_nothing_is_done_about_it(connector: tuple[Connector, str]) -> None:
    assert tell(opened(change(GPU)), connector[1]) == Told(True, "accepted")

    (event,) = connector[0].events
    assert event.pop("message").startswith(
        "gpu-fault: rank 1: Xid 79: the GPU has fallen off the bus do: Drain"
    )
    assert event == {
        "version": 1, "agent": "diag", "componentClass": "GPU", "checkName": "DiagGpuFault", "isFatal": True,
        "isHealthy": False, "recommendedAction": "CONTACT_SUPPORT", "errorCode": ["79"], "entitiesImpacted": [],
        "metadata": {"job": "4711", "run": "r-1", "cause": "xid_79", "subject": "GPU 0000:07:00.0"},
        "generatedTimestamp": "1970-01-01T00:16:40.500Z", "nodeName": "gpu-node-17", "processingStrategy": "STORE_ONLY",
        "id": "", "customRecommendedAction": "",
    }  # fmt: skip


def test_end_is_a_healthy_event_of_the_same_check(connector: tuple[Connector, str]) -> None:
    tell(over(change(GPU, "resolved", at=1010.0)), connector[1])

    (event,) = connector[0].events
    assert (event["checkName"], event["isHealthy"], event["isFatal"]) == ("DiagGpuFault", True, False)
    assert event["recommendedAction"] == "NONE"


def test_what_is_not_certain_is_not_fatal(connector: tuple[Connector, str]) -> None:
    tell(opened(change(GPU, confidence="medium"), change(GPU, severity="warning")), connector[1])

    assert [event["isFatal"] for event in connector[0].events] == [False, False]


def test_strategy_is_the_users_choice(connector: tuple[Connector, str]) -> None:
    tell(opened(change(GPU, id="ib-port")), connector[1], strategy="EXECUTE_REMEDIATION", node="n-1")

    (event,) = connector[0].events
    assert (event["processingStrategy"], event["nodeName"]) == ("EXECUTE_REMEDIATION", "n-1")
    assert event["componentClass"] == "NIC"


@pytest.mark.parametrize(
    "finding",
    [
        HANG,  # of the job
        {**GPU, "hosts": ["gpu-18"], "told_by": "gpu-17"},  # of another node, which tells it itself
        {
            **HANG,
            "retryable": "elsewhere",
            "told_by": "gpu-17",
        },  # of some node: the job hub does not say which
    ],
)
def test_what_is_not_about_this_node_is_not_sent(finding: dict[str, Any]) -> None:
    assert FEED.payload(opened(change(finding)), {}, NODE) is None


def test_what_another_finding_replaced_is_not_healthy_for_that() -> None:
    assert FEED.payload(over({**change(GPU, "resolved"), "replaced": True}), {}, NODE) is None


def test_refusal_is_told_and_one_that_is_not_ready_is_asked_later(connector: tuple[Connector, str]) -> None:
    connector[0].refuses = "UNAVAILABLE"
    assert tell(opened(change(GPU)), connector[1]) == Told(
        False, "refused (UNAVAILABLE): datastore is not ready", True
    )
    connector[0].refuses = "UNAUTHENTICATED"
    assert not tell(opened(change(GPU)), connector[1]).again


def test_what_is_lacking_is_said(connector: tuple[Connector, str], tmp_path: Path) -> None:
    assert FEED.lacking({"socket": connector[1]}, NODE) == ""
    assert FEED.lacking({"socket": connector[1]}, {}).startswith(
        "the node's name is not known: set NODE_NAME"
    )
    assert FEED.lacking({"socket": str(tmp_path)}, NODE).startswith(f"{tmp_path} is no socket")
    assert "EXECUTE_REMEDIATION or STORE_ONLY" in FEED.lacking({"strategy": "store"}, NODE)
