"""The rendezvous before the run: does MASTER_ADDR resolve, is it this machine, is the port free, do the others get through."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
from collections.abc import Iterator
from pathlib import Path

from diag.launchers import redacted
from diag.preflight.line import Line
from diag.preflight.plan import Plan, is_own
from diag.preflight.port_owner import owner_of
from diag.preflight.reach import Met, Outcome, connect, listen, own_name, resolve

__all__ = ["check_rendezvous"]

_RESOLVE_SECONDS = 5.0
_MOST_ADDRESSES = 4
_WHAT = "rendezvous"


def check_rendezvous(plan: Plan) -> Iterator[Line]:
    meeting = plan.meeting
    for value in meeting.bad:
        yield Line(_WHAT, "problem", f"{value} is no number", "correct it", "launch-mismatch")
    if meeting.nodes < 2:
        if plan.given:
            yield from _one_node(plan)
        return
    if meeting.address is None:
        yield _no_address(plan)
        return
    where = f"{meeting.address}:{meeting.port}"
    addresses, why = resolve(meeting.address, meeting.port, _RESOLVE_SECONDS)
    if not addresses:
        yield Line(
            _WHAT,
            "problem",
            f"{meeting.address} ({meeting.address_from}) does not resolve here: {why}",
            _unresolved(plan),
            "hostname-resolution",
            "critical",
        )
        return
    loopback = [address for address in addresses if ipaddress.ip_address(address.partition("%")[0]).is_loopback]
    own = [address for address in addresses if is_own(address)]
    first = meeting.node_rank == 0 if meeting.node_rank is not None and meeting.backend == "static" else bool(own)
    if meeting.backend.startswith("etcd"):
        yield from _other_node(plan, where, addresses, diag_listens=False)
        return
    if loopback and (not first or meeting.address == "localhost" or meeting.address in loopback):
        yield _loopback(plan, addresses)
        return
    if first:
        yield from _first_node(plan, where, addresses, bool(own), loopback)
    else:
        yield from _other_node(plan, where, addresses, diag_listens=True)


def _one_node(plan: Plan) -> Iterator[Line]:
    """Of a job of one node only the port matters, and only when one was asked for."""
    if plan.meeting.port_from:
        place, line = _bind(plan)
        if place is not None:
            place.close()
        yield line or Line(_WHAT, "ok", f"one node; port {plan.meeting.port} ({plan.meeting.port_from}) is free")
    else:
        yield Line(_WHAT, "ok", "one node")


def _no_address(plan: Plan) -> Line:
    meeting = plan.meeting
    nodes = f"{meeting.nodes} nodes ({meeting.nodes_from})"
    if meeting.launcher == "deepspeed":
        return Line(
            _WHAT,
            "not checked",
            f"{nodes}: deepspeed asks the first host of its host file for its address",
            "name it: --master_addr HOST",
        )
    if meeting.launcher == "accelerate":
        return Line(
            _WHAT,
            "not checked",
            f"{nodes}: no --main_process_ip on the command line; accelerate's config file is not read by diag",
            "name it: --main_process_ip HOST",
        )
    flags = {
        "swift": "MASTER_ADDR=HOST", "megatron": "MASTER_ADDR=HOST", "": "MASTER_ADDR=HOST",
    }.get(meeting.launcher, "--master_addr HOST, or --rdzv_endpoint HOST:PORT")  # fmt: skip
    said = f"{nodes}, and no address where they meet"
    if meeting.launcher:
        said += ": each node would wait for the others on its own 127.0.0.1"
    ignored = [name for name in meeting.ignored if name == "MASTER_ADDR"]
    if ignored:
        said += (
            f"; torchrun does not read MASTER_ADDR={plan.environment['MASTER_ADDR']} from the environment (only PET_MASTER_ADDR)"
        )
        flags = f"--master_addr {plan.environment['MASTER_ADDR']}"
    if not meeting.launcher and not plan.given:
        return Line(_WHAT, "not checked", said, f"{flags}, or `diag doctor -- CMD`")
    return Line(_WHAT, "problem", said, flags, "rendezvous-failure", "critical")


def _unresolved(plan: Plan) -> str:
    if "KUBERNETES_SERVICE_HOST" in plan.environment:
        return (
            "Pods of a plain Job have random names and no DNS entry: use an Indexed Job or JobSet with a headless Service "
            "(clusterIP: None) and `subdomain`, and JOB-0.SERVICE as the address; publishNotReadyAddresses: true lets it "
            "resolve at start"
        )
    return "check the spelling; put the name into DNS or into /etc/hosts of each node (docker: --add-host), or use its address"


def _loopback(plan: Plan, addresses: tuple[str, ...]) -> Line:
    meeting = plan.meeting
    if meeting.address in ("localhost", *addresses):
        return Line(
            _WHAT,
            "problem",
            f"{meeting.address} ({meeting.address_from or 'the default'}) is each node's own loopback: the "
            f"{meeting.nodes} nodes would each wait for themselves",
            "the name or address of node 0 as the others see it",
            "rendezvous-failure",
            "critical",
        )
    line = _hosts_line(str(meeting.address))
    said = f"{meeting.address} resolves to {', '.join(addresses)} here, which is this machine and not node 0"
    return Line(
        _WHAT,
        "problem",
        said + (f": `{line}` in /etc/hosts" if line else ""),
        f"take {meeting.address} out of the 127.* lines of /etc/hosts, or use node 0's address",
        "hostname-resolution",
        "critical",
    )


def _hosts_line(name: str, path: Path = Path("/etc/hosts")) -> str:
    with contextlib.suppress(OSError):
        for line in path.read_text(errors="replace").splitlines():
            words = line.partition("#")[0].split()
            if name in words[1:] and words[0].startswith(("127.", "::1")):
                return " ".join(words)
    return ""


# --- node 0 ------------------------------------------------------------------------------------------------------------


def _first_node(plan: Plan, where: str, addresses: tuple[str, ...], own: bool, loopback: list[str]) -> Iterator[Line]:
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
    place, line = _bind(plan)
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
        yield Line(_WHAT, "ok", f"{said}; listening there for {plan.wait_seconds:g} s at most")
        yield from _wait_for_nodes(plan, place)


def _by_default(plan: Plan) -> str:
    return " (no node rank is given, and 0 is the default)" if plan.meeting.rank_from == "the default" else ""


def _bind(plan: Plan) -> tuple[socket.socket | None, Line | None]:
    """As torch's TCPStore binds: all addresses, IPv6 and IPv4, SO_REUSEADDR. A socket, or the line that says why not."""
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
            ("another port, below the range that the kernel gives to connections (/proc/sys/net/ipv4/ip_local_port_range)"),
        )
    elif owner.pid is None:
        who, remedy = (
            f"a process of user {owner.uid} listens there",
            f"another port, or `sudo ss -ltnp 'sport = :{port}'` names it",
        )
    else:
        command = " ".join(redacted(owner.command.split()))
        who, remedy = f"pid {owner.pid} listens there ({command})", f"kill {owner.pid} if it is left over, or use another port"
    return Line(_WHAT, "problem", f"port {port} is in use here: {who}", remedy, "port-in-use", "critical")


