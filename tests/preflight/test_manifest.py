"""`diag doctor --manifest`: manifests as guides and chat assistants write them, each with one thing wrong,
and right ones."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from diag.cli.main import main
from diag.preflight.line import Line
from diag.preflight.manifest import manifest_lines
from diag.preflight.manifest.pods import pod_groups
from diag.preflight.manifest.reading import read_text
from tests.preflight.wrong_manifests import RIGHT, WRONG
from tests.test_docs import FINDING_IDS


def lines_of(text: str) -> list[Line]:
    documents, unread = read_text(text, "job.yaml")
    return [*unread, *manifest_lines(documents)]


def changed(*pairs: tuple[str, str]) -> str:
    text = RIGHT
    for old, new in pairs:
        assert text.count(old) >= 1, old
        text = text.replace(old, new)
    return text


def test_a_right_manifest_is_reported_as_one_line() -> None:
    assert [(line.what, line.status, line.said) for line in lines_of(RIGHT)] == [
        ("Job/dpo", "ok", "2 pods, 4 GPUs each (8 in all), they meet at dpo-0.dpo")
    ]


@pytest.mark.parametrize("name", sorted(WRONG))
def test_each_wrong_manifest_is_reported_with_its_field_and_the_lines_to_write(name: str) -> None:
    changes, status, finding, said, remedy = WRONG[name]

    lines = [line for line in lines_of(changed(*changes)) if line.status != "ok"]

    found = [line for line in lines if said in line.said]
    assert [(line.status, line.id) for line in found] == [(status, finding)], lines
    assert remedy in found[0].remedy
    assert found[0].said.startswith("job.yaml:")
    assert lines == found, "one thing is wrong, and one thing is reported"
    assert finding in {"", *FINDING_IDS}


def test_the_line_of_the_field_is_reported() -> None:
    text = changed(('NNODES, value: "2"', 'NNODES, value: "4"'))

    (line,) = [line for line in lines_of(text) if line.status == "problem"]

    number = next(index for index, row in enumerate(text.splitlines(), 1) if "NNODES" in row)
    assert line.said.startswith(f"job.yaml:{number} spec.template.spec.containers[trainer].env[NNODES]: ")


@pytest.mark.parametrize("kind", ["StatefulSet", "Deployment"])
def test_a_training_that_is_restarted_again_and_again_is_reported(kind: str) -> None:
    text = f"""\
apiVersion: apps/v1
kind: {kind}
metadata: {{name: dpo}}
spec:
  replicas: 1
  selector: {{matchLabels: {{app: dpo}}}}
  template:
    metadata: {{labels: {{app: dpo}}}}
    spec:
      containers:
      - name: trainer
        image: swift
        command: [bash, -c, "NPROC_PER_NODE=1 swift sft --model Qwen/Qwen3-0.6B"]
        resources: {{limits: {{nvidia.com/gpu: 1}}}}
        volumeMounts: [{{name: shm, mountPath: /dev/shm}}]
      volumes: [{{name: shm, emptyDir: {{medium: Memory}}}}]
"""

    (line,) = lines_of(text)

    assert (line.status, line.id) == ("problem", "restarted-after-success")
    assert line.said.startswith(f"job.yaml:2 kind: a {kind} restarts every pod")
    assert "kind: Job" in line.remedy and "restartPolicy: Never" in line.remedy

    # a server
    assert [each.status for each in lines_of(text.replace("swift sft", "swift deploy"))] == ["not checked"]
    asleep = text.replace(
        '[bash, -c, "NPROC_PER_NODE=1 swift sft --model Qwen/Qwen3-0.6B"]', "[sleep, infinity]"
    ).replace("        resources", '        env: [{name: NPROC_PER_NODE, value: "1"}]\n        resources')
    assert [each.status for each in lines_of(asleep)] == ["ok"]  # somebody's shell


POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: dpo-{rank}}}
spec:
  hostname: dpo-{rank}
  subdomain: dpo
  {policy}
  containers:
  - name: trainer
    image: swift
    command: [torchrun, --nproc_per_node, "1", --nnodes, "2", --node_rank, "{rank}", --master_addr, dpo-0.dpo, train.py]
---
"""
SERVICE = "kind: Service\nmetadata: {name: dpo}\nspec: {clusterIP: None, publishNotReadyAddresses: true, selector: {app: dpo}}\n"


def test_a_pod_without_restart_policy_is_started_again() -> None:
    pods = POD.format(rank=0, policy="") + POD.format(rank=1, policy="restartPolicy: Never")

    reported = [line for line in lines_of(pods) if line.id == "restarted-after-success"]

    assert [line.what for line in reported] == ["Pod/dpo-0"]
    assert "the default of a Pod" in reported[0].said


