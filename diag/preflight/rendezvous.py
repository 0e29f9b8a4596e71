"""The rendezvous before the run: does MASTER_ADDR resolve, is it this machine, is the port free, do the
others get through."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import re
import socket
from collections.abc import Iterator
from pathlib import Path

from diag.launch.launchers.command.shell_script import is_computed
from diag.launch.launchers.secrets import redacted
from diag.launch.ports import owner_of
from diag.preflight.interfaces import addresses_to_use, bridge_of, own_address
from diag.preflight.line import Line, line
from diag.preflight.met_nodes import absent, is_translated, mine, reported_lines
from diag.preflight.plan import LaunchPlan, is_own
from diag.preflight.rendezvous_probe import Met, Outcome, connect, listen, resolve
from diag.preflight.ways import Doors
from diag.text.units import format_count, format_seconds

_RESOLVE_SECONDS = 5.0
_MOST_ADDRESSES = 4


def check_rendezvous(plan: LaunchPlan) -> Iterator[Line]:
    meeting = plan.meeting
    for value in meeting.bad:
        yield line(f"rendezvous.{'computed' if is_computed(value) else 'no'}-number", value=value)
    if meeting.port > 65535:
        yield line("rendezvous.no-port", meeting=meeting)
    elif plan.nodes is None:
        if plan.given:
            yield line("rendezvous.nodes-unknown", plan=plan)
    elif meeting.nodes < 2:
        if plan.given:
            yield _one_node(plan)
    elif any(map(is_computed, meeting.bad)):
        return
    elif meeting.address is None:
        yield _no_address(plan)
    elif is_computed(meeting.address):
        yield line("rendezvous.computed-address", meeting=meeting)
    else:
        yield from _where_they_meet(plan, meeting.address)


def _where_they_meet(plan: LaunchPlan, address: str) -> Iterator[Line]:
    meeting = plan.meeting
    where = f"{address}:{meeting.port}"
    if is_placeholder(address):
        yield _placeholder(plan)
        return
    if named_inside(plan, address):
        yield line("rendezvous.named-inside", where=where, container=plan.container)
        return
    addresses, why = resolve(address, meeting.port, _RESOLVE_SECONDS)
    if not addresses:
        in_pod = "-in-pod" if "KUBERNETES_SERVICE_HOST" in plan.environment else ""
        yield line(f"rendezvous.unresolved{in_pod}", meeting=meeting, why=why)
        return
    bridge = bridge_of(plan, addresses)
    if bridge:
        variable = meeting.address_from
        yield line(
            "rendezvous.bridge-address", where=where, bridge=bridge, meeting=meeting, variable=variable
        )
        return
    loopback = [one for one in addresses if ipaddress.ip_address(one.partition("%")[0]).is_loopback]
    own = any(map(is_own, addresses))
    by_rank = meeting.node_rank is not None and meeting.backend == "static"
    first = meeting.node_rank == 0 if by_rank else own
    if meeting.backend.startswith("etcd"):
        yield from check_other_node(plan, where, addresses, diag_listens=False)
    elif loopback and (not first or address == "localhost" or address in loopback):
        yield _loopback(plan, addresses)
    elif first:
        yield from check_first_node(plan, where, addresses, own, loopback)
    else:
        yield from check_other_node(plan, where, addresses, diag_listens=True)


# Names of hosts are letters, digits, `-`, `.` (RFC 1123) and `_`; addresses have `:` and `%` too. No real address has an x
# among its numbers.
_HOST = re.compile(r"[A-Za-z0-9._:%-]+")
_LEFT_OPEN = re.compile(r"(?=.*[xX*])[0-9xX*]{1,3}(?:\.[0-9xX*]{1,3}){3}|x{2,}|your[-_.].*", re.IGNORECASE)


def is_placeholder(address: str) -> bool:
    """
    >>> [is_placeholder(text) for text in ("主节点宿主机IP", "<node0>", "192.168.x.x", "xxx", "node-0.svc", "fd00::1%eth0")]
    [True, True, True, True, False, False]
    """
    return not _HOST.fullmatch(address) or _LEFT_OPEN.fullmatch(address) is not None


def named_inside(plan: LaunchPlan, address: str) -> bool:
    """Whether it is a name of the container's own network: docker resolves the names of containers and services there,
    and this machine does not know them."""
    container = plan.container
    if container is None or container.network in ("host", "none", "bridge"):
        return False
    own = bool(container.network) or container.by_compose
    return own and not re.fullmatch(r"[\d.]+|[0-9a-fA-F:]+(?:%\w+)?", address)


def _placeholder(plan: LaunchPlan) -> Line:
    """With this machine's own address where it is node 0."""
    meeting, container = plan.meeting, plan.container
    ip = own_address(plan) if meeting.node_rank == 0 else ""
    mine = f": this machine, node 0, has {ip}" if ip else ""
    by_flag = container is not None and meeting.address_from in container.variables
    adds = f"--env={meeting.address_from}={ip}" if ip and by_flag else ""
    variable = meeting.address_from
    return line("rendezvous.placeholder", meeting=meeting, variable=variable, mine=mine, adds=adds)


