"""`docker compose up` and `run`: the container that a service of a compose file makes, as the `docker run` line that would
make the same. After the Compose Specification; reads what concerns a training, and leaves out the rest."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from diag.launch.launchers.command.options import CommandError, read_options

_FILES = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml")
_SHARED = "the-project's"
_PASS_ONE = "docker compose up SERVICE"
# ${NAME}, ${NAME:-default}, ${NAME:?message}, $NAME, and $$ for a dollar
_VARIABLE = re.compile(r"\$(?:(\$)|\{([A-Za-z_]\w*)(?::?([-?])([^{}]*))?\}|([A-Za-z_]\w*))")
_TRAINS = re.compile(r"torchrun|deepspeed|accelerate|megatron|swift|NPROC_PER_NODE|NNODES|NODE_RANK|train")


def is_compose(words: Sequence[str]) -> bool:
    """
    >>> is_compose(["docker", "compose", "up"]), is_compose(["docker-compose", "up"]), is_compose(["docker", "run"])
    (True, True, False)
    """
    return words[0].endswith("docker-compose") or "compose" in words[1:2]


def run_line(
    words: Sequence[str], environment: Mapping[str, str], read_text: Callable[[str], str | None]
) -> list[str]:
    """Raises CommandError where no one service is meant, or the file cannot be read."""
    given, rest = read_options(words[1 if words[0].endswith("docker-compose") else 2 :], "compose")
    if not rest or rest[0] not in ("up", "run"):
        raise CommandError(f"`{' '.join(words[:3])}` starts no training that diag can read", hint=_PASS_ONE)
    names = given.get("--file") or [next((name for name in _FILES if read_text(name) is not None), _FILES[0])]
    known = {**_pairs(read_text(".env") or ""), **environment}
    services: dict[str, dict[str, Any]] = {}
    for name in names:
        for service, keys in _services(name, read_text(name), known).items():
            services[service] = {**services.get(service, {}), **keys}
    own, command = read_options(rest[1:], f"compose {rest[0]}")
    trainers = [name for name, keys in services.items() if _TRAINS.search(str(_told(keys)))]
    wanted = command[:1] or trainers
    if len(wanted) != 1 or wanted[0] not in services:
        listed = ", ".join(services) or "none"
        raise CommandError(f"which service trains is not known (there are: {listed})", hint=_PASS_ONE)
    keys = services[wanted[0]]
    options = [f"--name={wanted[0]}", *_options(keys), *(f"--env={text}" for text in own.get("--env", ()))]
    if len(trainers) > 1 and not any(option.startswith("--network=") for option in options):
        options.append(f"--network={_SHARED}")  # they meet in it
    inner = command[1:] if rest[0] == "run" and command[1:] else _words(keys.get("command"))
    return ["docker", "run", *options, str(keys.get("image") or "the-built-image"), *inner]


def _told(keys: Mapping[str, Any]) -> Sequence[Any]:
    return [keys.get(name) for name in ("command", "entrypoint", "environment")]


def _services(name: str, text: str | None, known: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    import yaml  # not for a command that reads no such file

    if text is None:
        raise CommandError(f"cannot read {name}", hint="run it where the compose file is, or name it with -f")
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise CommandError(f"{name} is no YAML: {str(error).splitlines()[0]}") from error
    services = found.get("services") if isinstance(found, dict) else None
    filled = _filled(services if isinstance(services, dict) else {}, known)
    return {str(service): keys for service, keys in filled.items() if isinstance(keys, dict)}


def _filled(value: Any, known: Mapping[str, str]) -> Any:
    """
    >>> _filled({"shm_size": "${SHM:-16g}", "command": ["echo", "$$A", "$B"]}, {"B": "2"})
    {'shm_size': '16g', 'command': ['echo', '$A', '2']}
    """

    def put(match: re.Match[str]) -> str:
        if match[1]:
            return "$"
        name = match[2] or match[5]
        return known.get(name) or (match[4] if match[3] == "-" else "")

    if isinstance(value, str):
        return _VARIABLE.sub(put, value)
    if isinstance(value, dict):
        return {key: _filled(one, known) for key, one in value.items()}
    return [_filled(one, known) for one in value] if isinstance(value, list) else value


def _pairs(text: str) -> dict[str, str]:
    rows = (row.strip().partition("=") for row in text.splitlines() if not row.lstrip().startswith("#"))
    return {name: value.strip("'\"") for name, equals, value in rows if equals}


_PLAIN = {"shm_size": "shm-size", "ipc": "ipc", "mem_limit": "memory", "pids_limit": "pids-limit",
          "working_dir": "workdir", "runtime": "runtime", "user": "user"}  # fmt: skip


def _options(keys: Mapping[str, Any]) -> Iterator[str]:
    for key, option in _PLAIN.items():
        if keys.get(key) is not None:
            yield f"--{option}={keys[key]}"
    yield from _network(keys)
    if keys.get("privileged") is True:
        yield "--privileged"
    if entry := _words(keys.get("entrypoint")):
        yield f"--entrypoint={entry[0]}"
    for option, texts in (
        ("publish", [_port(one) for one in _list(keys.get("ports"))]),
        ("device", _list(keys.get("devices"))),
        ("cap-add", _list(keys.get("cap_add"))),
        ("env-file", [_path(one) for one in _list(keys.get("env_file"))]),
        ("env", _assignments(keys.get("environment"))),
        ("ulimit", _ulimits(keys.get("ulimits"))),
    ):
        yield from (f"--{option}={text}" for text in texts)
    for one in _list(keys.get("volumes")):
        yield from _volume(one)
    yield from _gpus(keys)


def _network(keys: Mapping[str, Any]) -> Iterator[str]:
    """Without one it is the project's own bridge, which no other host reaches either."""
    networks = keys.get("networks")
    names = list(networks) if isinstance(networks, (dict, list)) else []
    mode = keys.get("network_mode") or next((str(name) for name in names if name != "default"), "")
    if mode:
        yield f"--network={mode}"


