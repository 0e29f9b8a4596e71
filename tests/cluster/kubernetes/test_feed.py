"""What `--feed` sends, against the schemas that Kubernetes and Kubeflow publish; and its RBAC."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from diag.outputs.feeds import kubernetes, trainjob
from diag.outputs.feeds.feed import Telling
from diag.preflight.manifest import manifest_lines
from diag.preflight.manifest.reading import read_text
from tests.cluster.kubernetes.test_manifests import OVERLAYS, VERSIONS, check, with_component
from tests.feeds.facts import HANG, RUN, change, opened, over

pytestmark = pytest.mark.cluster
POD = {"POD_NAME": "dpo-0", "POD_NAMESPACE": "training", "POD_UID": "6f1c0c5e-0000-4000-8000-1234567890ab"}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("telling", [opened(change(HANG)), over(change(HANG, "resolved", at=1060.0))])
def test_kubernetes_takes_event_and_condition(telling: Telling, version: str) -> None:
    payload: dict[str, Any] = kubernetes.FEED.payload(telling, {}, POD)
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "dpo-0"},
        "spec": {"containers": [{"name": "trainer", "image": "trainer"}]},
        "status": {"conditions": [payload["condition"]]},
    }

    check(pod, version)
    for event in payload["events"]:
        check(event, version)
        check({**event, "series": {"count": 2, "lastObservedTime": event["eventTime"]}}, version)


def test_kubeflow_takes_the_status() -> None:
    models = pytest.importorskip(
        "kubeflow_trainer_api.models", reason="pip install -r requirements/cluster.txt"
    )
    job = {
        "state": "running",
        "iteration": 1,
        "total_iterations": 4,
        "steps": {"seconds_now": 2.0},
        "at": 1000.0,
    }
    payload = trainjob.FEED.payload(Telling((), (), None, RUN, job), {}, {})

    read = models.TrainerV1alpha1UpdateTrainJobStatusRequest.from_dict(payload)

    assert read is not None
    status = read.trainer_status
    assert (status.progress_percentage, status.estimated_remaining_seconds) == (25, 6)
    assert status.last_updated_time.year == 1970


@pytest.mark.parametrize("overlay", OVERLAYS[:4])
def test_component_gives_diag_the_rights_and_the_names_that_it_needs(overlay: str, tmp_path: Path) -> None:
    text = with_component(overlay, "feed", tmp_path)

    documents, _ = read_text(text, "built.yaml")
    assert [line.status for line in manifest_lines(documents)] == ["ok"]
    kinds = {one["kind"]: one for one in yaml.safe_load_all(text)}
    for version in VERSIONS:
        for kind in ("ServiceAccount", "Role", "RoleBinding"):
            check(kinds[kind], version)
    allowed = {
        (resource, verb)
        for rule in kinds["Role"]["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert allowed == {
        ("events", "create"), ("events", "get"), ("events", "patch"), ("pods", "get"), ("pods/status", "patch"),
    }  # fmt: skip
    for name in ("POD_NAME", "POD_NAMESPACE", "POD_UID", "NODE_NAME", "DIAG_FEED"):
        assert text.count(f"name: {name}\n") == text.count("image: diag:")