def _one_node(plan: LaunchPlan) -> Line:
    """Of a job of one node only the port matters, and only when one was asked for."""
    if not plan.meeting.port_from:
        return line("rendezvous.one-node")
    place = bind(plan)
    if isinstance(place, Line):
        return place
    place.close()
    return line("rendezvous.one-node-port", meeting=plan.meeting)


def _no_address(plan: LaunchPlan) -> Line:
    meeting = plan.meeting
    nodes = f"{meeting.nodes} nodes ({meeting.nodes_from})"
    if meeting.launcher in ("deepspeed", "accelerate"):
        return line(f"rendezvous.address-of-{meeting.launcher}", nodes=nodes)
    by_variable = meeting.launcher in ("swift", "megatron", "")
    flags = "MASTER_ADDR=HOST" if by_variable else "--master_addr HOST, or --rdzv_endpoint HOST:PORT"
    said = f"{nodes}, and no address where they meet"
    if meeting.launcher:
        said += ": each node would wait for the others on its own 127.0.0.1"
    if "MASTER_ADDR" in meeting.ignored:
        value = plan.environment["MASTER_ADDR"]
        said += f"; torchrun does not read MASTER_ADDR={value} from the environment (only PET_MASTER_ADDR)"
        flags = f"--master_addr {value}"
    unasked = not meeting.launcher and not plan.given
    return line(f"rendezvous.no-{'command-' if unasked else ''}address", said=said, flags=flags)


def _loopback(plan: LaunchPlan, addresses: tuple[str, ...]) -> Line:
    meeting = plan.meeting
    if meeting.address in ("localhost", *addresses):
        address_from = meeting.address_from or "the default"
        return line("rendezvous.loopback", meeting=meeting, address_from=address_from)
    kept = _hosts_line(str(meeting.address))
    where = f": `{kept}` in /etc/hosts" if kept else ""
    return line("rendezvous.loopback-name", meeting=meeting, addresses=", ".join(addresses), line=where)


def _hosts_line(name: str, path: Path = Path("/etc/hosts")) -> str:
    with contextlib.suppress(OSError):
        for text in path.read_text(errors="replace").splitlines():
            words = text.partition("#")[0].split()
            if name in words[1:] and words[0].startswith(("127.", "::1")):
                return " ".join(words)
    return ""


def check_first_node(
    plan: LaunchPlan, where: str, addresses: tuple[str, ...], own: bool, loopback: list[str]
) -> Iterator[Line]:
    """On node 0: whether the port is free, whose it is if not, and which of the others come through to it."""
    meeting, named = plan.meeting, ", ".join(addresses)
    if not own:
        here = ", ".join(place.ip for one in plan.interfaces if one.name != "lo" for place in one.addresses)
        by_default = meeting.rank_from == "the default"
        default = " (no node rank is given, and 0 is the default)" if by_default else ""
        yield line("rendezvous.not-own", by_default=default, where=where, addresses=named, mine=here)
    place = bind(plan)
    if isinstance(place, Line):
        yield place
        return
    with place:
        said = f"node 0 of {meeting.nodes}: port {meeting.port} is free"
        said += f" and {meeting.address} is this machine ({named})" if own else ""
        if loopback:
            said += (
                "; that is loopback: harmless here, but on the other nodes it must not resolve to loopback"
            )
        if not plan.wait_seconds:
            yield line("rendezvous.free", said=said)
            yield line("rendezvous.not-listening")
            return
        place.listen()
        yield line("rendezvous.listening", said=said, wait=format_seconds(plan.wait_seconds))
        yield from _wait_for_nodes(plan, place)


def bind(plan: LaunchPlan) -> socket.socket | Line:
    """As torch's TCPStore binds: all addresses, IPv6 and IPv4, SO_REUSEADDR. A socket, or the line that says
    why not."""
    port = plan.meeting.port
    try:
        try:
            return _bound(socket.AF_INET6, port)
        except OSError as error:
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                raise
            return _bound(socket.AF_INET, port)
    except (OSError, OverflowError) as error:
        return _not_bound(port, error)


def _bound(family: socket.AddressFamily, port: int) -> socket.socket:
    place = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            place.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", port))
    except (OSError, OverflowError):
        place.close()
        raise
    return place


