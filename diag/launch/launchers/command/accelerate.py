"""`accelerate launch`: its flags, and its configuration file for what they leave out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from diag.launch.launchers.command.errors import CommandError
from diag.launch.launchers.command.options import number

# accelerate 1.15, commands/launch.py: what a flag leaves out is taken from the file, under the same name
_MEETING = ("num_machines", "machine_rank", "main_process_ip", "main_process_port")
_OTHERS = ("num_processes", "gpu_ids", "use_cpu")
_MOST_TEXT = 200_000


@dataclass(frozen=True, slots=True)
class Accelerate:
    """`flags` are those of CMD, `file` what the file at `path` says of the nodes under the names of flags,
    and `options` both. `total` are the processes of all machines, `processes` those of one."""

    flags: Mapping[str, str] = field(default_factory=dict)
    file: Mapping[str, str] = field(default_factory=dict)
    path: str = ""
    options: dict[str, str] = field(default_factory=dict)
    distributed: Mapping[str, Any] = field(default_factory=dict)
    total: int | None = None
    processes: int | None = None
    processes_from: str = ""
    notes: tuple[str, ...] = ()


def read_accelerate(
    flags: Mapping[str, str],
    environment: Mapping[str, str],
    required: Callable[[str], str],
    maybe: Callable[[str], str | None],
) -> Accelerate:
    """`required` raises CommandError for a file that cannot be read."""
    config: dict[str, Any] = {}
    notes: tuple[str, ...] = ()
    path = flags.get("--config_file", "")
    if "--config_file" in flags:
        config = _parsed(required(path), path)
    else:
        path = _default(environment)
        text = maybe(path)
        try:
            config = _parsed(text, path) if text is not None else {}
            notes = (f"accelerate reads {path}, as no --config_file is given",) if text is not None else ()
        except CommandError as error:
            notes = (f"accelerate will read {path}, and diag could not: {error}",)
    written = {
        f"--{key}": str(config[key])
        for key in (*_MEETING, *_OTHERS)
        if config.get(key) is not None and not isinstance(config[key], (dict, list))
    }
    options = {**written, **flags}
    nodes = number(options.get("--num_machines", ""), "--num_machines")
    total = number(options.get("--num_processes", ""), "--num_processes")
    own = {name.removeprefix("--"): value for name, value in flags.items() if name.startswith("--")}
    by_flag = bool(flags.get("--num_processes"))
    return Accelerate(
        flags=flags,
        file={name: value for name, value in written.items() if name.removeprefix("--") in _MEETING},
        path=path,
        options=options,
        distributed={**_distributed(config, own), **own},
        total=total,
        processes=max(1, total // (nodes or 1)) if total else None,
        processes_from="" if not total else "--num_processes" if by_flag else "num_processes of its file",
        notes=notes,
    )


def _distributed(config: Mapping[str, Any], flags: Mapping[str, str]) -> dict[str, Any]:
    """What the file says of DeepSpeed and FSDP, and under `kind` which of them is used."""
    found: dict[str, Any] = {}
    for part in ("deepspeed_config", "fsdp_config"):
        inner = config.get(part)
        if isinstance(inner, Mapping):
            found.update({str(key): value for key, value in inner.items()})
    kind = str(config.get("distributed_type", ""))
    if "use_deepspeed" in flags or kind == "DEEPSPEED":
        found["kind"] = "deepspeed"
    elif "use_fsdp" in flags or kind == "FSDP":
        found["kind"] = "fsdp"
    return found


def _default(environment: Mapping[str, str]) -> str:
    """accelerate/commands/config/config_args.py: HF_HOME, XDG_CACHE_HOME or ~/.cache, and there this file."""
    cache = environment.get("XDG_CACHE_HOME") or f"{environment.get('HOME', '')}/.cache"
    return f"{environment.get('HF_HOME') or f'{cache}/huggingface'}/accelerate/default_config.yaml"


def _parsed(text: str, path: str) -> dict[str, Any]:
    import yaml  # not for who only asks for a name of a job

    try:
        data = yaml.safe_load(text[:_MOST_TEXT])
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise CommandError(f"cannot read {path}: {error}") from error
    return data if isinstance(data, dict) else {}
