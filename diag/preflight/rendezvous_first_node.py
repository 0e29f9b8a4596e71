"""On node 0: whether the port is free, whose it is if not, and who of the others comes through to it."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

from diag.launch.launchers import redacted
from diag.launch.port_owner import owner_of
from diag.preflight.clock import clock_lines
from diag.preflight.line import Line
from diag.preflight.plan import LaunchPlan
from diag.preflight.rendezvous_names import absent, is_translated, mine, name_of, translated
from diag.preflight.rendezvous_probe import listen
from diag.text.units import format_seconds

_WHAT = "rendezvous"


def check_first_node(
    plan: LaunchPlan, where: str, addresses: tuple[str, ...], own: bool, loopback: list[str]
) -> Iterator[Line]:
    meeting = plan.meeting
    if not own:
        mine = ", ".join(place.ip for one in plan.interfaces if one.name != "lo" for place in one.addresses)
        yield Line(
            _WHAT,
            "problem",
            f"node 0 is this one{_by_default(plan)}, but {where} ({', '.join(addresses)}) is no address of this machine ({mine})",
            "the address of this machine, unless something forwards to it (a Service's cluster IP, NAT)",
            "rendezvous-failure",
        )
    place, line = bind(plan)
    if place is None:
        assert line is not None
        yield line
        return
    with place:
        said = f"node 0 of {meeting.nodes}: port {meeting.port} is free"
        if own:
            said += f" and {meeting.address} is this machine ({', '.join(addresses)})"
        if loopback:
            said += "; that is loopback: harmless here, but the other nodes must not resolve it so"
        if not plan.wait_seconds:
            yield Line(_WHAT, "ok", said)
            yield Line(
                "other nodes",
                "not checked",
                "nobody listened for them",
                "on all nodes at the same time: diag doctor --wait 60 -- CMD; this one then listens, the others connect",
            )
            return
        place.listen()
        yield Line(_WHAT, "ok", f"{said}; listening there for {format_seconds(plan.wait_seconds)} at most")
        yield from _wait_for_nodes(plan, place)


def _by_default(plan: LaunchPlan) -> str:
    return " (no node rank is given, and 0 is the default)" if plan.meeting.rank_from == "the default" else ""


def bind(plan: LaunchPlan) -> tuple[socket.socket | None, Line | None]:
    """As torch's TCPStore binds: all addresses, IPv6 and IPv4, SO_REUSEADDR. A socket, or the line that says
    why not."""
    port = plan.meeting.port
    place = None
    try:
        try:
            place = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
            place.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            place.bind(("::", port))
        except OSError as error:
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                raise
            if place is not None:
                place.close()
            place = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            place.bind(("0.0.0.0", port))
        return place, None
    except (OSError, OverflowError) as error:
        if place is not None:
            place.close()
        return None, _not_bound(port, error)


def _not_bound(port: int, error: Exception) -> Line:
    if not isinstance(error, OSError) or error.errno != errno.EADDRINUSE:
        return Line(
            _WHAT,
            "problem",
            f"this user cannot listen on port {port}: {error}",
            "a port from 1024 to 65535",
            "rendezvous-failure",
        )
    owner = owner_of(port)
    if owner is None:
        who, remedy = (
            "a connection of another process holds it as its own end",
            (
                "another port, below the range that the kernel gives to connections (/proc/sys/net/ipv4/ip_local_port_range)"
            ),
        )
    elif owner.pid is None:
        who, remedy = (
            f"a process of user {owner.uid} listens there",
            f"another port, or `sudo ss -ltnp 'sport = :{port}'` names it",
        )
    else:
        command = " ".join(redacted(owner.command.split()))
        who, remedy = (
            f"pid {owner.pid} listens there ({command})",
            f"kill {owner.pid} if it is left over, or use another port",
        )
    return Line(_WHAT, "problem", f"port {port} is in use here: {who}", remedy, "port-in-use", "critical")


def _wait_for_nodes(plan: LaunchPlan, place: socket.socket) -> Iterator[Line]:
    meeting, wait_seconds = plan.meeting, plan.wait_seconds or 0.0
    came = []
    strangers = 0
    for met in listen(place, wait_seconds, meeting.nodes - 1, mine(plan), plan.clock):
        if met is None:
            strangers += 1
            continue
        came.append(met)
        unnamed = name_of(plan, met)
        if unnamed is not None:
            yield unnamed
        yield from clock_lines(plan, met)
        if met.nodes is not None and met.nodes != meeting.nodes:
            yield Line(
                "other nodes",
                "problem",
                f"{met.host} (node {met.node_rank}) has {met.nodes} nodes on its command line, this one {meeting.nodes}",
                "the same number on all nodes",
                "launch-mismatch",
                "critical",
            )
        if met.node_rank is not None and met.node_rank in [0, *(other.node_rank for other in came[:-1])]:
            yield Line(
                "other nodes",
                "problem",
                f"{met.host} ({met.seen_as}) says that it is node {met.node_rank}, as another does",
                "a node rank of its own on each node",
                "launch-mismatch",
                "critical",
            )
    names = ", ".join(f"{met.host} ({met.seen_as})" for met in came)
    behind = [
        f"{met.host} comes from {met.seen_as}, and has the address {met.own} itself"
        for met in came
        if is_translated(met, met.seen_as)
    ]
    if behind:
        yield translated("; ".join(behind), "other nodes")
    missing = meeting.nodes - 1 - len(came)
    if missing <= 0 and behind:
        return
    if missing <= 0:
        yield Line(
            "other nodes",
            "ok",
            f"all {len(came)} came through to port {meeting.port}: {names}; NCCL and gloo will also need "
            "connections to other ports, in both directions",
        )
        return
    said = f"{missing} of {meeting.nodes - 1} did not come within {format_seconds(wait_seconds)}{absent(plan, came)}"
    said += f"; {names} did" if came else ""
    said += f"; {strangers} connections were not diag's" if strangers else ""
    yield Line(
        "other nodes",
        "problem",
        said,
        f"run `diag doctor --wait {wait_seconds:g} -- CMD` there at the same time: it says whether "
        "the way is closed or the address wrong",
        "rendezvous-failure",
    )
