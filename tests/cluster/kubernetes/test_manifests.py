"""deploy/kubernetes against the schemas of Kubernetes, JobSet, Kubeflow and the Prometheus operator; each of
which is also shown something wrong."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from diag.preflight.manifest import manifest_lines
from diag.preflight.manifest.reading import read_text
from tests.cluster.kubernetes.conftest import KUBERNETES, ROOT, build, built, jobs_within

pytestmark = pytest.mark.cluster

OVERLAYS = (
    "overlays/jobset",
    "overlays/indexed-job",
    "overlays/pods",
    "overlays/kubeflow",
    "overlays/example-site",
)
VERSIONS = ("1.29", "1.31", "1.33", "1.37")  # from the first with native sidecars switched on
OF_CRDS = ("JobSet", "ClusterTrainingRuntime", "TrainJob", "PodMonitor", "PrometheusRule")
NODE_MODULES = ROOT / "build" / "npm" / "node_modules"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_doctor_finds_no_problem_in_what_kustomize_builds(overlay: str) -> None:
    documents, unread = read_text(build(KUBERNETES / overlay), "built.yaml")

    assert [line.status for line in (*unread, *manifest_lines(documents))] == ["ok"]


def with_component(overlay: str, component: str, folder: Path) -> str:
    shutil.copytree(KUBERNETES, folder / "kubernetes")
    mine = folder / "kubernetes" / "mine"
    mine.mkdir()
    (mine / "kustomization.yaml").write_text(
        f"apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [../{overlay}]\n"
        f"components: [../components/{component}]\n"
    )
    return build(mine)


@pytest.mark.parametrize("overlay", OVERLAYS[:4])
def test_without_root_no_container_has_a_capability(overlay: str, tmp_path: Path) -> None:
    text = with_component(overlay, "without-root", tmp_path)

    assert "runAsUser: 0" not in text and "SYS_PTRACE" not in text and "IPC_LOCK" not in text
    assert text.count("runAsUser: 1000") == (2 if "pods" in overlay else 1)
    documents, _ = read_text(text, "built.yaml")
    assert {line.status for line in manifest_lines(documents)} == {"ok", "note"}


@pytest.mark.parametrize("overlay", OVERLAYS[:4])
def test_with_the_kernel_log_only_diag_is_privileged(overlay: str, tmp_path: Path) -> None:
    text = with_component(overlay, "kernel-log", tmp_path)

    assert text.count("privileged: true") == text.count("image: diag:")
    documents, _ = read_text(text, "built.yaml")
    assert [line.status for line in manifest_lines(documents)] == ["ok"]


@pytest.mark.parametrize("overlay", OVERLAYS[:4])
def test_with_act_the_pods_have_an_account_that_may_use_leases_and_nothing_else(
    overlay: str, tmp_path: Path
) -> None:
    documents = [one for one in yaml.safe_load_all(with_component(overlay, "act", tmp_path)) if one]

    (role,) = [one for one in documents if one["kind"] == "Role"]
    (rule,) = role["rules"]
    assert (rule["apiGroups"], rule["resources"]) == (["coordination.k8s.io"], ["leases"])
    (binding,) = [one for one in documents if one["kind"] == "RoleBinding"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert [one["name"] for one in binding["subjects"]] == ["diag"]
    assert yaml.safe_dump_all(documents).count("serviceAccountName: diag") == (2 if "pods" in overlay else 1)
    for one in documents:
        if one["kind"] in ("Role", "RoleBinding", "ServiceAccount"):
            check(one, "1.29")


# ---- Kubernetes itself


def check(document: dict[str, Any], version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="pip install -r requirements/cluster.txt")
    validate.validate(document, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("folder", [*OVERLAYS, "kmsg"])
def test_kubernetes_takes_each_manifest(folder: str, version: str) -> None:
    checked = 0
    for document in built(folder):
        for each in (
            jobs_within(document) if document["kind"] in ("JobSet", "ClusterTrainingRuntime") else [document]
        ):
            if each["kind"] not in OF_CRDS:
                check(each, version)
                checked += 1

    assert checked >= 2


@pytest.mark.parametrize("version", ["1.25", "1.28"])
def test_the_plain_pods_are_for_old_clusters_too(version: str) -> None:
    for document in built("overlays/pods"):
        check(document, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_refuses_what_is_misspelt(version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="pip install -r requirements/cluster.txt")
    (job,) = [copy.deepcopy(each) for each in built("overlays/indexed-job") if each["kind"] == "Job"]
    job["spec"]["template"]["spec"]["shareProcessNamespaces"] = True
    with pytest.raises(validate.ValidationError, match="shareProcessNamespaces"):
        check(job, version)

    (inner,) = [
        jobs_within(copy.deepcopy(each))[0] for each in built("overlays/jobset") if each["kind"] == "JobSet"
    ]
    inner["spec"]["parallelism"] = "two"
    with pytest.raises(validate.ValidationError, match="two"):
        check(inner, version)


# ---- JobSet and Kubeflow, by the models that the operator's project publishes


def read_by_model(document: dict[str, Any]) -> dict[str, Any]:
    """What the model understood of it. The models pass over keys that they do not know, so these are missing
    here."""
    models = pytest.importorskip(
        "kubeflow_trainer_api.models", reason="pip install -r requirements/cluster.txt"
    )
    model = {
        "JobSet": "JobsetV1alpha2JobSet",
        "ClusterTrainingRuntime": "TrainerV1alpha1ClusterTrainingRuntime",
        "TrainJob": "TrainerV1alpha1TrainJob",
    }[document["kind"]]
    read: dict[str, Any] = getattr(models, model).from_dict(document).to_dict()
    return read


def lost(given: Any, read: Any, path: str = "") -> list[str]:
    """Paths of what the model did not take over."""
    if isinstance(given, dict):
        if not isinstance(read, dict):
            return [path]
        return [
            item
            for key in given
            for item in (
                [f"{path}.{key}"] if key not in read else lost(given[key], read[key], f"{path}.{key}")
            )
        ]
    if isinstance(given, list):
        if not isinstance(read, list) or len(read) != len(given):
            return [path]
        return [
            item for index, each in enumerate(given) for item in lost(each, read[index], f"{path}[{index}]")
        ]
    return []


def of_models() -> list[tuple[str, str]]:
    return [
        ("overlays/jobset", "JobSet"),
        ("overlays/example-site", "JobSet"),
        ("overlays/kubeflow", "ClusterTrainingRuntime"),
        ("overlays/kubeflow", "TrainJob"),
    ]


@pytest.mark.parametrize(("folder", "kind"), of_models())
def test_the_model_of_the_kind_takes_every_field(folder: str, kind: str) -> None:
    (document,) = [each for each in built(folder) if each["kind"] == kind]

    assert lost(document, read_by_model(document)) == []


def test_the_models_show_what_is_wrong() -> None:
    pydantic = pytest.importorskip("pydantic")
    (runtime,) = [
        copy.deepcopy(each) for each in built("overlays/kubeflow") if each["kind"] == "ClusterTrainingRuntime"
    ]
    torch = runtime["spec"]["mlPolicy"]["torch"]
    torch["envInjections"] = torch.pop("envInjection")
    assert lost(runtime, read_by_model(runtime)) == [".spec.mlPolicy.torch.envInjections"]

    (jobset,) = [copy.deepcopy(each) for each in built("overlays/jobset") if each["kind"] == "JobSet"]
    jobset["spec"]["replicatedJobs"][0]["replicas"] = "one"
    with pytest.raises(pydantic.ValidationError, match="replicas"):
        read_by_model(jobset)
    del jobset["spec"]["replicatedJobs"][0]["template"]
    with pytest.raises(pydantic.ValidationError, match="template"):
        read_by_model(jobset)


# ---- Prometheus operator, by its CRDs' schemas on npm

_SCRIPT = """\
import { readFileSync } from "node:fs";
import { PodMonitor, PrometheusRule } from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1";
const said = JSON.parse(readFileSync(0, "utf8")).map((document) => {
  try {
    new { PodMonitor, PrometheusRule }[document.kind](document).validate();
    return "";
  } catch (error) {
    return error.message;
  }
});
console.log(JSON.stringify(said));
"""


def validate_by_operator(documents: list[dict[str, Any]]) -> list[str]:
    """Of each document what is wrong with it; empty where nothing is."""
    node = shutil.which("node")
    if node is None or not (NODE_MODULES / "@kubernetes-models" / "prometheus-operator").is_dir():
        pytest.skip(
            "node, or @kubernetes-models/prometheus-operator of npm, is not installed (make cluster-packages)"
        )
    command = [node, "--input-type=module", "-e", _SCRIPT]
    text = json.dumps(documents)
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=60, check=True, cwd=NODE_MODULES.parent
    )
    said: list[str] = json.loads(done.stdout)
    return said


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all fields; of a list's elements that of the first one."""
    if isinstance(value, dict):
        return [item for key in value for item in [(*path, key), *places(value[key], (*path, key))]]
    return places(value[0], (*path, 0)) if isinstance(value, list) and value else []


