"""The rendezvous before the run: does MASTER_ADDR resolve, is it this machine, is the port free, do the
others get through."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterator
from pathlib import Path

from diag.launch.launchers.command.shell_script import is_computed
from diag.preflight.line import Line
from diag.preflight.plan import LaunchPlan, is_own
from diag.preflight.rendezvous_first_node import bind, check_first_node
from diag.preflight.rendezvous_other_node import check_other_node
from diag.preflight.rendezvous_probe import resolve

_RESOLVE_SECONDS = 5.0
_WHAT = "rendezvous"
_NAMED = (
    "diag doctor -- the training command itself, with its numbers and names; or set the variable here first"
)


def check_rendezvous(plan: LaunchPlan) -> Iterator[Line]:
    meeting = plan.meeting
    yield from map(_no_number, meeting.bad)
    if meeting.port > 65535:
        yield Line(
            _WHAT,
            "problem",
            f"{meeting.port} ({meeting.port_from}) is no port",
            "a port from 1024 to 65535",
            "rendezvous-failure",
        )
        return
    if plan.nodes is None:
        if plan.given:
            yield Line(_WHAT, "not checked", f"how many nodes meet is not known: {plan.unsure}", _NAMED)
        return
    if meeting.nodes < 2:
        if plan.given:
            yield from _one_node(plan)
        return
    if any(is_computed(value) for value in meeting.bad):
        return
    if meeting.address is not None and is_computed(meeting.address):
        said = f"{meeting.nodes} nodes meet at `{meeting.address}` ({meeting.address_from}): only the shell that starts it knows"
        yield Line(_WHAT, "not checked", f"{said}, or it has no value here", _NAMED)
        return
    if meeting.address is None:
        yield _no_address(plan)
        return
    yield from _where_they_meet(plan, meeting.address)


def _where_they_meet(plan: LaunchPlan, address: str) -> Iterator[Line]:
    meeting = plan.meeting
    where = f"{address}:{meeting.port}"
    addresses, why = resolve(address, meeting.port, _RESOLVE_SECONDS)
    if not addresses:
        yield Line(
            _WHAT,
            "problem",
            f"{address} ({meeting.address_from}) does not resolve here: {why}",
            _unresolved(plan),
            "hostname-resolution",
            "critical",
        )
        return
    loopback = [one for one in addresses if ipaddress.ip_address(one.partition("%")[0]).is_loopback]
    own = [one for one in addresses if is_own(one)]
    first = (
        meeting.node_rank == 0 if meeting.node_rank is not None and meeting.backend == "static" else bool(own)
    )
    if meeting.backend.startswith("etcd"):
        yield from check_other_node(plan, where, addresses, diag_listens=False)
        return
    if loopback and (not first or address == "localhost" or address in loopback):
        yield _loopback(plan, addresses)
        return
    if first:
        yield from check_first_node(plan, where, addresses, bool(own), loopback)
    else:
        yield from check_other_node(plan, where, addresses, diag_listens=True)


def _no_number(value: str) -> Line:
    if is_computed(value):
        text = f"`{value}`: only the shell that starts it knows, or it has no value here"
        return Line(_WHAT, "not checked", text, _NAMED)
    return Line(_WHAT, "problem", f"{value} is no number", "correct it", "launch-mismatch")


def _one_node(plan: LaunchPlan) -> Iterator[Line]:
    """Of a job of one node only the port matters, and only when one was asked for."""
    if plan.meeting.port_from:
        place, line = bind(plan)
        if place is not None:
            place.close()
        yield line or Line(
            _WHAT, "ok", f"one node; port {plan.meeting.port} ({plan.meeting.port_from}) is free"
        )
    else:
        yield Line(_WHAT, "ok", "one node")


def _no_address(plan: LaunchPlan) -> Line:
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
        said += f"; torchrun does not read MASTER_ADDR={plan.environment['MASTER_ADDR']} from the environment (only PET_MASTER_ADDR)"
        flags = f"--master_addr {plan.environment['MASTER_ADDR']}"
    if not meeting.launcher and not plan.given:
        return Line(_WHAT, "not checked", said, f"{flags}, or `diag doctor -- CMD`")
    return Line(_WHAT, "problem", said, flags, "rendezvous-failure", "critical")


def _unresolved(plan: LaunchPlan) -> str:
    if "KUBERNETES_SERVICE_HOST" in plan.environment:
        return (
            "Pods of a plain Job have random names and no DNS entry: use an Indexed Job or JobSet with a headless Service "
            "(clusterIP: None) and `subdomain`, and JOB-0.SERVICE as the address; publishNotReadyAddresses: true lets it "
            "resolve at start"
        )
    return "check the spelling; put the name into DNS or into /etc/hosts of each node (docker: --add-host), or use its address"


def _loopback(plan: LaunchPlan, addresses: tuple[str, ...]) -> Line:
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
