"""RDMA before the run: devices, ports, what NCCL's variables leave of them, and whether this image and user
may use them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from diag.knowledge.nccl_filters import matches
from diag.launch.launchers.command import Container
from diag.model import Record
from diag.model.observations import RdmaAccess, RdmaPort, RdmaPortsSeen
from diag.preflight.line import Line
from diag.preflight.plan import LaunchPlan
from diag.sources.network import infiniband, rdma_access

_WHAT = "RDMA"
_STATES = {1: "DOWN", 2: "INIT (no subnet manager has seen it)", 3: "ARMED", 4: "ACTIVE", 5: "ACTIVE_DEFER"}
_LINK_LAYERS = ("InfiniBand", "Ethernet")  # NCCL's net_ib takes no other
# Kernel devices by the beginning of their names -> the driver that libibverbs needs for them (rdma-core's
# providers).
_PROVIDERS = {
    "mlx5_": "mlx5",
    "mlx4_": "mlx4",
    "bnxt_re": "bnxt_re",
    "rxe": "rxe",
    "irdma": "irdma",
    "rdmap": "efa",
    "efa_": "efa",
}
_MOST_GIDS = 32  # as many as the reader tells


def check_rdma(
    plan: LaunchPlan,
    sysfs: Path = infiniband.ROOT,
    devices: Path = Path("/dev/infiniband"),
    access: RdmaAccess | None = None,
    modules: Path = Path("/sys/module"),
) -> Iterator[Line]:
    """`access` is what this process has of RDMA: CMD runs as the same user in the same container."""
    try:
        sample = infiniband.InfinibandReader(sysfs).sample()
    except infiniband.InfinibandUnavailable as error:
        yield Line(_WHAT, "not checked", error.reason, error.remedy)
        return
    ports = [
        port
        for fact in infiniband.parse(Record(infiniband.SOURCE, sample))
        if isinstance(fact, RdmaPortsSeen)
        for port in fact.ports
    ]
    if not ports:
        if plan.nodes is None:
            said = "no RDMA device here: between nodes NCCL would use TCP sockets, and whether there are others is not known"
            yield Line(_WHAT, "not checked", f"{said}: {plan.unsure}")
        elif plan.nodes > 1:
            yield Line(_WHAT, "note", "no RDMA device here: NCCL will use TCP sockets between the nodes")
        else:
            yield Line(_WHAT, "ok", "no RDMA device here, and a job of one node uses none")
        return
    listed = ", ".join(_words(port) for port in ports)
    if plan.given and plan.nodes == 1:
        yield Line(_WHAT, "ok", f"{listed}; not used by a job of one node")
        return
    off = next(
        (
            name
            for name, value in (("NCCL_IB_DISABLE", "1"), ("NCCL_NET", "Socket"))
            if plan.environment.get(name) == value
        ),
        "",
    )
    if off:
        yield Line(_WHAT, "note", f"{listed}; {plan.said_of(off)} keeps NCCL from using them")
        return
    if plan.starts is not None:
        yield from _in_container(plan.starts, listed)
        return
    if access is None:
        access = _own_access()
    lines = [
        *_devices(ports, devices, access),
        *_libraries(ports, access),
        *_ports(plan, ports),
        *_gids(plan, ports),
    ]
    yield from lines
    if not any(line.status in ("problem", "not checked") for line in lines):
        yield Line(_WHAT, "ok", listed)
    yield from _gpu_direct(modules)


def _in_container(container: Container, listed: str) -> Iterator[Line]:
    """What CMD's own `docker run` hands on; what its image has of RDMA is seen inside alone."""
    given = container.is_privileged or any("infiniband" in device for device in container.devices)
    remedy = f"{container.engine} run --device=/dev/infiniband --ulimit memlock=-1 --cap-add IPC_LOCK"
    if given:
        yield Line(
            _WHAT,
            "not checked",
            f"{listed}; what the image {container.image} has for them",
            "diag doctor inside it",
        )
    else:
        said = (
            f"{listed}, and {container.engine} run hands none on: NCCL will use TCP sockets without an error"
        )
        yield Line(_WHAT, "problem", said, remedy, "ib-fallback", "critical")