def _not_bound(port: int, error: Exception) -> Line:
    if not isinstance(error, OSError) or error.errno != errno.EADDRINUSE:
        return line("rendezvous.may-not-listen", port=port, error=error)
    owner = owner_of(port)
    if owner is None:
        return line("rendezvous.port-of-connection", port=port)
    command = " ".join(redacted(owner.command.split()))
    kind = "user" if owner.pid is None else "process"
    return line(f"rendezvous.port-of-{kind}", port=port, owner=owner, command=command)


def _wait_for_nodes(plan: LaunchPlan, place: socket.socket) -> Iterator[Line]:
    nodes, port, wait_seconds = plan.meeting.nodes, plan.meeting.port, plan.wait_seconds or 0.0
    came: list[Met] = []
    strangers = 0
    for met in _met(plan, place, wait_seconds):
        if met is None:
            strangers += 1
            continue
        yield from reported_lines(plan, met)
        if met.nodes not in (None, nodes):
            yield line("rendezvous.other-number", met=met, nodes=nodes)
        if met.node_rank is not None and met.node_rank in [0, *(other.node_rank for other in came)]:
            yield line("rendezvous.same-rank", met=met)
        came.append(met)
    names = ", ".join(f"{met.host} ({met.seen_as})" for met in came)
    behind = [
        f"{met.host} connects from {met.seen_as}, but its own address is {met.own}"
        for met in came
        if is_translated(met, met.seen_as) and met.ways is None
    ]
    if behind:
        yield line("rendezvous.translated", what="other nodes", said="; ".join(behind))
    missing = nodes - 1 - len(came)
    if missing > 0:
        said = f"{missing} of {nodes - 1} did not connect within {format_seconds(wait_seconds)}{absent(plan, came)}"
        said += f"; {names} did" if came else ""
        said += f"; {strangers} connections were not diag's" if strangers else ""
        yield line("rendezvous.missing", said=said, wait=wait_seconds)
    elif not behind:
        yield line("rendezvous.all-came", count=len(came), port=port, names=names)
    if nodes > 2:
        yield line("rendezvous.among-others")


def _met(plan: LaunchPlan, place: socket.socket, wait_seconds: float) -> Iterator[Met | None]:
    with Doors(addresses_to_use(plan)) as doors:
        yield from listen(place, wait_seconds, plan.meeting.nodes - 1, mine(plan), plan.clock, doors=doors)


def check_other_node(
    plan: LaunchPlan, where: str, addresses: tuple[str, ...], *, diag_listens: bool
) -> Iterator[Line]:
    """On the other nodes: whether node 0 is reached on the rendezvous port, and if not, what the network
    reported."""
    tried = addresses[:_MOST_ADDRESSES]
    outcomes: list[Outcome] = []
    each = plan.wait_seconds / len(tried)
    with Doors(addresses_to_use(plan) if diag_listens and plan.wait_seconds else {}) as doors:
        for address in tried:
            outcomes.append(connect(address, plan.meeting.port, each, mine(plan), plan.clock, doors=doors))
            if outcomes[-1].how in ("reached", "stranger"):
                break
    key = {"reached": "not-asked", "stranger": "not-asked", "refused": "refused"}.get(outcomes[-1].how)
    if not diag_listens and key is not None:
        yield line(f"rendezvous.server-{key}", where=where, backend=plan.meeting.backend)
        return
    for outcome in outcomes:
        yield _line_of(plan, where, outcome)
        if outcome.met is not None:
            yield from reported_lines(plan, outcome.met)


def _line_of(plan: LaunchPlan, where: str, outcome: Outcome) -> Line:
    meeting, met, key = plan.meeting, outcome.met, outcome.how
    at = "" if meeting.node_rank is None else f"node {meeting.node_rank} of {meeting.nodes}: "
    at += where if outcome.address == meeting.address else f"{where} ({outcome.address})"
    host = f" ({met.host})" if met is not None and met.host else ""
    if key == "reached" and met is not None:
        if met.nodes not in (None, meeting.nodes):
            key = "reached-other-number"
        elif is_translated(met, outcome.address) and met.ways is None:
            said = f"{at}{host} is reached, but its own address is {met.own}"
            return line("rendezvous.translated", what="rendezvous", said=said)
    elif key == "refused" and not plan.wait_seconds:
        key = "refused-yet"
    took = f"{format_count(outcome.tries, 'try', 'tries')} in {format_seconds(outcome.seconds)}"
    values = {"met": met, "host": host, "nodes": meeting.nodes, "port": meeting.port}
    return line(f"rendezvous.node0-{key}", at=at, outcome=outcome, took=took, **values)
