"""Kubernetes manifests as people had them: what `diag doctor --manifest` says of each, and what `--fix` makes of it."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest
import yaml

from diag.preflight.manifest import manifest_lines
from diag.preflight.manifest.fix import Fixed, fix_texts
from diag.preflight.manifest.reading import read_text
from tests.mission.cases import Case

FOLDER = Path(__file__).parent / "manifests"
RDMA = "rdma/hca_shared_devices_a"
# In the place of a script that is in the image.
INLINE = """command: [bash, -c, "megatron rlhf --rlhf_type dpo --model Qwen/Qwen3-30B-A3B --save /code/out \
--tensor_model_parallel_size 4 --expert_model_parallel_size 8 --optimizer_cpu_offload true \
--use_precision_aware_optimizer true --optimizer_offload_fraction 1 --max_length 4096"]"""
HEAD = "{name: MASTER_ADDR, value: head.trainers.svc.cluster.local}"

# (file, what is changed in it)
VARIANTS: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "StatefulSet": ("statefulset", ()),
    "StatefulSet of two nodes": (
        "statefulset",
        (
            ("replicas: 1 ", "replicas: 2 "),
            ('NNODES, value: "1"', 'NNODES, value: "2"'),
            ("--global_batch_size 16", "--global_batch_size 32"),
        ),
    ),
    "Job": ("job", ()),
    "Job without Service": ("job", (("kind: Service", "kind: ServiceAccount"),)),
    "Pods": ("pods", ()),
    "Pods with InfiniBand": ("infiniband", ()),
    "no IPC_LOCK": ("infiniband", (('"IPC_LOCK", ', ""),)),
    "RDMA switched off": ("infiniband", (('NCCL_IB_DISABLE, value: "0"', 'NCCL_IB_DISABLE, value: "1"'),)),
    "loopback as interface": ("infiniband", (('NCCL_IB_DISABLE, value: "0"', "NCCL_SOCKET_IFNAME, value: lo"),)),
    "half the ranks": ("infiniband", (('NPROC_PER_NODE, value: "8"', 'NPROC_PER_NODE, value: "4"'),)),
    "another namespace": ("infiniband", (("head.trainers.svc", "head.default.svc"),)),
    "a Service of no pod": ("infiniband", (("selector: {part: head}", "selector: {part: boss}"),)),
    "localhost": ("infiniband", ((HEAD, "{name: MASTER_ADDR, value: localhost}"),)),
    "little memory": (
        "infiniband", (('command: ["/bin/bash", "/code/dpo.sh"]', INLINE), ("memory: 512G", "memory: 100G")),
    ),
    "one Pod of two": ("pods", (("kind: Pod\nmetadata: {name: dpo-hand", "kind: PodTemplate\nmetadata: {name: dpo-hand"),)),
}  # fmt: skip


def text_of(name: str) -> str:
    file, changes = VARIANTS[name]
    text = (FOLDER / f"{file}.yaml").read_text()
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


def said_of(text: str, rdma: str = "") -> list[str]:
    documents, unread = read_text(text, "job.yaml")
    lines = [*unread, *manifest_lines(documents, rdma)]
    return [f"{line.status}: {line.said} -> {' '.join(line.remedy.split())}" for line in lines]


def case(
    name: str, rows: tuple[int, ...], had: str, told: tuple[str, ...], silent: tuple[str, ...] = ()
) -> Case:
    said = functools.partial(lambda name: said_of(text_of(name)), name)
    return Case(rows, had, "diag doctor --manifest job.yaml", said, told, silent)


CASES = {
    "StatefulSet": case(
        "StatefulSet", (7, 8, 9), "a StatefulSet of one pod with 4 GPUs, NPROC_PER_NODE 4 among its variables, and =2 in its script",
        (
            "a StatefulSet restarts every pod whatever its exit code: a finished training is run again and again",
            "2 ranks (NPROC_PER_NODE=2 in its command, which replaces 4), so 2 of 4 GPUs (nvidia.com/gpu: 4) stay idle",
            "nothing is mounted on /dev/shm, so it has 64 MiB",
        ),
    ),
    "Job": case(
        "Job", (7,), "a Job of two pods with MASTER_ADDR=mcore-0.mcore in its script",
        (
            "the 2 pods of this Job have random names and no index: no name of node 0 resolves",
            "completionMode: Indexed completions: 2 parallelism: 2 template: spec: subdomain: mcore",
            "value: mcore-job-0.mcore",
        ),
    ),
    "Pods": case(
        "Pods", (2, 9, 10), "two Pods with 4 GPUs each, a headless Service, no RDMA device",
        (
            "no RDMA device is requested: between nodes NCCL uses TCP sockets",
            "securityContext: capabilities: add: [IPC_LOCK]",
            "nothing is mounted on /dev/shm, so it has 64 MiB: NCCL's buffers and DataLoader workers need more (also in Pod/dpo-hand)",
        ),
    ),
    "Pods with InfiniBand": case(
        "Pods with InfiniBand", (2,), "two Pods with RDMA device and IPC_LOCK, whose script is in the image",
        ("not checked: 2 pods, 8 GPUs each (16 in all), they meet at head.trainers.svc.cluster.local; its command could not be read",),
        ("problem:", "ok:"),
    ),
    "no IPC_LOCK": case(
        "no IPC_LOCK", (10,), "two Pods with InfiniBand, without IPC_LOCK",
        ("rdma/hca_shared_devices_a is requested but IPC_LOCK is not: RDMA may lock no more than the runtime's limit",),
    ),
    "RDMA switched off": case(
        "RDMA switched off", (13,), "two Pods with InfiniBand, with NCCL_IB_DISABLE=1 in both",
        ("NCCL_IB_DISABLE=1: this node has RDMA devices, and it makes NCCL send everything between nodes", "(also in Pod/hand)"),
    ),
    "loopback as interface": case(
        "loopback as interface", (13,), "two Pods with InfiniBand, with NCCL_SOCKET_IFNAME=lo in both",
        ("NCCL_SOCKET_IFNAME=lo: it binds each of the 2 nodes to its own loopback interface: they never meet",),
    ),
    "half the ranks": case(
        "half the ranks", (8,), "two Pods with InfiniBand, with NPROC_PER_NODE 4",
        ("4 ranks (NPROC_PER_NODE), so 4 of 8 GPUs (nvidia.com/gpu: 8) stay idle",),
    ),
    "another namespace": case(
        "another namespace", (7,), "two Pods with InfiniBand, with MASTER_ADDR in the namespace default",
        ("head.default.svc.cluster.local is in namespace default, but these pods are in trainers",), ("they meet at",),
    ),
    "a Service of no pod": case(
        "a Service of no pod", (7,), "two Pods with InfiniBand, with a Service that selects another label",
        ("it selects no pod of the given manifests; node 0 is Pod/head, with the labels {part: head}",), ("they meet at",),
    ),
    "localhost": case(
        "localhost", (6, 7), "two Pods with InfiniBand, with MASTER_ADDR=localhost",
        ("each of 2 pods would wait for the others at its own localhost",),
    ),
    "little memory": case(
        "little memory", (3, 17), "two Pods with InfiniBand, the DPO of Qwen3-30B-A3B as their command and 100G of memory",
        ("100G, but CMD needs about", "while it saves a checkpoint"),
    ),
    "one Pod of two": case(
        "one Pod of two", (8,), "the first of two Pods alone",
        ("not checked: job.yaml:24 spec.containers[dpo].env[NNODES]: the job has 2 nodes (NNODES), of which Pod/dpo-head is 1",),
        ("ok:",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_person_is_told(name: str) -> None:
    CASES[name].check()


@functools.cache
def fixed(name: str) -> Fixed:
    return fix_texts({"job.yaml": text_of(name)}, RDMA)


@pytest.mark.parametrize("name", VARIANTS)
def test_one_round_mends_all_of_it(name: str) -> None:
    found = fixed(name)

    assert not found.left and not found.without_comments
    said = said_of(found.text, RDMA)
    assert said and not [line for line in said if line.startswith("problem")]
    again = fix_texts({"job.yaml": found.text}, RDMA)
    assert (again.text, again.changes) == (found.text, ())


def leaves(value: object, path: str = "") -> dict[str, object]:
    """Scalars by their paths, as the changes name them."""
    if isinstance(value, dict):
        steps = [
            (f".{key}" if re.fullmatch(r"[\w-]+", key) else f"[{key}]", inner) for key, inner in value.items()
        ]
    elif isinstance(value, list):
        names = [item.get("name", at) if isinstance(item, dict) else at for at, item in enumerate(value)]
        steps = [(f"[{name}]", inner) for name, inner in zip(names, value, strict=True)]
    else:
        return {path.lstrip("."): value}
    return {where: leaf for step, inner in steps for where, leaf in leaves(inner, path + step).items()}


@pytest.mark.parametrize("name", VARIANTS)
def test_what_it_does_not_name_is_as_it_was(name: str) -> None:
    text, found = text_of(name), fixed(name)

    named = tuple(change.partition(" ")[2].partition(": ")[0] for change in found.changes)
    for old, new in zip(yaml.safe_load_all(text), yaml.safe_load_all(found.text), strict=False):
        lost = dict(leaves(old).items() - leaves(new).items()) if old else {}
        assert [path for path in lost if not path.startswith(named)] == []
    gone = [comment for comment in re.findall(r"# .*", text) if comment not in found.text]
    assert gone in ([], ["# the Service above", "# nodes"]), "only those of lines that are gone"


def test_a_training_keeps_its_script() -> None:
    def script(text: str) -> str:
        last = list(yaml.safe_load_all(text))[-1]
        return str(last["spec"]["template"]["spec"]["containers"][0]["args"][2])

    name = "StatefulSet of two nodes"
    assert script(fixed(name).text) == script(text_of(name))


def test_an_rdma_resource_is_never_made_up() -> None:
    found = fix_texts({"job.yaml": text_of("Pods")})

    assert "rdma/" not in found.text
    assert [line.id for line in found.left] == ["ib-fallback"]


def test_a_cluster_without_rdma_is_no_problem() -> None:
    found = fix_texts({"job.yaml": text_of("Pods")}, "none")

    assert not found.left and "rdma/" not in found.text
    assert any("note" in line and "TCP sockets" in line for line in said_of(found.text, "none"))


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("version", ["1.29", "1.37"])
def test_kubernetes_would_take_it(name: str, version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="pip install -r requirements/cluster.txt")

    for document in yaml.safe_load_all(fixed(name).text):
        if document and document["kind"] in ("Pod", "Job", "Service"):
            validate.validate(document, version, strict=True)