def _own_access() -> RdmaAccess | None:
    payload = rdma_access.RdmaAccessReader(os.getpid()).sample()
    return next(
        (
            fact
            for fact in rdma_access.parse(Record(rdma_access.SOURCE, payload))
            if isinstance(fact, RdmaAccess)
        ),
        None,
    )


def _words(port: RdmaPort) -> str:
    state = _STATES.get(port.state or 0, "state unknown")
    rate = f" {port.rate_bytes_per_second * 8 / 1e9:g} Gb/s" if port.rate_bytes_per_second else ""
    return f"{port.device}:{port.port} {port.link_layer}{rate} {state}"


def _devices(ports: list[RdmaPort], folder: Path, access: RdmaAccess | None) -> Iterator[Line]:
    """Whether the user may open what the kernel shows: libibverbs hides a device without its node."""
    try:
        nodes = sorted(entry for entry in folder.iterdir() if entry.name.startswith("uverbs"))
    except FileNotFoundError:
        nodes = []
    except OSError as error:
        yield Line(_WHAT, "not checked", f"{folder}: {error.strerror}")
        return
    count = len({port.device for port in ports})
    if not nodes:
        yield Line(
            _WHAT,
            "problem",
            f"the kernel has {count} RDMA device{'s' * (count > 1)}, and {folder} has none of them: NCCL will use "
            "TCP sockets without an error",
            _give_devices(access),
            "ib-fallback",
            "critical",
        )
        return
    closed = [node.name for node in nodes if not os.access(node, os.R_OK | os.W_OK)]
    if closed:
        yield Line(
            _WHAT,
            "problem",
            f"this user may not open {', '.join(closed)} in {folder}",
            "give it read and write access (group of the files, udev rule, --device=/dev/infiniband)",
            "ib-fallback",
        )


def _give_devices(access: RdmaAccess | None) -> str:
    container = access.container if access is not None else ""
    return {
        "kubernetes": "the resource of the cluster's RDMA device plugin in the container's limits (rdma/...: 1), and IPC_LOCK",
        "docker": "docker run --device=/dev/infiniband --ulimit memlock=-1 --cap-add IPC_LOCK",
        "podman": "podman run --device=/dev/infiniband --ulimit memlock=-1 --cap-add IPC_LOCK",
    }.get(container, "modprobe ib_uverbs; in a container: --device=/dev/infiniband")


def _libraries(ports: list[RdmaPort], access: RdmaAccess | None) -> Iterator[Line]:
    if access is None or access.verbs_library is None:
        yield Line(_WHAT, "not checked", "whether libibverbs.so.1 is here")
        return
    if not access.verbs_library:
        yield Line(
            _WHAT,
            "problem",
            "libibverbs.so.1 is not in this image: NCCL will use TCP sockets without an error",
            "apt-get install libibverbs1 ibverbs-providers (or rdma-core) in the image",
            "ib-fallback",
            "critical",
        )
        return
    wanted = {
        provider for port in ports for begin, provider in _PROVIDERS.items() if port.device.startswith(begin)
    }
    missing = sorted(wanted - set(access.providers or ())) if access.providers is not None else []
    if missing:
        yield Line(
            _WHAT,
            "problem",
            f"libibverbs is here, but not its driver for these devices ({', '.join(missing)}): they stay invisible to NCCL",
            "apt-get install ibverbs-providers (or rdma-core) in the image",
            "ib-fallback",
            "critical",
        )