def _wait_for_nodes(plan: Plan, place: socket.socket) -> Iterator[Line]:
    meeting, wait_seconds = plan.meeting, plan.wait_seconds or 0.0
    came = []
    strangers = 0
    for met in listen(place, wait_seconds, meeting.nodes - 1, _mine(plan)):
        if met is None:
            strangers += 1
            continue
        came.append(met)
        unnamed = _name_of(plan, met)
        if unnamed is not None:
            yield unnamed
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
    names = ", ".join(
        f"{met.host} ({met.seen_as}{'' if met.own == met.seen_as else f', itself {met.own}: address translation'})"
        for met in came
    )
    missing = meeting.nodes - 1 - len(came)
    if missing <= 0:
        yield Line(
            "other nodes",
            "ok",
            f"all {len(came)} came through to port {meeting.port}: {names}; NCCL and gloo will also need "
            "connections to other ports, in both directions",
        )
        return
    said = f"{missing} of {meeting.nodes - 1} did not come within {wait_seconds:g} s"
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


def _mine(plan: Plan) -> dict[str, int | str | None]:
    name = ""
    if plan.meeting.backend == "c10d":
        name = plan.meeting.local_address or own_name(_RESOLVE_SECONDS)
    return {"node_rank": plan.meeting.node_rank, "nodes": plan.meeting.nodes, "host": socket.gethostname(), "name": name}


