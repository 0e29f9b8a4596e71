"""How far the job is, as Kubeflow's status server takes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diag.outputs.feeds.feed import Telling
from diag.outputs.feeds.trainjob import FEED
from tests.feeds.apiserver import Cluster
from tests.feeds.facts import HANG, RUN, change, opened

JOB: dict[str, Any] = {
    "state": "running", "iteration": 150, "total_iterations": 500, "returncode": None, "at": 1000.0,
    "steps": {"seconds_now": 2.0},
}  # fmt: skip


def status(environment: dict[str, str] | None = None, **job: Any) -> Any:
    found = FEED.payload(Telling((), (), None, RUN, {**JOB, **job}), {}, environment or {})
    return None if found is None else found["trainerStatus"]


def test_share_of_the_steps_and_the_time_that_is_left_are_told(kube: tuple[Cluster, dict[str, str]]) -> None:
    payload = FEED.payload(Telling((), (), None, RUN, JOB), {}, kube[1])

    assert FEED.send(payload, {}, kube[1]).text == "accepted (HTTP 200)"

    assert kube[0].statuses == [
        {
            "progressPercentage": 30,
            "estimatedRemainingSeconds": 700,
            "lastUpdatedTime": "1970-01-01T00:16:40+00:00",
        }
    ]


def test_of_a_job_that_stands_still_no_time_is_told() -> None:
    assert status(state="hung").keys() == {"progressPercentage", "lastUpdatedTime"}


def test_job_that_ended_well_is_complete_whatever_its_last_step_was() -> None:
    assert (
        status(returncode=0)["progressPercentage"],
        status(returncode=0)["estimatedRemainingSeconds"],
    ) == (100, 0)


def test_job_that_failed_keeps_its_last_progress() -> None:
    assert FEED.payload(Telling((), (), None, RUN, {"returncode": 1, "at": 1.0}), {}, {}) is None


@pytest.mark.parametrize("job", [{"iteration": None}, {"total_iterations": None}])
def test_nothing_is_told_that_is_not_known(job: dict[str, Any]) -> None:
    assert status(**job) is None


def test_of_several_nodes_the_first_tells() -> None:
    assert status({"PET_NODE_RANK": "1"}) is None
    assert status({"PET_NODE_RANK": "0", "JOB_COMPLETION_INDEX": "1"})["progressPercentage"] == 30


def test_findings_alone_are_no_progress() -> None:
    assert FEED.payload(opened(change(HANG)), {}, {}) is None


def test_refusal_and_a_token_that_is_gone_are_told(
    kube: tuple[Cluster, dict[str, str]], tmp_path: Path
) -> None:
    kube[0].forbidden = ("/trainjobs/",)
    payload = {"trainerStatus": {"progressPercentage": 1, "lastUpdatedTime": "1970-01-01T00:16:40+00:00"}}

    assert "refused (HTTP 403)" in FEED.send(payload, {}, kube[1]).text
    gone = FEED.send(payload, {}, {**kube[1], "KUBEFLOW_TRAINER_SERVER_TOKEN": str(tmp_path / "none")})
    assert gone.text.endswith("none cannot be read: No such file or directory") and gone.again


def test_variables_of_the_controller_are_named_where_they_are_missing(
    kube: tuple[Cluster, dict[str, str]],
) -> None:
    assert FEED.lacking({}, {}).startswith("KUBEFLOW_TRAINER_SERVER_URL, KUBEFLOW_TRAINER_SERVER_CA_CERT, ")
    assert FEED.lacking({}, kube[1]) == ""
