"""Events and the pod's condition, as Kubernetes' API takes them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from diag.outputs.feeds.feed import Telling, Told
from diag.outputs.feeds.kubernetes import FEED
from tests.feeds.apiserver import UID, Cluster, wrong_of_event
from tests.feeds.facts import GPU, HANG, RUN, change, opened, over

Kube = tuple[Cluster, dict[str, str]]


def tell(telling: Telling, kube: Kube, account: Path, **options: str) -> Told:
    options = {"account": str(account), **options}
    payload = FEED.payload(telling, options, kube[1])
    assert payload is not None
    return FEED.send(payload, options, kube[1])


def test_finding_is_a_warning_of_the_pod_and_its_condition(kube: Kube, account: Path) -> None:
    told = tell(opened(change(HANG)), kube, account)

    assert told == Told(True, "accepted")
    (event,) = kube[0].events.values()
    assert (event["type"], event["reason"], event["action"]) == ("Warning", "Hang", "Found")
    assert event["note"].startswith(
        "hang (data_loading): rank 3: rank 3 waits for its data loader do: Look at"
    )
    assert event["regarding"] == {
        "apiVersion": "v1", "kind": "Pod", "namespace": "training", "name": "dpo-0", "uid": UID,
    }  # fmt: skip
    condition = kube[0].conditions["diag/Healthy"]
    assert (condition["status"], condition["reason"]) == ("False", "Hang")
    assert condition["lastTransitionTime"] == "1970-01-01T00:16:40Z"


def test_end_of_a_finding_is_normal_and_the_pod_healthy_again(kube: Kube, account: Path) -> None:
    tell(opened(change(HANG)), kube, account)

    tell(over(change(HANG, "resolved", at=1060.0)), kube, account)

    event = list(kube[0].events.values())[-1]
    assert (event["type"], event["reason"], event["action"]) == ("Normal", "Hang", "Resolved")
    assert event["note"] == "resolved: hang (data_loading): rank 3; it lasted 1 min"
    condition = kube[0].conditions["diag/Healthy"]
    assert (condition["status"], condition["lastTransitionTime"]) == ("True", "1970-01-01T00:17:40Z")


def test_what_another_finding_replaced_is_not_said_to_be_over(kube: Kube, account: Path) -> None:
    tell(opened(change(HANG, id="held-up")), kube, account)
    replaced = {**change(HANG, "resolved", id="held-up"), "replaced": True}

    tell(over(replaced), kube, account)

    assert [event["type"] for event in kube[0].events.values()] == ["Warning"]
    assert kube[0].conditions["diag/Healthy"]["status"] == "Unknown"

    found = change(HANG)
    tell(Telling((replaced, found), (found["finding"],), 1000.5, RUN), kube, account)
    assert kube[0].conditions["diag/Healthy"]["status"] == "False"


def test_same_finding_again_counts_on_the_series_of_the_first(kube: Kube, account: Path) -> None:
    for at in (1000.5, 1100.5, 1200.5):
        tell(opened(change(HANG, at=at, summary=f"rank 3 waits since {at}")), kube, account)

    (event,) = kube[0].events.values()
    assert event["series"] == {"count": 3, "lastObservedTime": "1970-01-01T00:20:00.500000Z"}


def test_event_that_is_sent_twice_because_no_answer_came_counts_once(kube: Kube, account: Path) -> None:
    for _ in range(2):
        assert tell(opened(change(HANG)), kube, account).accepted

    (event,) = kube[0].events.values()
    assert "series" not in event


def test_other_ranks_are_another_event(kube: Kube, account: Path) -> None:
    tell(opened(change(HANG)), kube, account)
    tell(opened(change(HANG, "updated", at=1010.0, ranks=[3, 5])), kube, account)

    assert len(kube[0].events) == 2


def test_without_the_right_to_patch_the_status_events_are_told_and_the_refusal_is_said(
    kube: Kube, account: Path
) -> None:
    kube[0].forbidden = ("/status",)

    told = tell(opened(change(HANG)), kube, account)

    assert len(kube[0].events) == 1 and not kube[0].conditions
    assert not told.accepted and not told.again
    assert told.text.startswith("refused (HTTP 403): ") and "cannot PATCH" in told.text


def test_uid_is_not_asked_for_where_the_downward_api_gave_it(kube: Kube, account: Path) -> None:
    kube[1]["POD_UID"] = UID

    assert tell(opened(change(HANG)), kube, account, condition="off").accepted

    assert [method for method, _ in kube[0].asked] == ["POST"]


def test_server_that_is_down_is_asked_later(kube: Kube, account: Path) -> None:
    kube[1]["POD_UID"] = UID
    kube[0].down = [503]

    told = tell(opened(change(HANG)), kube, account, condition="off")

    assert told == Told(False, "refused (HTTP 503): etcdserver: request timed out", again=True)


def test_server_with_another_certificate_is_told_nothing(kube: Kube, account: Path) -> None:
    made = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-subj",
        "/CN=another",
        "-keyout",
        "/dev/null",
    ]
    subprocess.run([*made, "-out", str(account / "ca.crt")], check=True, capture_output=True)

    told = tell(opened(change(HANG)), kube, account)

    assert told.text == "cannot be reached: self-signed certificate" and not kube[0].asked


def test_longest_note_fits_and_all_findings_are_in_the_message(account: Path) -> None:
    long: dict[str, Any] = change(HANG, summary="等" * 2000)

    payload = FEED.payload(
        opened(long, change(GPU)),
        {"account": str(account)},
        {"POD_NAME": "dpo-0", "POD_NAMESPACE": "training"},
    )

    assert not any(map(wrong_of_event, payload["events"]))
    assert len(payload["events"][0]["note"].encode()) <= 1024


def test_nothing_is_sent_where_nothing_changed() -> None:
    assert FEED.payload(over(), {}, {"POD_NAMESPACE": "training"}) is None


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({}, "this is no pod of Kubernetes"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "there is no service account in"),
    ],
)
def test_why_nothing_can_be_sent_is_said_before(variables: dict[str, str], why: str, tmp_path: Path) -> None:
    assert why in FEED.lacking({"account": str(tmp_path)}, variables)


def test_nothing_is_lacking_in_a_pod(kube: Kube, account: Path) -> None:
    assert FEED.lacking({"account": str(account)}, kube[1]) == ""
