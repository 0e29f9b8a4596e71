"""Why a rank's NCCL did not take RDMA: from its own lines, and from its process, environment and node where
lines are silent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diag.detectors.network.evidence import line_evidence
from diag.knowledge.env_lint import number
from diag.knowledge.nccl_filters import matches
from diag.model import Evidence
from diag.model.observations import NcclFact, NcclIbDevices, NcclPlugin, RdmaAccess, RdmaPort
from diag.state.ncclprocess import NcclProcess
from diag.state.view import JobView

# Devices that are called like their driver; the names of others (ibp3s0, rocep1s0f0) show nothing.
_DRIVERS = frozenset({"mlx5", "mlx4", "rxe", "efa", "hfi1", "irdma", "siw", "bnxt"})


@dataclass(frozen=True, slots=True)
class Cause:
    """`name` is a closed enum (docs/reference), `text` its half of a sentence; `proven`: the setting or two
    channels show it."""

    name: str
    text: str
    evidence: tuple[Evidence, ...] = ()
    proven: bool = False


def find_cause(job: JobView, rank: int, process: NcclProcess | None) -> Cause:
    """The first that holds, in the order in which NCCL itself would have met it."""
    view = _View(job, rank, process)
    for cause in (find(view) for find in _LOOKS):
        if cause is not None:
            return cause
    return Cause(
        "no_device",
        "NCCL found no RDMA device, and diag could not check whether the machine has any",
        view.of(view.devices),
    )


@dataclass(frozen=True, slots=True)
class _Setting:
    value: str
    origin: str
    evidence: tuple[Evidence, ...]

    def __str__(self) -> str:
        return f"{self.value.strip()} is set in {self.origin}"


class _View:
    """What is known of one rank."""

    def __init__(self, job: JobView, rank: int, process: NcclProcess | None) -> None:
        self.job = job
        self.rank = rank
        self.process = process
        state = job.ranks.get(rank)
        self.access: RdmaAccess | None = state.rdma if state is not None else None
        self.variables = state.variables if state is not None else {}
        self.ports: tuple[RdmaPort, ...] | None = job.network.rdma_ports()
        self.talks = process is not None and process.talks
        self.devices: NcclIbDevices | None = process.devices if process is not None else None
        self.plugins: Sequence[NcclPlugin] = process.plugins if process is not None else ()

    @property
    def found_devices(self) -> bool:
        return self.devices is not None and bool(self.devices.devices)

    def variable(self, name: str) -> _Setting | None:
        """By NCCL's own echo, the rank's environment, or an nccl.conf."""
        if self.process is not None and name in self.process.environment:
            fact = self.process.environment[name]
            return _Setting(fact.value, "the environment", self.of(fact))
        value = self.variables.get(name)
        if value is not None:
            shown = Evidence("environ", f"{name}={value}", 0.0, self.rank)
            return _Setting(value, "the environment", (shown,))
        for path, key, setting in self.access.nccl_conf if self.access else ():
            if key == name:
                shown = Evidence("nccl.conf", f"{path}: {name}={setting}", 0.0, self.rank)
                return _Setting(setting, path, (shown,))
        return None

    def of(self, *facts: NcclFact | None) -> tuple[Evidence, ...]:
        """The lines as evidence, with the time at which they came."""
        return tuple(line_evidence(fact.line, self.process, self.rank) for fact in facts if fact is not None)

    def ports_evidence(self) -> tuple[Evidence, ...]:
        if not self.ports:
            return ()
        at = self.job.network.ports.last[0] if self.job.network.ports.last else 0.0
        text = ", ".join(format_port(port) for port in self.ports[:8])
        return (Evidence("infiniband", text, at, None),)


def format_port(port: RdmaPort) -> str:
    """`mlx5_0:1 InfiniBand 400 Gb/s ACTIVE`."""
    states = {1: "DOWN", 2: "INIT", 3: "ARMED", 4: "ACTIVE", 5: "ACTIVE_DEFER"}
    rate = f" {port.rate_bytes_per_second * 8 / 1e9:.0f} Gb/s" if port.rate_bytes_per_second else ""
    state = states.get(port.state or 0, "state unknown")
    return f"{port.device}:{port.port} {port.link_layer or 'RDMA'}{rate} {state}"


def _disabled(view: _View) -> Cause | None:
    setting = view.variable("NCCL_IB_DISABLE")
    if setting is None or number(setting.value) == 0:  # NCCL takes any text, `true` too, for 0
        return None
    return Cause("ib_disabled", f"NCCL_IB_DISABLE={setting}", setting.evidence, True)


def _forced(view: _View) -> Cause | None:
    """NCCL_NET=Socket. NCCL prints it from 2.28 on, if at all, when a second communicator is made; before,
    its trace is that NCCL found devices and took sockets all the same, or printed nothing of RDMA at all
    (captured with 2.18-2.31)."""
    setting = view.variable("NCCL_NET")
    if setting is not None and setting.value.strip().lower() == "socket":
        return Cause("net_forced", f"NCCL_NET={setting}", setting.evidence, True)
    if view.devices is not None and view.devices.devices and view.process and not view.process.failed:
        names = ", ".join(f"{one.name}:{one.port}" for one in view.devices.devices[:4])
        return Cause(
            "net_forced",
            f"NCCL found {names} and took sockets all the same, as NCCL_NET=Socket (in the environment, "
            "the program or an nccl.conf) makes it do",
            view.of(view.devices),
            True,
        )
    return None


def _forced_unseen(view: _View) -> Cause | None:
    process = view.process
    if process is None or not process.talks or process.sockets is None:
        return None
    silent = (
        process.devices is None and not process.missing and not process.no_interface and not process.verbs
    )
    if silent and not any(fact.net == "IB" for fact in process.failed):
        return Cause(
            "net_forced",
            "NCCL never looked for RDMA devices: NCCL_NET=Socket, most likely, set in the program or in "
            "an nccl.conf that diag cannot see",
            view.of(process.sockets),
        )
    return None


def _no_library(view: _View) -> Cause | None:
    line = view.process.missing.get("libibverbs") if view.process else None
    absent = view.access is not None and view.access.verbs_library is False
    if line is None and not (absent and not view.talks):
        return None
    return Cause(
        "libibverbs_missing",
        "libibverbs.so.1 cannot be opened in this image or environment",
        view.of(line),
        absent,
    )


def _no_oob(view: _View) -> Cause | None:
    facts = [fact for fact in (view.process.no_interface if view.process else ()) if fact.use == "oob"]
    if not facts:
        return None
    wanted = f" ({facts[0].wanted})" if facts[0].wanted else ""
    return Cause(
        "no_oob_interface",
        f"no IP interface for RDMA's out-of-band connections{wanted}, so NCCL gave RDMA up",
        view.of(facts[0]),
        True,
    )


def _device_nodes(view: _View) -> Cause | None:
    access = view.access
    if not view.ports or access is None or access.device_nodes is None:
        return None
    if any(node.startswith("uverbs") for node in access.device_nodes):
        return None
    return Cause(
        "device_nodes_missing",
        f"/dev/infiniband is not in the rank's container, though this node has {_devices(view.ports)}",
        (*view.of(view.devices), *view.ports_evidence()),
        True,
    )


def _provider(view: _View) -> Cause | None:
    """libibverbs warns of every driver that it is configured for and cannot load, needed or not (rdma-core
    44, seen with soft-RoCE): only those of devices that the node has count, where that is known."""
    missing = view.job.nccl_processes.drivers_missing
    matching = [*missing.get(view.rank, ()), *missing.get(None, ())]
    families = {_family(port.device) for port in view.ports or ()}
    if view.ports:
        matching = [one for one in matching if any(family in one.driver for family in families)]
    if matching and view.ports != () and not view.found_devices:
        names = ", ".join(dict.fromkeys(one.driver for one in matching[:4] if one.driver)) or "of the device"
        line = Evidence("output", matching[0].text[:500], 0.0, view.rank)
        return Cause(
            "provider_missing",
            f"libibverbs cannot load the driver {names}",
            (line, *view.ports_evidence()),
            bool(view.ports),
        )
    return _provider_absent(view, families)


def _provider_absent(view: _View, families: set[str]) -> Cause | None:
    """By the files of the image, where no line warns of it."""
    access = view.access
    if not view.ports or access is None or access.providers is None or access.verbs_library is not True:
        return None
    there = {_family(name) for name in access.providers}
    absent = sorted(families & _DRIVERS - there)
    if not absent or families & there:
        return None
    has = ", ".join(access.providers) or "none"
    text = f"the image has libibverbs but no driver for {', '.join(absent)} (it has {has})"
    return Cause("provider_missing", text, view.ports_evidence())


def _family(name: str) -> str:
    """Of a device or its driver: mlx5_bond_0 and mlx5 are mlx5, rxe0 is rxe."""
    first = name.split("_", maxsplit=1)[0]
    return first if first in _DRIVERS else first.rstrip("0123456789")


def _filter(view: _View) -> Cause | None:
    setting = view.variable("NCCL_IB_HCA")
    if setting is None or view.found_devices:
        return None
    if not view.ports:
        if view.ports == () or view.devices is None:
            return None
        return Cause(
            "hca_filter",
            f"NCCL_IB_HCA={setting.value} and no device is left: it may select nothing here",
            (*setting.evidence, *view.of(view.devices)),
        )
    usable = [port for port in view.ports if port.active]
    if not usable or any(matches(port.device, setting.value, port.port) for port in usable):
        return None
    return Cause(
        "hca_filter",
        f"NCCL_IB_HCA={setting.value} selects none of the active ports ({_devices(usable)})",
        (*setting.evidence, *view.ports_evidence()),
        True,
    )


def _not_opened(view: _View) -> Cause | None:
    errors = [
        fact for _, fact in (view.process.verbs if view.process else ()) if fact.call == "ibv_open_device"
    ]
    if not errors:
        return None
    return Cause(
        "device_open_failed",
        f"{errors[0].device or 'the RDMA device'} cannot be opened: the process may not use its "
        "/dev/infiniband/uverbs node, or its library is too old for the kernel",
        view.of(errors[0]),
        True,
    )


def _port_down(view: _View) -> Cause | None:
    if not view.ports or any(port.active for port in view.ports):
        return None
    first = view.ports[0]
    init = first.state == 2 and first.link_layer == "InfiniBand"
    waits = " (INIT on InfiniBand: no subnet manager has configured it)" if init else ""
    return Cause(
        "port_down",
        f"no RDMA port is ACTIVE: {', '.join(format_port(port) for port in view.ports[:8])}{waits}",
        view.ports_evidence(),
        True,
    )


def _efa(view: _View) -> Cause | None:
    """EFA is no InfiniBand: NCCL's own code never uses it."""
    devices = [
        port
        for port in view.ports or ()
        if port.active
        and port.device.startswith(("efa", "rdmap"))
        and port.link_layer not in ("InfiniBand", "Ethernet")
    ]
    if not devices or any(fact.status == "loaded" for fact in view.plugins):
        return None
    line = next(iter(view.plugins), None)  # none of them is loaded
    return Cause(
        "efa_plugin_missing",
        f"this node's {_devices(devices)} is EFA, which NCCL reaches only through the "
        "aws-ofi-nccl plugin, and that was not loaded",
        (*view.of(line), *view.ports_evidence()),
        True,
    )