def test_two_pods_of_the_same_rank_are_reported() -> None:
    first = POD.format(rank=0, policy="restartPolicy: Never")
    both = first + first.replace("name: dpo-0", "name: dpo-1").replace("hostname: dpo-0", "hostname: dpo-1")

    reported = [
        line
        for line in lines_of(both.replace("metadata: {", "metadata: {labels: {app: dpo}, ") + SERVICE)
        if line.status != "ok"
    ]

    assert [(line.what, line.id) for line in reported] == [("Pod/dpo-1", "launch-mismatch")]
    assert "would both be node 0" in reported[0].said


def test_half_a_job_is_not_judged() -> None:
    reported = lines_of(POD.format(rank=1, policy="restartPolicy: Never"))

    assert {line.status for line in reported} == {"not checked"}
    assert any("give" in line.remedy for line in reported)


def test_a_script_in_a_config_map_is_read() -> None:
    text = (
        changed(
            ("command: [bash, -c]\n", "command: [bash, /job/run.sh]\n"),
            (
                "        args:\n        - |\n          megatron rlhf --rlhf_type dpo --model Qwen/Qwen3-8B "
                "--tensor_model_parallel_size 2 "
                "--output_dir /out\n",
                "",
            ),
            ("volumeMounts: [", "volumeMounts: [{name: job, mountPath: /job}, "),
            ("volumes: [", "volumes: [{name: job, configMap: {name: scripts}}, "),
        )
        + """\
---
kind: ConfigMap
metadata: {name: scripts}
data:
  run.sh: |
    # two nodes
    exec megatron rlhf --rlhf_type dpo --model Qwen/Qwen3-8B --tensor_model_parallel_size 3 --output_dir /out
"""
    )

    assert ["TP 3" in line.said for line in lines_of(text)] == [True]
    assert [line.status for line in lines_of(text.replace("size 3", "size 2"))] == ["ok"]


@pytest.mark.parametrize(
    "changes",
    [
        [
            (
                '- {name: NPROC_PER_NODE, value: "4"}',
                "- {name: NPROC_PER_NODE, valueFrom: {configMapKeyRef: {name: gone, key: n}}}",
            )
        ],
        [
            (
                '        env:\n        - {name: NPROC_PER_NODE, value: "4"}\n',
                "        envFrom: [{configMapRef: {name: gone}}]\n        env:\n",
            )
        ],
        [("megatron rlhf", "NPROC_PER_NODE=$GPUS_OF_THE_IMAGE megatron rlhf")],
        [("megatron rlhf", "export NPROC_PER_NODE=$(nvidia-smi -L | wc -l)\n          megatron rlhf")],
        [
            (
                "megatron rlhf",
                "torchrun --nproc_per_node=$GPUS --nnodes=$NODES --node_rank=$RANK_HERE train.py",
            )
        ],
        [("megatron rlhf", "export MASTER_ADDR=$(getent hosts dpo-0.dpo)\n          megatron rlhf")],
    ],
    ids=["config map elsewhere", "envFrom", "of the image", "computed", "torchrun's", "address"],
)
def test_what_only_the_pod_will_know_is_called_neither_wrong_nor_ok(changes: list[tuple[str, str]]) -> None:
    statuses = {line.status for line in lines_of(changed(*changes))}

    assert "not checked" in statuses and statuses <= {"not checked", "note"}


def test_address_in_another_namespace_does_not_lead_to_these_pods() -> None:
    text = RIGHT.replace("metadata: {name: dpo}", "metadata: {namespace: training, name: dpo}")
    assert text.count("namespace: training") == 2  # the Job and its Service

    def of(address: str) -> list[tuple[str, str]]:
        return [
            (line.status, line.said)
            for line in lines_of(text.replace("value: dpo-0.dpo", f"value: {address}"))
        ]

    ((status, said),) = of("dpo-0.dpo.default.svc.cluster.local")
    assert status == "problem"
    assert (
        "dpo-0.dpo.default.svc.cluster.local is in namespace default, but these pods are in training" in said
    )
    for right in ("dpo-0.dpo", "dpo-0.dpo.training.svc", "dpo-0.dpo.training.svc.cluster.local"):
        assert [status for status, _ in of(right)] == ["ok"], right


def test_namespace_of_an_address_where_the_manifest_names_none_is_not_checked() -> None:
    (line,) = lines_of(RIGHT.replace("value: dpo-0.dpo", "value: dpo-0.dpo.default.svc"))

    assert line.status == "not checked" and "kubectl decides it" in line.said


MONITOR = """\
---
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata: {name: diag}
spec:
  selector: {matchLabels: {app: dpo}}
  podMetricsEndpoints: [{port: metrics}]
"""


def test_a_port_name_that_no_container_has_is_reported() -> None:
    (line,) = [each for each in lines_of(RIGHT + MONITOR) if each.status != "ok"]

    assert (line.what, line.status) == ("PodMonitor/diag", "not checked")
    assert "diag-metrics" in line.said and "scrapes nothing" in line.said
    assert [
        each.status for each in lines_of(RIGHT + MONITOR.replace("port: metrics", "port: diag-metrics"))
    ] == ["ok"]


