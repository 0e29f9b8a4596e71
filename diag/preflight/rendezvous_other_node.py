"""On the other nodes: whether node 0 is reached on the rendezvous port, and if not, what the network said."""

from __future__ import annotations

from collections.abc import Iterator

from diag.preflight.clock import clock_lines
from diag.preflight.line import Line
from diag.preflight.plan import LaunchPlan
from diag.preflight.rendezvous_names import is_translated, mine, name_of, translated
from diag.preflight.rendezvous_probe import Outcome, connect
from diag.text.units import format_seconds

_MOST_ADDRESSES = 4
_WHAT = "rendezvous"


def check_other_node(
    plan: LaunchPlan, where: str, addresses: tuple[str, ...], *, diag_listens: bool
) -> Iterator[Line]:
    tried = addresses[:_MOST_ADDRESSES]
    outcomes: list[Outcome] = []
    for address in tried:
        each = (plan.wait_seconds or 0.0) / len(tried)
        outcomes.append(connect(address, plan.meeting.port, each, mine(plan), plan.clock))
        if outcomes[-1].how in ("reached", "stranger"):
            break
    if not diag_listens and outcomes[-1].how in ("reached", "stranger"):
        said = f"{where} takes connections; whether it is an {plan.meeting.backend} server was not asked"
        yield Line(_WHAT, "not checked", said)
        return
    if not diag_listens and outcomes[-1].how == "refused":
        yield Line(
            _WHAT,
            "problem",
            f"{where} refused the connection: no {plan.meeting.backend} server listens there",
            "start it, or correct --rdzv_endpoint",
            "rendezvous-failure",
            "critical",
        )
        return
    for outcome in outcomes:
        yield _line_of(plan, where, outcome)
        unnamed = name_of(plan, outcome.met) if outcome.met is not None else None
        if unnamed is not None:
            yield unnamed
        if outcome.met is not None:
            yield from clock_lines(plan, outcome.met)


def _line_of(plan: LaunchPlan, where: str, outcome: Outcome) -> Line:
    meeting = plan.meeting
    at = where if outcome.address == meeting.address else f"{where} ({outcome.address})"
    took = f"{outcome.tries} {'try' if outcome.tries == 1 else 'tries'} in {format_seconds(outcome.seconds)}"
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
        if outcome.met is not None and is_translated(outcome.met, outcome.address):
            return translated(
                f"{rank}{at}{host} is reached, and has the address {outcome.met.own} itself", _WHAT
            )
        return Line(
            _WHAT,
            "ok",
            f"{rank}{at} is reached{host}; NCCL and gloo will also need connections to other ports, in both directions",
        )
    if outcome.how == "refused":
        said = f"{rank}{at} refused the connection ({took}): the machine answers, but nothing listens on that port"
        if not plan.wait_seconds:
            return Line(
                _WHAT,
                "not checked",
                f"{said} yet",
                "on all nodes at the same time: diag doctor --wait 60 -- CMD",
            )
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
    return Line(
        _WHAT,
        "problem",
        f"{rank}{at}: {outcome.said} ({took})",
        "check the address",
        "rendezvous-failure",
        "critical",
    )
