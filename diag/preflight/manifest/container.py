"""The container that trains: its variables as Kubernetes fills them in, its command, its devices. Judges
nothing.

What only the running pod knows is kept as a mark in place of a value: the pod's own number, or not known at
all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from diag.launch.launchers.command import Rendezvous, read_command
from diag.launch.launchers.command.names import is_shell
from diag.preflight.launch_facts import LaunchFacts
from diag.preflight.manifest.pods import PodGroup
from diag.preflight.manifest.reading import Document, Field, named, quantity

INDEX, POD_NAME, UNKNOWN = "\x01index\x01", "\x01name\x01", "\x01unknown\x01"  # no variable can hold them
_TRAINS = re.compile(
    r"\b(torchrun|torch\.distributed\.(run|launch)|deepspeed|accelerate +launch|(megatron|swift) +(sft|rlhf|pt)|mpirun|"
    r"horovodrun|"
    r"pretrain_\w+|llamafactory-cli +train|(pre)?train\w*\.(py|sh)|finetune\w*\.(py|sh)|dpo\w*\.(py|sh)|sft\w*\.(py|sh))(?![\w-])"
)
_SERVES = re.compile(
    r"\b(vllm +serve|vllm\.entrypoints|sglang|tritonserver|api_server|swift +(deploy|infer|app)|jupyter|uvicorn|"
    r"ray +start)\b"
)
_WAITS = re.compile(r"\b(sleep +(infinity|inf|\d{5,})|tail +-[fF] +/dev/null)\b")
_DISTRIBUTED = ("NPROC_PER_NODE", "NNODES", "NODE_RANK", "PET_NNODES", "PET_NPROC_PER_NODE")
_ACCELERATOR = re.compile(
    r"^(nvidia\.com/(gpu|mig-.*)(\.shared)?|amd\.com/gpu|huawei\.com/Ascend.*|.*/(gpu|npu|mlu|dcu|hpu|gaudi))$"
)
_RDMA = re.compile(
    r"^rdma/|/.*(hca|rdma|roce|infiniband|hostdev|sriov|mlnx|mlx5|ib\d*$|^efa)|/efa$|^networking\.gke\.io",
    re.IGNORECASE,
)
_SHELL_NAME = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
_REFERENCE = re.compile(r"\$\(([A-Za-z_]\w*)\)|\$\$\(")


@dataclass(frozen=True, slots=True)
class Trainer:
    """`environment` has marks where a value is not known; `fields` are where each variable is set. `unfilled`
    are variables whose value holds a $(NAME) that Kubernetes leaves as it is. `gpus` is None where no device
    is asked for. `scripts` are the ones in ConfigMaps that it runs."""

    group: PodGroup
    container: Field
    command: str
    environment: Mapping[str, str]
    fields: Mapping[str, Field]
    unfilled: Mapping[str, str]
    facts: LaunchFacts
    meeting: Rendezvous
    gpus: int | None
    gpus_field: Field
    rdma: Field | None
    all_known: bool  # no envFrom of what is not here
    scripts: tuple[Field, ...] = ()

    @property
    def waits(self) -> bool:
        return _WAITS.search(self.command) is not None

    @property
    def ranks_are_known(self) -> bool:
        """Whether the number of ranks of a pod is one that was written, or the launcher's default because
        nothing says it."""
        launch = self.facts.launch
        if launch is None or not self.all_known:
            return False
        by_operator = "PET_NPROC_PER_NODE" in self.group.sets and launch.launcher == "torchrun"
        given = (self.environment.get(name, "") for name in ("NPROC_PER_NODE", "PET_NPROC_PER_NODE"))
        return bool(launch.processes_from) or not (
            by_operator or any("\x01" in text or "$" in text for text in given)
        )

    @property
    def user(self) -> int | None:
        return user_of(self.group, self.container)

    @property
    def is_privileged(self) -> bool:
        return self.container.at("securityContext", "privileged").text == "true"

    @property
    def capabilities(self) -> set[str]:
        return capabilities_of(self.container)

    def place(self, *names: str) -> Field:
        """Where one of these variables is set, or the container."""
        return next((self.fields[name] for name in names if name in self.fields), self.container)


def capabilities_of(container: Field) -> set[str]:
    added = container.at("securityContext", "capabilities", "add").items
    return {item.text.removeprefix("CAP_") for item in added}


def command_of(container: Field) -> list[str]:
    return [item.script for part in ("command", "args") for item in container.at(part).items]


def user_of(group: PodGroup, container: Field) -> int | None:
    own = container.at("securityContext", "runAsUser")
    return (own if own.there else group.spec.at("securityContext", "runAsUser")).number


def is_sidecar(container: Field) -> bool:
    """Whether it is diag's."""
    words = command_of(container)
    image = re.sub(r"[:@].*", "", container.at("image").text.rpartition("/")[2])
    names = {image, container.at("name").text, *(word.rpartition("/")[2] for word in words)}
    in_a_shell = any(re.search(r"\bdiag watch\b", word) for word in words)
    return in_a_shell or ("watch" in words and "diag" in names)