def _plugin(view: _View) -> Cause | None:
    broken = [fact for fact in view.plugins if fact.status == "failed"]
    if not broken:
        return None
    name = broken[0].name or "the external network plugin"
    return Cause(
        "plugin_failed",
        f"{name} cannot be used, and NCCL fell back to its own network code",
        view.of(broken[0]),
    )


def _no_rdma(view: _View) -> Cause | None:
    if view.ports != ():
        return None
    return Cause("no_rdma", "this machine shows no RDMA device", view.of(view.devices), True)


def _without_reason(view: _View) -> Cause | None:
    """Ports are active and nothing explains it: NCCL's own log would."""
    if view.ports and not view.talks:
        return Cause(
            "unknown",
            f"{_devices(view.ports)} would be there; NCCL_DEBUG=INFO would show why it is not used",
            view.ports_evidence(),
        )
    if view.ports:
        return Cause(
            "no_device",
            f"NCCL found no RDMA device though this node has {_devices(view.ports)}",
            (*view.of(view.devices), *view.ports_evidence()),
        )
    return None


_LOOKS = (
    _forced,
    _disabled,
    _no_library,
    _no_oob,
    _device_nodes,
    _provider,
    _not_opened,
    _port_down,
    _filter,
    _efa,
    _plugin,
    _no_rdma,
    _forced_unseen,
    _without_reason,
)


def _devices(ports: Sequence[RdmaPort]) -> str:
    more = f" and {len(ports) - 4} more" if len(ports) > 4 else ""
    return ", ".join(format_port(port) for port in ports[:4]) + more
