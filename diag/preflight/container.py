"""The container that CMD itself makes (`docker run`): what its flags say takes the place of what this machine
has. What neither says, as the daemon's defaults, is not checked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from diag.launch.launchers.command import Container
from diag.launch.launchers.command.container import size_of
from diag.preflight.line import Line, line
from diag.text.units import format_bytes

_MIB = 1 << 20
_SMALL_SHM = 256 * _MIB
_FEW_FILES = 4096


def daemon_settings(root: Path = Path("/")) -> Mapping[str, Any]:
    """What docker's daemon is set to on this machine; nothing where that cannot be read."""
    try:
        found = json.loads((root / "etc/docker/daemon.json").read_text()[: 1 << 20])
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def shm_lines(container: Container, root: Path = Path("/")) -> Iterator[Line]:
    """Nothing where /dev/shm is this machine's."""
    mounted = next((here for here, inside in container.mounts if inside.rstrip("/") == "/dev/shm"), None)
    if container.ipc == "host" or mounted == "/dev/shm":
        return
    size = container.shm_bytes
    by_daemon = "" if container.shm_size else str(daemon_settings(root).get("default-shm-size", ""))
    if size is not None and by_daemon and container.engine == "docker":
        size = size_of(by_daemon) or size
    if size is None:
        how = f"--ipc={container.ipc}" if container.ipc else f"--shm-size={container.shm_size}"
        how = how if mounted is None else "a mount"
        yield line("machine.container-own-shm", container=container, how=how)
        return
    given = f"--shm-size={container.shm_size}" if container.shm_size else f"{container.engine}'s default"
    given = "default-shm-size of /etc/docker/daemon.json" if by_daemon else given
    key = "small" if size < _SMALL_SHM else "fits"
    yield line(f"machine.container-shm-{key}", container=container, size=format_bytes(size), given=given)


def limit_line(container: Container, name: str, root: Path = Path("/")) -> Line:
    """`name` is nofile or memlock."""
    own = (container.ulimits or {}).get(name, "")
    text = own or _default_limit(container, name, root)
    given = (
        f"--ulimit {name}={text}" if own else f"{name}={text} (default-ulimits of /etc/docker/daemon.json)"
    )
    soft = text.partition(":")[0]
    number = int(soft[:18]) if soft.isdecimal() else None
    files = name == "nofile"
    key = "not-unlimited"
    if not files and (container.is_privileged or {"IPC_LOCK", "ALL"} & set(container.capabilities)):
        key = "lifted"
    elif not text:
        key = "rdma" if not files and any("infiniband" in one for one in container.devices) else "default"
    elif soft == "-1" or (files and number is not None and number >= _FEW_FILES):
        key = "fits"
    elif number is None:
        key = "no-number"
    elif files or container.devices or number < 64 * _MIB:
        key = "files" if files else "locked"
    what, flag = ("open files", "nofile=65536") if files else ("locked memory", "memlock=-1")
    how = "--privileged" if container.is_privileged else "--cap-add IPC_LOCK"
    values = {"what": what, "flag": flag, "given": given, "how": how}
    return line(f"machine.container-limit-{key}", container=container, **values)


def _default_limit(container: Container, name: str, root: Path) -> str:
    limits = daemon_settings(root).get("default-ulimits") if container.engine == "docker" else None
    limit = limits.get(name) if isinstance(limits, dict) else None
    return str(limit.get("Soft", "")) if isinstance(limit, dict) else ""


def has_own_network(container: Container | None) -> bool:
    """Whether the interfaces of this machine are not those of CMD."""
    return container is not None and container.network != "host"


def network_line(container: Container, nodes: int | None, unsure: str) -> Line:
    engine = container.engine
    if nodes is None:
        return line("interfaces.container-nodes-unknown", unsure=unsure)
    if nodes < 2:
        return line("interfaces.container-one-node")
    if container.network in ("", "bridge", "default"):
        passes = f"-p {', '.join(container.ports)} forwards" if container.ports else "-p would forward"
        return line("interfaces.container-own-bridge", nodes=nodes, engine=engine, passes=passes)
    return line("interfaces.container-network", engine=engine, network=container.network)


def visible_devices(container: Container, gpus: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Those of this machine's GPUs that --gpus gives the container; None where that is not known."""
    text = container.gpus
    if gpus is None or text in ("", "all"):
        return gpus if text else None
    if text.isdecimal():
        return gpus[: int(text[:6])]
    names = [name for name in text.partition("device=")[2].strip("\"'").split(",") if name]
    return tuple(gpu for index, gpu in enumerate(gpus) if {str(index), gpu} & set(names)) if names else None