def trainer_of(group: PodGroup, documents: Sequence[Document]) -> Trainer | None:
    """None where nothing shows that it trains: a server, a data base, a job of another sort."""
    candidates = [container for container in group.spec.at("containers").items if not is_sidecar(container)]
    best: Trainer | None = None
    for container in candidates:
        trainer = _read(group, container, documents)
        text, alone = trainer.command, group.trains and len(candidates) == 1
        distributed = set(_DISTRIBUTED) & set(trainer.fields) or {"MASTER_ADDR", "WORLD_SIZE"} <= set(
            trainer.fields
        )
        if _SERVES.search(text) or not (distributed or _TRAINS.search(text) or alone):
            continue
        if best is None or (trainer.gpus or 0) > (best.gpus or 0):
            best = trainer
    return best


def _read(group: PodGroup, container: Field, documents: Sequence[Document]) -> Trainer:
    environment, fields, unfilled, all_known = _environment(group, container, documents)
    words = [_filled(word or UNKNOWN, environment)[0] for word in command_of(container)]
    _add_controllers(environment, group)

    scripts: dict[str, Field] = {}

    def text_of(path: str) -> str | None:
        field = _mounted(path, group, container, documents)
        if field is None or not field.script:
            return None
        scripts[path] = field
        return field.script

    texts = [text for word in words[:3] if word.endswith(".sh") and (text := text_of(word))]
    text = " ".join((*words, *texts))
    # What neither the manifest nor the script sets (the image does, or a command that the script runs) is not
    # empty.
    names = {match[1] or match[2] for match in _SHELL_NAME.finditer(text)}
    unset = dict.fromkeys(names - environment.keys(), UNKNOWN)
    first = read_command(words, {**environment, **unset}, read_text=text_of)
    env = {name: value for name, value in first.environment.items() if name not in unset or value != UNKNOWN}
    known = {name: value for name, value in env.items() if "\x01" not in value}
    read = read_command(first.line, known, read_text=text_of)
    unread = "its script is not here" if first.line and is_shell(first.line[0]) else read.unread
    read = replace(read, unseen=first.unseen, unread=unread)
    wanted = (item for item in _resources(container) if item.text not in ("0", ""))
    gpus, gpus_field = _devices(container)
    return Trainer(
        group,
        container,
        text,
        {**env, **read.environment},
        fields,
        unfilled,
        LaunchFacts(read, known),
        first.meeting,
        gpus,
        gpus_field,
        next((item for item in wanted if _RDMA.search(str(item.path[-1]))), None),
        all_known,
        tuple(scripts.values()),
    )