def _gpus(keys: Mapping[str, Any]) -> Iterator[str]:
    deploy = keys.get("deploy")
    resources = deploy.get("resources") if isinstance(deploy, dict) else None
    reserved = resources.get("reservations") if isinstance(resources, dict) else None
    devices = reserved.get("devices") if isinstance(reserved, dict) else None
    for device in [*_list(devices), *_list(keys.get("gpus"))]:
        if device == "all":
            yield "--gpus=all"
        elif isinstance(device, dict) and (device.get("driver") == "nvidia" or "gpu" in str(device)):
            named = ",".join(map(str, _list(device.get("device_ids"))))
            yield f"--gpus=device={named}" if named else f"--gpus={device.get('count', 'all')}"


def _volume(one: Any) -> Iterator[str]:
    if isinstance(one, dict):
        kind, source = one.get("type", "volume"), one.get("source", "")
        yield (
            f"--volume={source}:{one.get('target', '')}"
            if kind in ("bind", "volume") and source
            else "--volume=/"
        )
    else:
        yield f"--volume={one}"


def _port(one: Any) -> str:
    return f"{one.get('published', '')}:{one.get('target', '')}" if isinstance(one, dict) else str(one)


def _path(one: Any) -> str:
    return str(one.get("path", "")) if isinstance(one, dict) else str(one)


def _assignments(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [str(name) if one is None else f"{name}={one}" for name, one in value.items()]
    return list(map(str, _list(value)))


def _ulimits(value: Any) -> list[str]:
    pairs = value.items() if isinstance(value, dict) else ()
    return [
        f"{name}={one.get('soft')}:{one.get('hard')}" if isinstance(one, dict) else f"{name}={one}"
        for name, one in pairs
    ]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _words(value: Any) -> list[str]:
    if isinstance(value, str):
        try:
            return shlex.split(value)
        except ValueError:
            return []
    return list(map(str, _list(value)))


def as_service(service: str, adds: Sequence[str]) -> str:
    """Options of `docker run`, as a compose file has them.

    >>> print(as_service("trainer", ["--network=host", "--ulimit=memlock=-1", "--cap-add=IPC_LOCK", "--env=A=b"]))
    services:
      trainer:
        network_mode: host
        ulimits: {memlock: -1}
        cap_add: [IPC_LOCK]
        environment: {A: b}
    """
    plain = {"network": "network_mode", "shm-size": "shm_size", "gpus": "gpus"}
    pairs = [word.removeprefix("--").partition("=")[::2] for word in adds]
    rows = [f"{plain[option]}: {value}" for option, value in pairs if option in plain]
    for key, option, form in (
        ("ulimits", "ulimit", "{}"),
        ("devices", "device", "[]"),
        ("cap_add", "cap-add", "[]"),
        ("environment", "env", "{}"),
    ):
        values = [
            value.replace("=", ": ", 1) if form == "{}" else value for name, value in pairs if name == option
        ]
        if values:
            rows.append(f"{key}: {form[0]}{', '.join(values)}{form[1]}")
    return "\n    ".join([f"services:\n  {service}:", *rows])
