"""CMD taken apart: which training program it starts, with which words, on how many processes and nodes. Reads
shell scripts and accelerate's config file, nothing else; starts nothing.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from diag.launch.launchers.hostfile import Hostfile, read_hostfile
from diag.launch.launchers.rendezvous import split_environment
from diag.preflight.estimate.errors import EstimateError
from diag.preflight.estimate.launcher_words import after_options, first, number, split_options
from diag.preflight.estimate.shell_script import training_command, unseen

__all__ = ["ELSEWHERE", "Launch", "take_apart"]


@dataclass(slots=True)
class Launch:
    """`program` is megatron (ms-swift's), megatron-lm, swift, or script (somebody's own trainer); `verb` sft,
    rlhf, pt or "".

    `words` are the program's arguments. `processes` and `nodes` are None where nothing tells them.
    `distributed` holds what an accelerate config file or its flags say of DeepSpeed and FSDP. `options` are
    the launcher's own, `by_word` torchrun's "gpu", "auto" or "cpu" in place of a number, `total` accelerate's
    number of processes of all machines, `tasks` those that srun starts on each node, `hosts` a hostfile of
    DeepSpeed. `command` is the line that starts the training, launcher and all, as it stands in CMD or in a
    script; `unseen` a line of that script which may set more variables; `opaque` says why its numbers may be
    others than they seem.
    """

    environment: dict[str, str]
    program: str = "script"
    verb: str = ""
    words: list[str] = field(default_factory=list)
    processes: int | None = None  # of one node
    nodes: int | None = None
    launcher: str = ""
    distributed: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)
    processes_from: str = ""
    nodes_from: str = ""
    by_word: str = ""
    total: int | None = None
    tasks: int | None = None
    by_srun: bool = False
    hosts: Hostfile | None = None
    command: list[str] = field(default_factory=list)
    unseen: str = ""
    opaque: str = ""


# These start CMD somewhere else, with an environment and devices that are not those here.
ELSEWHERE = frozenset(
    {"docker", "podman", "kubectl", "ssh", "singularity", "apptainer", "sbatch", "nerdctl", "enroot", "dlc"}
)

# Programs that only run another: how many words of their own follow as values of these options.
_PREFIXES: dict[str, frozenset[str]] = {
    "nohup": frozenset(),
    "exec": frozenset(),
    "time": frozenset({"-f", "-o"}),
    "nice": frozenset({"-n"}),
    "ionice": frozenset({"-c", "-n"}),
    "setsid": frozenset(),
    "stdbuf": frozenset({"-i", "-o", "-e"}),
    "timeout": frozenset({"-k", "-s"}),
    "numactl": frozenset({"-C", "-N", "-m", "-i", "-p"}),
    "taskset": frozenset(),
    "sudo": frozenset({"-u", "-g"}),
    "nsys": frozenset({"-o", "-t"}),
}
_SRUN_NODES = ("-N", "--nodes")
_TORCHRUN = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
_SWIFT_VERBS = ("sft", "rlhf", "pt")
_BARE_TORCHRUN = frozenset(
    {"--standalone", "--no_python", "--no-python", "-m", "--module", "--run_path", "--run-path", "--use_env"}
)
_DEEP = 8  # wrappers within wrappers


def take_apart(
    command: Sequence[str], environment: Mapping[str, str], folder: Path = Path(), *, certain: bool = False
) -> Launch:
    """Raises EstimateError where no training program is found in it. `certain`: see training_command."""
    launch = Launch(dict(environment))
    words, shell = list(command), False
    for _ in range(_DEEP):
        words, launch.environment = split_environment(words, launch.environment)
        while words and re.match(r"[A-Za-z_]\w*=", words[0]):
            name, _, value = words.pop(0).partition("=")
            launch.environment[name] = value
        if not words:
            raise EstimateError(
                "there is no command to estimate", hint="diag estimate -- megatron rlhf --model ... "
            )
        if not launch.command or shell:
            launch.command = list(words)
        shell = _is_shell(words[0])
        further = _unwrap(words, launch, folder, certain=certain)
        if further is None:
            _from_rank(launch)
            return launch
        words = further
    raise EstimateError("too many programs that start one another", hint="pass the training command itself")


def _from_rank(launch: Launch) -> None:
    """The command of a rank itself has its launcher's numbers in the environment."""
    env = launch.environment
    if launch.processes is None and env.get("RANK") and env.get("LOCAL_WORLD_SIZE"):
        launch.processes = number(env["LOCAL_WORLD_SIZE"], "LOCAL_WORLD_SIZE")
        world = number(env.get("WORLD_SIZE", ""), "WORLD_SIZE")
        if world and launch.processes:
            launch.nodes, launch.nodes_from = (
                max(1, world // launch.processes),
                "WORLD_SIZE and LOCAL_WORLD_SIZE",
            )


def _is_shell(word: str) -> bool:
    return word.rpartition("/")[2] in ("bash", "sh", "zsh", "dash") or word.endswith(".sh")


def _unwrap(words: list[str], launch: Launch, folder: Path, *, certain: bool) -> list[str] | None:
    """What the first word runs; None when that is the training program itself, which is then in `launch`."""
    name = words[0].rpartition("/")[2]
    if _is_shell(name):
        return _shell(["bash", *words] if name.endswith(".sh") else words, launch, folder, certain=certain)
    if name in ELSEWHERE:
        raise EstimateError(
            f"`{name}` starts it elsewhere, with another environment and other devices",
            hint="pass the training command itself",
        )
    if name == "srun":
        return _srun(words, launch)
    if name == "diag":
        return words[words.index("--") + 1 :] if "--" in words else []
    if name in _PREFIXES:
        rest = after_options(words[1:], _PREFIXES[name])
        return rest[1:] if name in ("timeout", "taskset") else rest
    if name in _TORCHRUN:
        return _torchrun(words[1:], launch)
    if name == "accelerate" and words[1:2] == ["launch"]:
        return _accelerate(words[2:], launch, folder)
    if name == "deepspeed":
        return _deepspeed(words[1:], launch, folder)
    if name.startswith("python"):
        return _python(words[1:], launch)
    if not launch.launcher and not name.endswith(".py") and name not in ("megatron", "swift"):
        launch.opaque = f"`{name}` may start ranks by itself"
    _program(name, words[0], words[1:], launch)
    return None


def _program(name: str, path: str, rest: list[str], launch: Launch) -> None:
    if name in ("megatron", "swift") and rest[:1] and rest[0] in _SWIFT_VERBS:
        launch.program, launch.verb, launch.words = name, rest[0], rest[1:]
        if launch.processes is None:
            launch.launcher = launch.launcher or name
            launch.processes = number(launch.environment.get("NPROC_PER_NODE", ""), "NPROC_PER_NODE") or 1
            launch.processes_from = "NPROC_PER_NODE" if launch.environment.get("NPROC_PER_NODE") else ""
            nodes = number(launch.environment.get("NNODES", ""), "NNODES")
            if nodes is not None:
                launch.nodes, launch.nodes_from = nodes, "NNODES"
            if not launch.environment.get("NPROC_PER_NODE"):
                launch.notes.append("NPROC_PER_NODE is not set: one process a node")
        return
    if name in ("megatron", "swift"):
        verb = rest[0] if rest else "nothing"
        raise EstimateError(
            f"`{name} {verb}` trains nothing",
            hint=f"`{name} sft`, `{name} pt` and `{name} rlhf` can be estimated",
        )
    inside = re.search(r"swift/(?:cli|llm)/(?:_megatron/|train/)?(sft|rlhf|pt)\.py$", path)
    if inside:
        launch.program, launch.verb = ("megatron" if "_megatron" in path else "swift"), inside[1]
    elif name.startswith("pretrain_") and name.endswith(".py"):
        launch.program, launch.verb = "megatron-lm", "pt"
    else:
        launch.program = "script"
    launch.words = rest


def _torchrun(words: list[str], launch: Launch) -> list[str]:
    options, rest = split_options(words, _BARE_TORCHRUN)
    launch.launcher, launch.options = "torchrun", options
    processes, launch.processes_from = first(
        options, launch.environment, "--nproc_per_node", "PET_NPROC_PER_NODE"
    )
    processes = processes or "1"
    if processes in ("gpu", "auto", "cpu"):
        launch.by_word, launch.processes = processes, None
        launch.notes.append(
            f"--nproc_per_node {processes}: taken as one process for each GPU seen, or --gpus-per-node"
        )
    else:
        launch.processes = number(processes, "--nproc_per_node")
    nodes, nodes_from = first(options, launch.environment, "--nnodes", "PET_NNODES")
    if nodes:
        launch.nodes, launch.nodes_from = number(nodes, "--nnodes"), nodes_from
    if "-m" in options or "--module" in options:
        return ["python", "-m", *rest]
    return ["python", *rest]


def _deepspeed(words: list[str], launch: Launch, folder: Path) -> list[str]:
    options, rest = split_options(words, _BARE_DEEPSPEED)
    for short, long in (
        ("-H", "--hostfile"),
        ("-i", "--include"),
        ("-e", "--exclude"),
        ("--num_accelerators", "--num_gpus"),
    ):
        if short in options:
            options.setdefault(long, options[short])
    launch.launcher, launch.options = "deepspeed", options
    launch.hosts = read_hostfile(folder / options.get("--hostfile", "/job/hostfile"))  # its own default
    launch.processes = number(options.get("--num_gpus", ""), "--num_gpus")
    launch.processes_from = "--num_gpus" if launch.processes else ""
    launch.nodes = number(options.get("--num_nodes", ""), "--num_nodes") or launch.nodes
    launch.nodes_from = "--num_nodes" if options.get("--num_nodes") else ""
    include = options.get("--include", "")
    if launch.processes is None and ":" in include:
        launch.processes, launch.processes_from = (
            len(include.partition("@")[0].rpartition(":")[2].split(",")),
            "--include",
        )
    if "@" in include and launch.nodes is None:
        launch.nodes, launch.nodes_from = len(include.split("@")), "--include"
    if launch.hosts is not None and launch.hosts.slots and not include:
        if launch.processes is None:
            launch.processes, launch.processes_from = (
                max(launch.hosts.slots.values()),
                "slots of the hostfile",
            )
        if launch.nodes is None:
            launch.nodes, launch.nodes_from = len(launch.hosts.slots), "the hostfile"
    return ["python", *rest]


_BARE_DEEPSPEED = frozenset(
    {"--no_ssh", "--no_ssh_check", "--no_python", "--module", "--force_multi", "--save_pid", "--no_local_rank",
     "--elastic_training", "--bind_cores_to_rank"}
)  # fmt: skip
_BARE_ACCELERATE = frozenset(
    {"--multi_gpu", "--use_deepspeed", "--use_fsdp", "--cpu", "--debug", "--no_python", "--same_network", "--module", "-m",
     "--quiet", "-q", "--use_megatron_lm"}
)  # fmt: skip


def _accelerate(words: list[str], launch: Launch, folder: Path) -> list[str]:
    options, rest = split_options(words, _BARE_ACCELERATE)
    launch.launcher = "accelerate"
    config: dict[str, Any] = {}
    if "--config_file" in options:
        config = _yaml(folder / options["--config_file"])
    elif (default := _accelerate_default(launch.environment)) is not None:
        try:
            config = _yaml(default)
            launch.notes.append(f"accelerate reads {default}, as no --config_file is given")
        except EstimateError as error:
            launch.notes.append(f"accelerate will read {default}, and diag could not: {error}")
    flat = {name[2:]: value for name, value in options.items() if name.startswith("--")}
    total = flat.get("num_processes") or str(config.get("num_processes") or "")
    nodes = number(flat.get("num_machines") or str(config.get("num_machines") or ""), "--num_machines")
    launch.nodes = nodes or launch.nodes
    count = number(total, "--num_processes")
    launch.processes = max(1, count // (nodes or 1)) if count else None
    launch.total = count
    launch.processes_from = (
        "" if not count else "--num_processes" if "num_processes" in flat else "num_processes of its file"
    )
    launch.nodes_from = (
        "" if not nodes else "--num_machines" if "num_machines" in flat else "num_machines of its file"
    )
    known = (
        "num_processes",
        "num_machines",
        "machine_rank",
        "gpu_ids",
        "main_process_ip",
        "main_process_port",
        "use_cpu",
    )
    launch.options = {
        **{f"--{key}": str(config[key]) for key in known if config.get(key) is not None},
        **options,
    }
    for part in ("deepspeed_config", "fsdp_config"):
        inner = config.get(part)
        if isinstance(inner, Mapping):
            launch.distributed.update({str(key): value for key, value in inner.items()})
    launch.distributed.update(flat)
    kind = str(config.get("distributed_type", ""))
    if "use_deepspeed" in flat or kind == "DEEPSPEED":
        launch.distributed["kind"] = "deepspeed"
    elif "use_fsdp" in flat or kind == "FSDP":
        launch.distributed["kind"] = "fsdp"
    if "--module" in options or "-m" in options:
        return ["python", "-m", *rest]
    return ["python", *rest]


def _accelerate_default(environment: Mapping[str, str]) -> Path | None:
    """accelerate/commands/config/config_args.py: HF_HOME, XDG_CACHE_HOME or ~/.cache, and there this file, if
    it is there."""
    cache = environment.get("XDG_CACHE_HOME") or f"{environment.get('HOME', '')}/.cache"
    path = Path(
        environment.get("HF_HOME") or f"{cache}/huggingface", "accelerate/default_config.yaml"
    ).expanduser()
    try:
        return path if path.is_file() else None
    except (OSError, ValueError):
        return None


def _yaml(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text(errors="replace")[:200_000])
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise EstimateError(f"cannot read {path}: {error}") from error
    return data if isinstance(data, dict) else {}


def _srun(words: list[str], launch: Launch) -> list[str]:
    options: dict[str, str] = {}
    index = 1
    valued = {"-N", "-n", "-p", "-A", "-t", "-c", "-G", "-w", "-x", "-J", "-o", "-e", "-D", "-q"}
    while index < len(words) and words[index].startswith("-"):
        name, equals, value = words[index].partition("=")
        if name[:2] in valued and len(name) > 2:  # -N2
            options[name[:2]] = words[index][2:]
        elif equals:
            options[name] = value
        elif name in valued or (
            name.startswith("--") and index + 1 < len(words) and words[index + 1].isdecimal()
        ):
            options[name] = words[index + 1] if index + 1 < len(words) else ""
            index += 1
        index += 1
    for name in _SRUN_NODES:
        if name in options:
            launch.nodes, launch.nodes_from = (
                number(options[name].rpartition("-")[2], f"srun {name}"),
                f"srun {name}",
            )
    if launch.nodes is None:
        launch.nodes = number(launch.environment.get("SLURM_NNODES", ""), "SLURM_NNODES")
        launch.nodes_from = "SLURM_NNODES" if launch.nodes else ""
    tasks = number(options.get("--ntasks-per-node", ""), "srun --ntasks-per-node")
    in_all = number(options.get("--ntasks") or options.get("-n", ""), "srun --ntasks")
    if tasks is None and in_all is not None:
        tasks = max(1, in_all // (launch.nodes or 1))
    if tasks is None and in_all is None:
        tasks = number(launch.environment.get("SLURM_NTASKS_PER_NODE", ""), "SLURM_NTASKS_PER_NODE")
    launch.tasks, launch.by_srun = tasks, True
    if launch.nodes is None and in_all is not None and in_all > 1:
        launch.opaque = f"Slurm chooses the nodes for srun's {in_all} tasks"
    if tasks and tasks > 1:
        launch.processes, launch.processes_from = tasks, "srun's tasks a node"
    launch.launcher = launch.launcher or "srun"
    return words[index:]


def _python(words: list[str], launch: Launch) -> list[str] | None:
    index = 0
    while index < len(words) and words[index].startswith("-"):
        if words[index] == "-m":
            module, rest = (words[index + 1 : index + 2] or [""])[0], words[index + 2 :]
            if module in _TORCHRUN:
                return ["torchrun", *rest]
            if module == "accelerate.commands.launch":
                return ["accelerate", "launch", *rest]
            if module == "deepspeed.launcher.runner":
                return ["deepspeed", *rest]
            if module == "swift.cli.main":
                return ["swift", *rest]
            _program("", module.replace(".", "/") + ".py", rest, launch)
            return None
        if words[index] == "-c":
            raise EstimateError(
                "`python -c` has no arguments that tell of memory", hint="pass the training command itself"
            )
        index += 2 if words[index] in ("-X", "-W") else 1
    if index >= len(words):
        raise EstimateError("python starts nothing here", hint="pass the training command itself")
    script = words[index]
    name = script.rpartition("/")[2]
    if name in ("torchrun", "accelerate", "deepspeed", "megatron", "swift"):
        return words[index:]
    _program(name, script, words[index + 1 :], launch)
    return None


def _shell(words: list[str], launch: Launch, folder: Path, *, certain: bool) -> list[str]:
    index = 1
    while index < len(words) and words[index].startswith("-"):
        if words[index].endswith("c") and not words[index].startswith("--"):
            text = words[index + 1] if index + 1 < len(words) else ""
            # The first word after the text is $0
            return _from_script(text, words[index + 3 :], launch, "the words after -c", certain=certain)
        index += 1
    if index >= len(words):
        raise EstimateError("the shell is given no script", hint="pass the training command itself")
    path = folder / words[index]
    try:
        with path.open(errors="replace") as file:
            text = file.read(500_000)
    except (OSError, ValueError) as error:  # a null byte, which no file's name has, is a ValueError
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise EstimateError(f"cannot read {path}: {why}", hint="pass the training command itself") from error
    return _from_script(text, words[index + 1 :], launch, str(words[index]), certain=certain)


def _from_script(text: str, arguments: list[str], launch: Launch, where: str, *, certain: bool) -> list[str]:
    found, variables = training_command(text, arguments, launch.environment, certain=certain)
    launch.unseen = launch.unseen or unseen(text)
    if found is None:
        raise EstimateError(
            f"no training command was found in {where}",
            hint="pass the command itself: diag estimate -- megatron ...",
        )
    launch.environment.update(variables)
    launch.notes.append(
        f"read from {where}: {shlex.join(found[:6])} ... (variables filled in as far as a look at the text tells)"
    )
    return found
