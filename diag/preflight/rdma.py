"""RDMA before the run: devices, ports, what NCCL's variables leave of them, and whether this image and user
may use them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from diag.knowledge.nccl_filters import matches
from diag.model import Record
from diag.model.observations import RdmaAccess, RdmaPort, RdmaPortsSeen
from diag.preflight.line import Line, line, table
from diag.preflight.plan import LaunchPlan
from diag.sources.network import infiniband, rdma_access
from diag.text.errors import SourceUnavailable
from diag.text.units import format_count

_STATES = {1: "DOWN", 2: "INIT (no subnet manager has seen it)", 3: "ARMED", 4: "ACTIVE", 5: "ACTIVE_DEFER"}
_LINK_LAYERS = ("InfiniBand", "Ethernet")  # NCCL's net_ib takes no other
_ROUTED = "RoCE v2"
_OFF = {"NCCL_IB_DISABLE": "1", "NCCL_NET": "Socket"}
_MOST_GIDS = 32  # as many as the reader reports


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
    except SourceUnavailable as error:
        yield Line("RDMA", "not checked", error.reason, error.remedy)
        return
    facts = infiniband.parse(Record(infiniband.SOURCE, sample))
    ports = [port for fact in facts if isinstance(fact, RdmaPortsSeen) for port in fact.ports]
    unused = _unused(plan, ports)
    if unused is not None:
        yield unused
        return
    if access is None:
        payload = rdma_access.RdmaAccessReader(os.getpid()).sample()
        own = rdma_access.parse(Record(rdma_access.SOURCE, payload))
        access = next((fact for fact in own if isinstance(fact, RdmaAccess)), None)
    lines = [*_devices(ports, devices, access), *_libraries(ports, access)]
    lines += [*_ports(plan, ports), *_gids(plan, ports)]
    yield from lines
    if not any(one.status in ("problem", "not checked") for one in lines):
        yield line("rdma.fits", listed=_named(ports))
    yield from _gpu_direct(modules)


def _unused(plan: LaunchPlan, ports: list[RdmaPort]) -> Line | None:
    """The whole answer where NCCL would not use these ports, or not from here."""
    listed, starts = _named(ports), plan.container
    if not ports:
        several = (plan.nodes or 0) > 1
        key = "-nodes-unknown" if plan.nodes is None else "" if several else "-needed"
        return line(f"rdma.none{key}", plan=plan)
    if plan.given and plan.nodes == 1:
        return line("rdma.unused", listed=listed)
    for name, value in _OFF.items():
        if plan.environment.get(name) == value:
            return line("rdma.disabled", listed=listed, variable=plan.setting_of(name))
    if starts is None:
        return None
    given = starts.is_privileged or any("infiniband" in device for device in starts.devices)
    return line(f"rdma.{'' if given else 'not-'}in-container", listed=listed, container=starts)


def _named(ports: Iterable[RdmaPort]) -> str:
    return ", ".join(map(_port, ports))


def _port(port: RdmaPort) -> str:
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
        yield line("rdma.devices-unreadable", folder=folder, error=error)
        return
    closed = [node.name for node in nodes if not os.access(node, os.R_OK | os.W_OK)]
    if not nodes:
        give = table("rdma")["give"]
        count = format_count(len({port.device for port in ports}), "RDMA device")
        how = give.get(access.container if access is not None else "", give[""])
        yield line("rdma.no-devices", devices=count, folder=folder, give=how)
    elif closed:
        yield line("rdma.closed-devices", names=", ".join(closed), folder=folder)


def _libraries(ports: list[RdmaPort], access: RdmaAccess | None) -> Iterator[Line]:
    if access is None or access.verbs_library is None:
        yield line("rdma.library-unknown")
    elif not access.verbs_library:
        yield line("rdma.no-library")
    elif access.providers is not None:
        drivers = table("rdma")["providers"].items()
        wanted = {driver for port in ports for begin, driver in drivers if port.device.startswith(begin)}
        missing = sorted(wanted - set(access.providers))
        if missing:
            yield line("rdma.no-provider", missing=", ".join(missing))


def _chosen(plan: LaunchPlan, ports: Iterable[RdmaPort]) -> list[RdmaPort]:
    """Those that NCCL_IB_HCA leaves."""
    spec = plan.environment.get("NCCL_IB_HCA", "")
    return [port for port in ports if not spec or matches(port.device, spec, port.port)]


def _ports(plan: LaunchPlan, ports: list[RdmaPort]) -> Iterator[Line]:
    """What NCCL_IB_HCA leaves, and which of these ports are up: NCCL skips the others without a message."""
    spec = plan.environment.get("NCCL_IB_HCA", "")
    hca = plan.setting_of("NCCL_IB_HCA") if spec else ""
    chosen = _chosen(plan, ports)
    if not chosen:
        yield line("rdma.hca-none", hca=hca, ports=", ".join(f"{port.device}:{port.port}" for port in ports))
        return
    usable = [port for port in chosen if port.active and port.link_layer in _LINK_LAYERS]
    down = [port for port in chosen if port.state is not None and not port.active]
    if not usable:
        yield line(f"rdma.{'ports-down' if down else 'ports-unknown'}", ports=_named(chosen))
        return
    if down:
        named = spec and not spec.startswith("^")
        yield line(f"rdma.{'named-' if named else ''}down", ports=_named(down), hca=hca)
    rates = {port.rate_bytes_per_second for port in usable if port.rate_bytes_per_second}
    if len(rates) > 1 and not spec:
        yield line("rdma.rates-differ", ports=_named(usable))


def _gids(plan: LaunchPlan, ports: list[RdmaPort]) -> Iterator[Line]:
    """RoCE needs a GID of RoCE v2 that is routed; NCCL since 2.21 finds it by itself unless NCCL_IB_GID_INDEX
    names a slot."""
    index = plan.environment.get("NCCL_IB_GID_INDEX", "")
    for port in _chosen(plan, ports):
        if port.link_layer != "Ethernet" or not port.active:
            continue
        name = f"{port.device}:{port.port}"
        if not index.isdecimal():
            if port.gids and all(gid.kind and gid.kind != _ROUTED for gid in port.gids):
                yield line("rdma.gid-none", port=name)
            continue
        said = plan.setting_of("NCCL_IB_GID_INDEX")
        kind = {gid.index: gid.kind for gid in port.gids}.get(int(index))
        routed = ", ".join(str(gid.index) for gid in port.gids if gid.kind == _ROUTED) or "none"
        if kind is None and len(port.gids) < _MOST_GIDS:
            yield line("rdma.gid-empty", index=said, port=name, routed=routed)
        elif kind and kind != _ROUTED:
            yield line("rdma.gid-not-routed", index=said, port=name, kind=kind, routed=routed)


def _gpu_direct(modules: Path) -> Iterator[Line]:
    if not (modules / "nvidia").is_dir():
        return
    loaded = [name for name in ("nvidia_peermem", "nv_peer_mem") if (modules / name).is_dir()]
    if loaded:
        yield line("rdma.gpudirect", module=loaded[0])
    else:
        yield line("rdma.no-gpudirect")