def _ports(plan: LaunchPlan, ports: list[RdmaPort]) -> Iterator[Line]:
    """What NCCL_IB_HCA leaves, and which of these ports are up: NCCL passes over the others without a word."""
    spec = plan.environment.get("NCCL_IB_HCA", "")
    chosen = [port for port in ports if matches(port.device, spec, port.port)] if spec else ports
    if not chosen:
        names = ", ".join(f"{port.device}:{port.port}" for port in ports)
        yield Line(
            _WHAT,
            "problem",
            f"{plan.said_of('NCCL_IB_HCA')} leaves none of {names}: NCCL will use TCP sockets without an error",
            "correct it, or unset it; it is a list of prefixes, `=mlx5_1` is a whole name, `^mlx5_bond` is all but those",
            "ib-fallback",
            "critical",
        )
        return
    usable = [port for port in chosen if port.active and port.link_layer in _LINK_LAYERS]
    down = [port for port in chosen if port.state is not None and not port.active]
    if not usable:
        if not down:
            yield Line(
                _WHAT,
                "not checked",
                "the state of the ports cannot be read: " + ", ".join(map(_words, chosen)),
            )
        else:
            yield Line(
                _WHAT,
                "problem",
                f"no port is ACTIVE ({', '.join(map(_words, chosen))}): NCCL will use TCP sockets without an error",
                "cable and switch; INIT on InfiniBand: a subnet manager (opensm) must run",
                "ib-port",
                "critical",
            )
        return
    if down and spec and not spec.startswith("^"):
        yield Line(
            _WHAT,
            "problem",
            f"{', '.join(map(_words, down))}: named by {plan.said_of('NCCL_IB_HCA')}, and NCCL passes over it",
            "cable and switch; INIT on InfiniBand: a subnet manager (opensm) must run",
            "ib-port",
        )
    elif down:
        yield Line(_WHAT, "note", f"{', '.join(map(_words, down))}: NCCL passes over what is not ACTIVE")
    rates = {port.rate_bytes_per_second for port in usable if port.rate_bytes_per_second}
    if len(rates) > 1 and not spec:
        yield Line(
            _WHAT,
            "note",
            f"ports of different rates ({', '.join(map(_words, usable))}): NCCL may use all of them",
            "NCCL_IB_HCA= those of the training network, where the slower ones are for storage or management",
        )


def _gids(plan: LaunchPlan, ports: list[RdmaPort]) -> Iterator[Line]:
    """RoCE needs a GID of RoCE v2 that is routed; NCCL since 2.21 finds it by itself unless NCCL_IB_GID_INDEX
    names a slot."""
    spec = plan.environment.get("NCCL_IB_HCA", "")
    index = plan.environment.get("NCCL_IB_GID_INDEX", "")
    for port in ports:
        if (
            port.link_layer != "Ethernet"
            or not port.active
            or (spec and not matches(port.device, spec, port.port))
        ):
            continue
        name = f"{port.device}:{port.port}"
        if index.isdecimal():
            gid = next((gid for gid in port.gids if gid.index == int(index)), None)
            routed = ", ".join(str(gid.index) for gid in port.gids if gid.kind == "RoCE v2") or "none"
            if gid is None and len(port.gids) < _MOST_GIDS:
                yield Line(
                    _WHAT,
                    "problem",
                    f"{plan.said_of('NCCL_IB_GID_INDEX')}: that slot of {name} is empty (RoCE v2: {routed}): "
                    "connections will fail",
                    "unset it: NCCL 2.21 and later find the slot",
                    "ib-fallback",
                    "critical",
                )
            elif gid is not None and gid.kind and gid.kind != "RoCE v2":
                yield Line(
                    _WHAT,
                    "problem",
                    f"{plan.said_of('NCCL_IB_GID_INDEX')}: that slot of {name} is {gid.kind}, which routers do not "
                    f"pass on (RoCE v2: {routed})",
                    "unset it: NCCL 2.21 and later find the slot",
                    "ib-fallback",
                )
        elif port.gids and all(gid.kind and gid.kind != "RoCE v2" for gid in port.gids):
            yield Line(
                _WHAT,
                "problem",
                f"{name} has no GID of RoCE v2",
                "give its IP interface an address; cma_roce_mode of the device",
                "ib-fallback",
            )


def _gpu_direct(modules: Path) -> Iterator[Line]:
    if not (modules / "nvidia").is_dir():
        return
    loaded = [name for name in ("nvidia_peermem", "nv_peer_mem") if (modules / name).is_dir()]
    if loaded:
        yield Line("GPUDirect RDMA", "ok", f"kernel module {loaded[0]} is loaded")
    else:
        yield Line(
            "GPUDirect RDMA",
            "note",
            "kernel module nvidia_peermem is not loaded: NCCL needs DMA-BUF for it (Linux 5.12, open "
            "kernel modules of the driver from 515 on)",
            "NCCL_DEBUG=INFO shows GDRDMA or GDR 0 in the job's log; else modprobe nvidia-peermem",
        )
