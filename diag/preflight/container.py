"""The container that CMD itself makes (`docker run`): what its flags say takes the place of what this machine
has. What neither says, as the daemon's defaults, is not checked."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from diag.launch.launchers.command import Container, read_command
from diag.preflight.line import Line
from diag.text.units import format_bytes

_MIB = 1 << 20
_SMALL_SHM = 256 * _MIB
_FEW_FILES = 4096


def container_of(command: Sequence[str]) -> Container | None:
    return read_command(command, os.environ).container


def shm_lines(container: Container) -> Iterator[Line]:
    """Nothing where /dev/shm is this machine's."""
    engine = container.engine
    mounted = next((here for here, inside in container.mounts if inside.rstrip("/") == "/dev/shm"), None)
    if container.ipc == "host" or mounted == "/dev/shm":
        return
    size = container.shm_bytes
    if size is None:
        how = f"--ipc={container.ipc}" if container.ipc else f"--shm-size={container.shm_size}"
        said = f"/dev/shm of the container that {engine} makes: {'a mount' if mounted is not None else how}"
        yield Line("shared memory", "not checked", said)
        return
    given = f"--shm-size={container.shm_size}" if container.shm_size else f"{engine}'s default"
    said = f"/dev/shm of CMD's container is {format_bytes(size)} ({given})"
    if size < _SMALL_SHM:
        yield Line(
            "shared memory", "problem", said, f"{engine} run --shm-size=16g or --ipc=host", "shm-too-small"
        )
    else:
        yield Line("shared memory", "ok", said)


def limit_lines(container: Container, name: str) -> Iterator[Line]:
    """`name` is nofile or memlock."""
    engine, text = container.engine, (container.ulimits or {}).get(name, "")
    soft = text.partition(":")[0]
    what, flag, id_ = {
        "nofile": ("open files", "--ulimit nofile=65536", "fd-limit"),
        "memlock": ("locked memory", "--ulimit memlock=-1", "memlock-limit"),
    }[name]
    if name == "memlock" and (container.is_privileged or {"IPC_LOCK", "ALL"} & set(container.capabilities)):
        how = "--privileged" if container.is_privileged else "--cap-add IPC_LOCK"
        yield Line(what, "ok", f"{engine} run {how}: CMD's container may lock memory, where it runs as root")
    elif not text:
        yield Line(what, "not checked", f"{engine}'s own limit, which its daemon gives CMD's container", flag)
    elif soft == "-1" or (soft.isdecimal() and name == "nofile" and int(soft[:12]) >= _FEW_FILES):
        yield Line(what, "ok", f"--ulimit {name}={text}")
    elif not soft.isdecimal():
        yield Line(what, "not checked", f"--ulimit {name}={text} is no number", flag)
    elif name == "nofile" or container.devices or int(soft[:18]) < 64 << 20:
        yield Line(what, "problem", f"--ulimit {name}={text}", f"{engine} run {flag}", id_)
    else:
        yield Line(what, "note", f"--ulimit {name}={text}; RDMA needs it unlimited", f"{engine} run {flag}")


def has_own_network(container: Container | None) -> bool:
    """Whether the interfaces of this machine are not those of CMD."""
    return container is not None and container.network != "host"


def network_lines(container: Container, nodes: int | None, unsure: str) -> Iterator[Line]:
    engine, what = container.engine, "NCCL interface"
    remedy = f"{engine} run --network=host on every node, with MASTER_ADDR the address of node 0's host"
    if nodes is None:
        unknown = f"how many nodes there are is not known: {unsure}"
        yield Line(what, "not checked", f"CMD's container has a network of its own; {unknown}")
    elif nodes < 2:
        yield Line(what, "ok", "one node, in a container with a network of its own")
    elif container.network in ("", "bridge", "default"):
        passes = f"-p {', '.join(container.ports)} passes on" if container.ports else "-p would pass on"
        yield Line(
            what,
            "problem",
            f"{nodes} nodes, and {engine} run without --network=host gives the container {engine}'s own bridge network, in "
            f"which its address is known on this host alone; {passes} single ports, and NCCL and gloo choose others",
            remedy,
            "nccl-no-interface",
            "critical",
        )
    else:
        yield Line(what, "not checked", f"the interfaces in {engine}'s network {container.network}", remedy)


def visible_devices(container: Container, gpus: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Those of this machine's GPUs that --gpus gives the container; None where that is not known."""
    text = container.gpus
    if gpus is None or text in ("", "all"):
        return gpus if text else None
    if text.isdecimal():
        return gpus[: int(text[:6])]
    names = [name for name in text.partition("device=")[2].strip("\"'").split(",") if name]
    return tuple(gpu for index, gpu in enumerate(gpus) if {str(index), gpu} & set(names)) if names else None
