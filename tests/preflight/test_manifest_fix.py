"""`diag doctor --manifest FILE --fix`: what it changes, what it leaves, and how it writes."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import yaml

from diag.cli.main import main
from diag.preflight.manifest.fix import fix_texts
from diag.preflight.manifest.yaml_text import add, drop, put, swap
from tests.preflight.test_manifest import changed
from tests.preflight.test_own_manifests import VARIANTS, texts
from tests.preflight.wrong_manifests import RIGHT, WRONG

RDMA = "rdma/hca_shared_devices_a"
# What is for a person to decide: how the model is divided.
LEFT = {"a layout that does not divide"}


@pytest.mark.parametrize("name", sorted(name for name, wrong in WRONG.items() if wrong[1] == "problem"))
def test_each_problem_with_one_remedy_is_mended(name: str) -> None:
    text = changed(*WRONG[name][0])

    found = fix_texts({"job.yaml": text}, RDMA)

    assert bool(found.left) == (name in LEFT)
    assert bool(found.changes) == (name not in LEFT)
    assert not found.without_comments
    assert fix_texts({"job.yaml": found.text}, RDMA).text == found.text


@pytest.mark.parametrize("name", sorted(name for name, wrong in WRONG.items() if wrong[1] != "problem"))
def test_what_is_no_problem_is_left_as_it_is(name: str) -> None:
    text = changed(*WRONG[name][0])

    assert fix_texts({"job.yaml": text}, RDMA).text == text


@pytest.mark.parametrize("variant", VARIANTS)
def test_our_own_are_left_as_they_are(variant: str) -> None:
    found = fix_texts({"all.yaml": texts(variant)})

    assert (found.text, found.changes, found.left) == (texts(variant), (), ())


def test_a_runtime_that_a_train_job_completes_is_not_written_over() -> None:
    text = texts("kubeflow").replace("rdma/hca_shared_devices_a: 1", "example.org/nothing: 1")
    assert text != texts("kubeflow")

    found = fix_texts({"all.yaml": text}, RDMA)

    assert found.text == text and found.left


def test_two_pods_that_need_one_service_get_one() -> None:
    pod = "kind: Pod\nmetadata: {{name: {0}, labels: {{app: t}}}}\nspec:\n  hostname: {0}\n  subdomain: t\n  restartPolicy: Never\n"
    pod += "  containers:\n  - command: [megatron, sft]\n    env:\n    - {{name: NNODES, value: '2'}}\n"
    pod += "    - {{name: NODE_RANK, value: '{1}'}}\n    - {{name: MASTER_ADDR, value: a.t}}\n"

    found = fix_texts({"pods.yaml": pod.format("a", 0) + "---\n" + pod.format("b", 1)})

    assert not found.left
    documents = list(yaml.safe_load_all(found.text))
    assert [each["kind"] for each in documents] == ["Pod", "Pod", "Service"]
    assert documents[2]["spec"]["selector"] == {"app": "t"} and documents[2]["metadata"]["name"] == "t"


def test_node_0_is_not_guessed_where_its_pod_is_not_there() -> None:
    pod = "kind: Pod\nmetadata: {name: b}\nspec:\n  restartPolicy: Never\n  containers:\n  - command: [megatron, sft]\n    env:\n"
    pod += "    - {name: NNODES, value: '2'}\n    - {name: NODE_RANK, value: '1'}\n    - {name: MASTER_ADDR, value: localhost}\n"

    found = fix_texts({"pod.yaml": pod})

    assert found.text == pod and [line.id for line in found.left] == ["rendezvous-failure"]


def test_claims_of_a_stateful_set_are_for_a_person_to_move() -> None:
    text = RIGHT.replace("kind: Job", "kind: StatefulSet").replace(
        "  completions: 2\n", "  replicas: 2\n  serviceName: dpo\n"
    )
    text = text.replace("  backoffLimit: 0\n", "  volumeClaimTemplates: [{metadata: {name: scratch}}]\n")

    found = fix_texts({"set.yaml": text}, RDMA)

    assert "kind: StatefulSet" in found.text
    assert "restarted-after-success" in {line.id for line in found.left}


def test_an_alias_is_written_out_and_said() -> None:
    text = "a: &x  # both\n  env: [1]\nb: *x\n"

    done = put(text, 0, ("b", "c"), 2)

    assert yaml.safe_load(done.text) == {"a": {"env": [1]}, "b": {"env": [1], "c": 2}}
    assert not done.keeps_comments


@pytest.mark.parametrize(
    "text",
    [
        "a:\n- name: x\n  value: 1  # one\n- name: y\n",
        "a:\n  - name: x\n    value: 1\n  # of y\n  - name: y\nb: |\n  text\n\n# end\n",
        'a: [{"name": "x", "value": 1}, {"name": "y"}]\n',
        '{"a": [{"name": "x", "value": 1}, {"name": "y"}]}',
        "a:\r\n- name: x\r\n  value: 1\r\n- name: y\r\n",
        "a:\n- value: 1\n  name: x\n- name: y",
        "a:\n- \n  name: x\n  value: 1\n- {name: y}\n",
        "a:\n- name: 'x'\n  value: |+\n    1\n\n- name: y\n",
    ],
)
def test_each_change_is_the_same_in_text_and_data(text: str) -> None:
    data = yaml.safe_load(text)
    value = data["a"][0]["value"]

    more = add(text, 0, ("a",), {"name": "z"})
    less = drop(text, 0, ("a", 0, "value"))
    none = drop(text, 0, ("a", 1))
    other = put(text, 0, ("a", 1, "valueFrom", "ref"), "n")
    again = put(text, 0, ("a", 0, "value"), "2")

    rest = {key: inner for key, inner in data.items() if key != "a"}
    x, y = {"name": "x", "value": value}, {"name": "y"}
    assert yaml.safe_load(more.text) == {"a": [x, y, {"name": "z"}], **rest}
    assert yaml.safe_load(less.text) == {"a": [{"name": "x"}, y], **rest}
    assert yaml.safe_load(none.text) == {"a": [x], **rest}
    assert yaml.safe_load(other.text) == {"a": [x, {"name": "y", "valueFrom": {"ref": "n"}}], **rest}
    assert yaml.safe_load(again.text) == {"a": [{"name": "x", "value": "2"}, y], **rest}


def test_only_the_document_that_is_meant_is_changed() -> None:
    text = "# first\na: 1\n---\n# second\na: 1\n"

    assert put(text, 1, ("a",), 2).text == "# first\na: 1\n---\n# second\na: 2\n"
    assert swap("a: x y\n---\na: x\n", 1, ("a",), "x", "z").text == "a: x y\n---\na: z\n"


def test_manifests_are_on_stdout_and_the_rest_on_stderr(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(changed(("      subdomain: dpo\n", "")))

    assert main(["doctor", "--manifest", str(path)]) == 10
    assert f"`diag doctor --manifest {path} --fix > fixed.yaml` mends all" in capsys.readouterr().out
    assert main(["doctor", "--manifest", str(path), "--fix"]) == 0

    said = capsys.readouterr()
    assert list(yaml.safe_load_all(said.out))[1]["spec"]["template"]["spec"]["subdomain"] == "dpo"
    assert "1 change:\n  Job/dpo spec.template.spec.subdomain: dpo\n" in said.err
    assert f"kubectl delete -f {path}" in said.err


def test_what_is_left_is_said_and_ends_with_10(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(changed(*WRONG["a layout that does not divide"][0])))

    assert main(["doctor", "--manifest", "-", "--fix"]) == 10

    assert "1 problem left to you:" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--fix"], ["--rdma", "none"], ["--manifest", "x", "--fix", "--json"]])
def test_what_does_not_go_together_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *words]) == 2
    assert "error: --fix" in capsys.readouterr().err