def _add_controllers(environment: dict[str, str], group: PodGroup) -> None:
    """The variables that the controller and the kubelet set, where the manifest does not."""
    for name in group.sets:
        environment.setdefault(name, INDEX if "INDEX" in name or "RANK" in name else UNKNOWN)
    if "PET_NNODES" in group.sets and group.nodes is not None:
        environment["PET_NNODES"] = environment["PET_NNODES"].replace(UNKNOWN, str(group.nodes))
    environment.setdefault("HOSTNAME", POD_NAME)


def _environment(
    group: PodGroup, container: Field, documents: Sequence[Document]
) -> tuple[dict[str, str], dict[str, Field], dict[str, str], bool]:
    """As the kubelet does it: in order, each $(NAME) of an earlier variable."""
    environment: dict[str, str] = {}
    fields: dict[str, Field] = {}
    unfilled: dict[str, str] = {}
    all_known = True
    for source in container.at("envFrom").items:
        data = _data(documents, source.at("configMapRef", "name").text, group)
        all_known = all_known and data is not None
        if data is not None:
            for name, written in data.mapping.items():
                environment[source.at("prefix").text + name] = written
                fields[source.at("prefix").text + name] = data.at(name)
    listed = {item.at("name").text for item in container.at("env").items}
    for item in container.at("env").items:
        name, value = item.at("name").text, item.at("value")
        if not name:
            continue
        fields[name] = item
        if value.there:
            text, left = _filled(value.text, environment) if not value.is_template else (UNKNOWN, [])
            environment[name] = text
            late = [word for word in left if word in listed or word in group.sets]
            if late:
                unfilled[name] = late[0]
            elif left:  # of a ConfigMap, the image or a webhook
                environment[name] = UNKNOWN
        elif item.at("valueFrom").there:
            environment[name] = _from(item.at("valueFrom"), group, documents)
        else:
            environment[name] = ""
    return environment, fields, unfilled, all_known


def _from(source: Field, group: PodGroup, documents: Sequence[Document]) -> str:
    path = source.at("fieldRef", "fieldPath").text
    if re.search("(completion|pod|replica|job|job-global)-index", path):
        return INDEX
    if path == "metadata.name":
        return POD_NAME
    reference = source.at("configMapKeyRef")
    data = _data(documents, reference.at("name").text, group)
    return data.mapping.get(reference.at("key").text, UNKNOWN) if data is not None else UNKNOWN


def _data(documents: Sequence[Document], name: str, group: PodGroup) -> Field | None:
    """That of a ConfigMap that these pods can name."""
    spaces = ("", group.document.namespace)
    maps = (item for item in documents if item.kind == "ConfigMap" and item.namespace in spaces)
    return next((item.root.at("data") for item in maps if name and item.name == name), None)


def _filled(text: str, environment: Mapping[str, str]) -> tuple[str, list[str]]:
    left: list[str] = []

    def value(match: re.Match[str]) -> str:
        if match[1] is None:
            return "$("
        if match[1] not in environment:
            left.append(match[1])
        return environment.get(match[1], match[0])

    return _REFERENCE.sub(value, text), left


def _mounted(path: str, group: PodGroup, container: Field, documents: Sequence[Document]) -> Field | None:
    """The file that a ConfigMap of these manifests puts there."""
    for mount in container.at("volumeMounts").items:
        folder = mount.at("mountPath").text.rstrip("/")
        volume = named(group.spec.at("volumes"), mount.at("name").text)
        if volume is not None and folder and path.startswith(folder + "/"):
            data = _data(documents, volume.at("configMap", "name").text, group)
            return data.at(path.removeprefix(folder + "/")) if data is not None else None
    return None


def _resources(container: Field) -> list[Field]:
    """Requests and limits; of what has both its limit."""
    parts = [container.at("resources", part) for part in ("requests", "limits")]
    found = {name: part.at(name) for part in parts if isinstance(part.value, dict) for name in part.value}
    return list(found.values())


def _devices(container: Field) -> tuple[int | None, Field]:
    for item in _resources(container):
        if _ACCELERATOR.match(str(item.path[-1])):
            return quantity(item.text) if item.text else None, item
    return None, container.at("resources", "limits")