def with_nonsense(document: dict[str, Any], path: tuple[Any, ...]) -> dict[str, Any]:
    changed = copy.deepcopy(document)
    place: Any = changed
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = [[0]]  # no field is a list of lists
    return changed


def unknown_to_operator(document: dict[str, Any]) -> list[tuple[Any, ...]]:
    """The schemas let keys pass that they do not know. A known one is complained of when it holds nonsense."""
    paths = places({"spec": document["spec"]})
    said = validate_by_operator([with_nonsense(document, path) for path in paths])
    return [path for path, error in zip(paths, said, strict=True) if not error]


def test_the_operator_takes_monitor_and_rule_and_knows_each_field() -> None:
    documents = built("monitoring")

    assert {each["kind"] for each in documents} == {"PodMonitor", "PrometheusRule"}
    assert validate_by_operator(documents) == ["", ""]
    assert [unknown_to_operator(document) for document in documents] == [[], []]


def test_the_operator_shows_what_is_wrong() -> None:
    documents = {each["kind"]: copy.deepcopy(each) for each in built("monitoring")}
    documents["PodMonitor"]["spec"]["podMetricsEndpoints"][0]["port"] = 9095
    del documents["PrometheusRule"]["spec"]["groups"][0]["rules"][0]["expr"]

    port, expr = validate_by_operator([documents["PodMonitor"], documents["PrometheusRule"]])

    assert "podMetricsEndpoints/0/port must be string" in port
    assert "expr" in expr
    monitor = next(copy.deepcopy(each) for each in built("monitoring") if each["kind"] == "PodMonitor")
    endpoint = monitor["spec"]["podMetricsEndpoints"][0]
    endpoint["relabelling"] = endpoint.pop("relabelings")
    assert unknown_to_operator(monitor)[0] == ("spec", "podMetricsEndpoints", 0, "relabelling")


def test_the_rule_is_one_that_prometheus_itself_takes(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (apt-get install prometheus)")
    (rule,) = [each for each in built("monitoring") if each["kind"] == "PrometheusRule"]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump(rule["spec"]))

    done = subprocess.run(
        [promtool, "check", "rules", str(path)], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
