"""What deploy/kubernetes holds, as `diag doctor --manifest` and the alerts see it. Validators:
tests/cluster/kubernetes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from diag.preflight.manifest import manifest_lines
from diag.preflight.manifest.reading import read_text
from tests import alert_rule

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
VARIANTS = ("jobset", "indexed-job", "pods", "kubeflow")


def texts(variant: str) -> str:
    """All that kustomize would put together, as it stands in the files."""
    parts = [
        path.read_text()
        for path in (KUBERNETES / "overlays" / variant).glob("*.yaml")
        if path.name != "kustomization.yaml"
    ]
    script = {
        "kind": "ConfigMap",
        "metadata": {"name": "dpo-job"},
        "data": {"train.sh": (KUBERNETES / "base" / "train.sh").read_text()},
    }
    monitor = (KUBERNETES / "monitoring" / "podmonitor.yaml").read_text()
    return "\n---\n".join([*parts, yaml.safe_dump(script), monitor])


@pytest.mark.parametrize("variant", VARIANTS)
def test_doctor_has_nothing_to_say_of_our_own(variant: str) -> None:
    documents, unread = read_text(texts(variant), f"{variant}.yaml")

    lines = [*unread, *manifest_lines(documents)]

    assert [line.status for line in lines] == ["ok"], lines
    assert "2 pods, 8 GPUs each" in lines[0].said


def test_doctor_would_see_the_script_of_our_own() -> None:
    documents, _ = read_text(
        texts("indexed-job").replace("--tensor_model_parallel_size 2", "--tensor_model_parallel_size 3"), "x"
    )

    assert any("TP 3" in line.said for line in manifest_lines(documents))


def pod_specs(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        own = [value] if "containers" in value and "volumes" in value else []
        return own + [spec for inner in value.values() for spec in pod_specs(inner)]
    return [spec for inner in value for spec in pod_specs(inner)] if isinstance(value, list) else []


def all_specs() -> dict[str, list[dict[str, Any]]]:
    return {variant: pod_specs(list(yaml.safe_load_all(texts(variant)))) for variant in VARIANTS}


def test_the_variants_have_the_same_sidecar_but_for_its_names() -> None:
    kinds = set()
    for specs in all_specs().values():
        for spec in specs:
            containers = spec.get("initContainers", []) + spec["containers"]
            (sidecar,) = [dict(each) for each in containers if each["name"] == "diag"]
            for name in ("env", "startupProbe", "restartPolicy"):
                sidecar.pop(name, None)
            kinds.add(yaml.safe_dump(sidecar))

    assert len(kinds) == 1


def test_no_pod_is_started_again_after_its_end_and_all_share_their_processes() -> None:
    specs = [spec for each in all_specs().values() for spec in each]

    assert len(specs) == 5
    assert {spec["restartPolicy"] for spec in specs} == {"Never"}
    assert {spec["shareProcessNamespace"] for spec in specs} == {True}


def test_the_rule_of_the_operator_is_the_alerts_file() -> None:
    assert yaml.safe_load(alert_rule.MANIFEST.read_text()) == alert_rule.manifest(), (
        "python -m tests.alert_rule writes it anew"
    )