def _name_of(plan: Plan, met: Met) -> Line | None:
    """Of torchrun's c10d rendezvous, whose rank 0 gives the ranks its own name as MASTER_ADDR, whatever the endpoint was.

    torch 2.13, elastic/rendezvous/dynamic_rendezvous.py and api.py: `local_addr or socket.getfqdn()`.
    """
    if plan.meeting.backend != "c10d" or not met.name:
        return None
    addresses, why = resolve(met.name, plan.meeting.port, _RESOLVE_SECONDS)
    if addresses and not any(is_own(address) for address in addresses):
        return None
    wrong = f"resolves to {', '.join(addresses)} here, which is this machine" if addresses else f"does not resolve here: {why}"
    return Line(
        "other nodes",
        "problem",
        f"the node at {met.seen_as} calls itself {met.name}, and that {wrong}; torchrun's c10d rendezvous gives such a name to the "
        "ranks as MASTER_ADDR",
        "--local_addr with each node's own address, or the names in DNS or /etc/hosts of each node",
        "hostname-resolution",
        "critical",
    )


# --- the others --------------------------------------------------------------------------------------------------------


def _other_node(plan: Plan, where: str, addresses: tuple[str, ...], *, diag_listens: bool) -> Iterator[Line]:
    tried = addresses[:_MOST_ADDRESSES]
    outcomes: list[Outcome] = []
    for address in tried:
        outcomes.append(connect(address, plan.meeting.port, (plan.wait_seconds or 0.0) / len(tried), _mine(plan)))
        if outcomes[-1].how in ("reached", "stranger"):
            break
    if not diag_listens and outcomes[-1].how in ("reached", "stranger"):
        yield Line(_WHAT, "ok", f"{where} takes connections")
        return
    for outcome in outcomes:
        yield _line_of(plan, where, outcome)
        unnamed = _name_of(plan, outcome.met) if outcome.met is not None else None
        if unnamed is not None:
            yield unnamed


def _line_of(plan: Plan, where: str, outcome: Outcome) -> Line:
    meeting = plan.meeting
    at = where if outcome.address == meeting.address else f"{where} ({outcome.address})"
    took = f"{outcome.tries} {'try' if outcome.tries == 1 else 'tries'} in {outcome.seconds:.1f} s"
    rank = "" if meeting.node_rank is None else f"node {meeting.node_rank} of {meeting.nodes}: "
    if outcome.how == "reached":
        host = f" ({outcome.met.host})" if outcome.met is not None and outcome.met.host else ""
        mismatch = outcome.met is not None and outcome.met.nodes not in (None, meeting.nodes)
        if mismatch:
            assert outcome.met is not None
            return Line(
                _WHAT,
                "problem",
                f"{rank}{at}{host} is reached, but has {outcome.met.nodes} nodes on its command line, this one {meeting.nodes}",
                "the same number on all nodes",
                "launch-mismatch",
                "critical",
            )
        return Line(
            _WHAT,
            "ok",
            f"{rank}{at} is reached{host}; NCCL and gloo will also need connections to other ports, in both directions",
        )
    if outcome.how == "refused":
        said = f"{rank}{at} refused the connection ({took}): the machine answers, but nothing listens on that port"
        if not plan.wait_seconds:
            return Line(_WHAT, "not checked", f"{said} yet", "on all nodes at the same time: diag doctor --wait 60 -- CMD")
        return Line(
            _WHAT,
            "problem",
            f"{said}, or a firewall rejects it",
            "run `diag doctor --wait` on node 0 at the same time; then "
            "check that address and port are the same on all nodes, and the firewall's reject rules",
            "rendezvous-failure",
            "critical",
        )
    if outcome.how == "silence":
        return Line(
            _WHAT,
            "problem",
            f"{rank}{at} did not answer at all ({took}): packets are dropped, or the machine is not there",
            f"allow TCP between the nodes (firewall, security group, NetworkPolicy): port {meeting.port}, and those that NCCL "
            "and gloo choose; docker: --network=host",
            "rendezvous-failure",
            "critical",
        )
    if outcome.how == "no-route":
        return Line(
            _WHAT,
            "problem",
            f"{rank}{at}: {outcome.said} ({took}): this machine knows no way there, nobody has that address, or "
            "a firewall prohibits it",
            "check address, netmask and routes (`ip route get ADDRESS`) and the firewall's reject rules",
            "rendezvous-failure",
            "critical",
        )
    if outcome.how == "stranger":
        return Line(
            _WHAT,
            "problem",
            f"{rank}{at} takes connections, but it is not `diag doctor` on node 0 ({outcome.said}): another "
            "program has the port, or the job already runs",
            "look on node 0 with `ss -ltnp`; use another port if it is not yours",
            "port-in-use",
        )
    return Line(_WHAT, "problem", f"{rank}{at}: {outcome.said} ({took})", "check the address", "rendezvous-failure", "critical")