def test_what_helm_fills_in_later_is_not_judged() -> None:
    unquoted, _ = lines_of("spec:\n  {{- if .Values.gpu }}\n  a: 1\n  {{ end }}\n")
    assert unquoted.status == "not checked" and "helm template" in unquoted.remedy

    quoted = lines_of(
        changed(
            ("completions: 2", 'completions: "{{ .Values.nodes }}"'),
            ("parallelism: 2", "parallelism: {{ .n }}"),
        )
    )
    assert {line.status for line in quoted} == {"not checked"}


def test_nothing_that_trains_is_not_called_right() -> None:
    assert [line.status for line in lines_of("kind: ConfigMap\nmetadata: {name: a}\n")] == ["not checked"]
    assert [line.status for line in lines_of("")] == ["not checked"]


def test_what_is_not_yaml_is_reported_with_its_line() -> None:
    (line, _) = lines_of("kind: Job\nspec:\n  a: [1\n")

    assert (line.status, line.id) == ("problem", "launch-mismatch")
    assert line.said.startswith("line ")


def test_aliases_that_grow_beyond_measure_end_in_a_line() -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 12)]

    assert lines_of("kind: Job\n" + "\n".join(rows))[0].status == "not checked"


def test_the_command_prints_lines_and_ends_with_ten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.yaml").write_text(changed(('NNODES, value: "2"', 'NNODES, value: "4"')))

    code = main(["doctor", "--manifest", str(tmp_path), "--json"])

    report = json.loads(capsys.readouterr().out)
    assert code == 10
    assert [finding["id"] for finding in report["findings"]] == ["launch-mismatch"]
    (tmp_path / "job.yaml").write_text(RIGHT)
    assert main(["doctor", "--manifest", str(tmp_path / "job.yaml")]) == 0
    assert "no problem" in capsys.readouterr().out


def test_a_folder_of_kustomize_is_left_to_kustomize(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kustomization.yaml").write_text("resources: []\n")

    assert main(["doctor", "--manifest", str(tmp_path)]) == 0
    assert "kubectl kustomize" in capsys.readouterr().out


def test_a_file_that_is_not_there_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--manifest", "/nowhere/job.yaml"]) == 2
    assert "cannot read /nowhere/job.yaml" in capsys.readouterr().err
    assert main(["doctor", "--manifest", "/nowhere/job.yaml", "--", "torchrun", "x.py"]) == 2


def test_file_that_is_not_text_is_reported_as_such() -> None:
    line, *_ = lines_of("\x7fELF\x00\x01")

    assert (line.status, line.said) == ("problem", "not text")


def test_a_jobset_of_far_too_many_pods_is_read_without_naming_them_all() -> None:
    text = """\
kind: JobSet
metadata: {name: dpo}
spec:
  replicatedJobs:
  - name: node
    replicas: 90000
    template: {spec: {parallelism: 90000, completions: 90000}}
"""
    tracemalloc.start()
    try:
        (group,) = pod_groups(read_text(text, "job.yaml")[0])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert group.count == 90_000**2 and group.names[:2] == ("dpo-node-0-0", "dpo-node-0-1")
    assert peak < 50 << 20


NO_RDMA = ("            rdma/hca_shared_devices_a: 1\n", "")


@pytest.mark.parametrize(
    "pairs",
    [
        [
            (
                '- {name: NNODES, value: "2"}',
                "- {name: NCCL_NET, value: FasTrak}\n        - {name: NNODES, value: '2'}",
            )
        ],
        [
            (
                "      labels: {app: dpo}",
                "      labels: {app: dpo}\n      annotations: {k8s.v1.cni.cncf.io/networks: roce}",
            )
        ],
        [
            (
                "          limits:\n            nvidia",
                "          claims: [{name: nic}]\n          limits:\n            nvidia",
            )
        ],
    ],
)
def test_another_network_that_somebody_chose_is_no_missing_rdma(pairs: list[tuple[str, str]]) -> None:
    assert not [line for line in lines_of(changed(NO_RDMA, *pairs)) if line.id == "ib-fallback"]


def test_pods_that_never_meet_need_no_rdma() -> None:
    sweep = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: sweep}\nspec:\n  completions: 4\n  parallelism: 4\n  template:\n"
    sweep += "    spec:\n      restartPolicy: Never\n      containers:\n      - name: t\n        command: [swift, sft, --model, m]\n"
    sweep += "        resources: {limits: {nvidia.com/gpu: 1}}\n"

    assert not [line for line in lines_of(sweep) if line.status == "problem"]


def test_a_number_of_nodes_in_the_command_replaces_the_one_of_the_manifest() -> None:
    text = changed(("megatron rlhf", "NNODES=4 megatron rlhf"))

    (line,) = [line for line in lines_of(text) if line.status == "problem"]
    assert "4 nodes (NNODES=4 in its command, which replaces 2), but Job/dpo makes 2 pods" in line.said
