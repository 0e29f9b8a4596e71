"""The container that CMD itself makes (`docker run`): what its flags say takes the place of what this machine
has. What neither says, as the daemon's defaults, is not checked."""

from __future__ import annotations

from collections.abc import Iterator

from diag.launch.launchers.command import Container
from diag.preflight.line import Line, line
from diag.text.units import format_bytes

_MIB = 1 << 20
_SMALL_SHM = 256 * _MIB
_FEW_FILES = 4096


def shm_lines(container: Container) -> Iterator[Line]:
    """Nothing where /dev/shm is this machine's."""
    mounted = next((here for here, inside in container.mounts if inside.rstrip("/") == "/dev/shm"), None)
    if container.ipc == "host" or mounted == "/dev/shm":
        return
    size = container.shm_bytes
    if size is None:
        how = f"--ipc={container.ipc}" if container.ipc else f"--shm-size={container.shm_size}"
        how = how if mounted is None else "a mount"
        yield line("machine.container-own-shm", container=container, how=how)
        return
    given = f"--shm-size={container.shm_size}" if container.shm_size else f"{container.engine}'s default"
    key = "small" if size < _SMALL_SHM else "fits"
    yield line(f"machine.container-shm-{key}", container=container, size=format_bytes(size), given=given)


def limit_line(container: Container, name: str) -> Line:
    """`name` is nofile or memlock."""
    text = (container.ulimits or {}).get(name, "")
    soft = text.partition(":")[0]
    number = int(soft[:18]) if soft.isdecimal() else None
    files = name == "nofile"
    key = "not-unlimited"
    if not files and (container.is_privileged or {"IPC_LOCK", "ALL"} & set(container.capabilities)):
        key = "lifted"
    elif not text:
        key = "default"
    elif soft == "-1" or (files and number is not None and number >= _FEW_FILES):
        key = "fits"
    elif number is None:
        key = "no-number"
    elif files or container.devices or number < 64 * _MIB:
        key = "files" if files else "locked"
    what, flag = ("open files", "nofile=65536") if files else ("locked memory", "memlock=-1")
    how = "--privileged" if container.is_privileged else "--cap-add IPC_LOCK"
    values = {"what": what, "flag": flag, "given": f"--ulimit {name}={text}", "how": how}
    return line(f"machine.container-limit-{key}", container=container, **values)


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
