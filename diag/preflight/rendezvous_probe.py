"""Whether nodes reach each other on the rendezvous port: node 0 listens there for a while, the others
connect.

The listener speaks first, and what connects sends nothing before it has read `diag-doctor/1`: a training that
already runs there sees a connection that is closed again, never a byte it does not know.
"""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from diag.launch.launchers.nodes import nodes_of
from diag.preflight.line import Line, line
from diag.preflight.plan import LaunchPlan, is_own
from diag.text.units import format_seconds

_T = TypeVar("_T")
_GREETING = b"diag-doctor/1\n"
_MOST_BYTES = 4096
_SPEAK_SECONDS = 1.0  # a listener that is diag greets at once
_TRY_SECONDS = 2.0  # one lost SYN is sent again after 1 s (tcp(7)), so 2 s hold two of them
_PAUSE_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Met:
    """A node that was heard: its node rank and number of nodes as CMD has them there (None where it does
    not), and its name."""

    node_rank: int | None
    nodes: int | None
    host: str
    seen_as: str  # the address that its connection came from
    own: str  # the address that it has itself: another one where NAT is in between
    name: str = ""  # what torchrun would call it to the others: its host's full name, or --local_addr
    ahead_seconds: float | None = None  # its clock against this node's; None where it was not sent
    unsure_seconds: float = 0.0  # by half of the time that the exchange took


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a connection ended. `how` is reached, refused, silence, no-route, stranger (something else
    listens), or error."""

    how: str
    address: str
    seconds: float
    tries: int
    met: Met | None = None
    said: str = ""  # what the kernel reported, or the stranger sent


def resolve(name: str, port: int, seconds: float) -> tuple[tuple[str, ...], str]:
    """The addresses of a name, in the resolver's order; when there are none, why."""

    def ask() -> tuple[tuple[str, ...], str]:
        try:
            if not name:
                return (), "it has no name"
            answers = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
            return tuple(dict.fromkeys(str(place[0]) for *_, place in answers)), ""
        except socket.gaierror as error:
            known = {socket.EAI_NONAME: "no such name", socket.EAI_AGAIN: "the name server did not answer"}
            return (), known.get(error.errno or 0, error.strerror or str(error))
        except (OSError, ValueError, OverflowError) as error:
            return (), str(error)

    return _within(seconds, ask) or ((), f"the name server did not answer within {format_seconds(seconds)}")


def own_name(seconds: float) -> str:
    """What torchrun's c10d rendezvous calls this node: socket.getfqdn. "" when the name server takes too
    long."""
    return _within(seconds, socket.getfqdn) or ""


def _within(seconds: float, ask: Callable[[], _T]) -> _T | None:
    """The resolver's answer, None where that takes longer: it has no deadline of its own."""
    found: list[_T] = []
    asker = threading.Thread(target=lambda: found.append(ask()), daemon=True, name="diag-resolve")
    asker.start()
    asker.join(seconds)
    return found[0] if found else None


def connect(
    address: str,
    port: int,
    wait_seconds: float,
    mine: dict[str, int | str | None],
    clock: Callable[[], float] = time.time,
) -> Outcome:
    """Tries again until `wait_seconds` are over where nothing listens (yet); `mine` is what node 0 learns of
    this node.

    With `wait_seconds` 0 it is one try, of 2 s where nothing answers.
    """
    began = time.monotonic()
    tries = 0
    # the last answer; silence only where there never was one: ICMP answers come once a second at most
    last = ("silence", "")
    while True:
        left = wait_seconds - (time.monotonic() - began)
        tries += 1
        longest = max(min(_TRY_SECONDS, left), 0.5) if wait_seconds else _TRY_SECONDS
        how, met, said = _attempt(address, port, longest, mine, clock)
        last = last if how == "silence" else (how, said)
        spent = time.monotonic() - began
        # A stranger stays; a firewall's or the kernel's answer may still change when node 0 begins to listen.
        if how in ("reached", "stranger") or spent + _PAUSE_SECONDS >= wait_seconds:
            return Outcome(last[0], address, spent, tries, met, last[1])
        time.sleep(_PAUSE_SECONDS)


def _attempt(
    address: str, port: int, seconds: float, mine: dict[str, int | str | None], clock: Callable[[], float]
) -> tuple[str, Met | None, str]:
    try:
        with socket.create_connection((address, port), seconds) as peer:
            peer.settimeout(_SPEAK_SECONDS)
            try:
                greeting = peer.recv(len(_GREETING), socket.MSG_WAITALL)
            except TimeoutError:
                return "stranger", None, "it sent nothing"
            if greeting != _GREETING:
                sent = f"it sent {greeting[:40]!r}" if greeting else "it closed the connection at once"
                return "stranger", None, sent
            before = clock()
            _send(peer, mine, before)
            return "reached", _read(peer, address, before, clock), ""
    except TimeoutError:
        return "silence", None, ""
    except ConnectionRefusedError as error:
        return "refused", None, error.strerror or ""
    except OSError as error:
        no_route = error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL)
        return "no-route" if no_route else "error", None, error.strerror or str(error)


def _send(peer: socket.socket, mine: dict[str, int | str | None], now: float) -> None:
    peer.sendall(json.dumps({**mine, "own": peer.getsockname()[0], "clock": now}).encode() + b"\n")


def _read(peer: socket.socket, seen_as: str, before: float, clock: Callable[[], float]) -> Met | None:
    """One line of JSON of a peer; None for anything else. It read its clock between `before` and now."""
    data = b""
    deadline = time.monotonic() + _SPEAK_SECONDS
    try:
        while b"\n" not in data and len(data) < _MOST_BYTES and time.monotonic() < deadline:
            part = peer.recv(_MOST_BYTES)
            if not part:
                break
            data += part
        after = clock()
        sent = json.loads(data)
        rank, nodes = (
            sent[name] if isinstance(sent.get(name), int) else None for name in ("node_rank", "nodes")
        )
        there = sent.get("clock")
        is_time = isinstance(there, (int, float)) and not isinstance(there, bool) and abs(there) < 1e12
        return Met(
            node_rank=rank,
            nodes=nodes,
            host=str(sent.get("host", ""))[:253],
            seen_as=seen_as,
            own=str(sent.get("own", ""))[:64].removeprefix("::ffff:"),
            name=str(sent.get("name", ""))[:253],
            ahead_seconds=there - (before + after) / 2 if is_time else None,
            unsure_seconds=(after - before) / 2,
        )
    except (OSError, ValueError, AttributeError):
        return None


def listen(
    place: socket.socket,
    wait_seconds: float,
    expected: int,
    mine: dict[str, int | str | None],
    clock: Callable[[], float] = time.time,
) -> Iterator[Met | None]:
    """Each node that comes, None for what connects and is not diag; ends when `expected` nodes came, or the
    time is over."""
    deadline = time.monotonic() + wait_seconds
    known: set[tuple[int | None, str]] = set()
    while len(known) < expected:
        left = deadline - time.monotonic()
        if left <= 0:
            return
        place.settimeout(left)
        try:
            peer, address = place.accept()
        except TimeoutError:
            return
        except OSError:
            continue  # gone again before we accepted it
        met = None
        with contextlib.suppress(OSError), peer:
            peer.settimeout(_SPEAK_SECONDS)
            before = clock()  # it answers the greeting at once
            peer.sendall(_GREETING)
            met = _read(peer, address[0].removeprefix("::ffff:"), before, clock)
            if met is not None:
                _send(peer, mine, clock())
        if met is None:
            yield None
        elif (met.node_rank, met.host) not in known:
            known.add((met.node_rank, met.host))
            yield met


_RESOLVE_SECONDS = 5.0
_MOST_NAMED = 8
_SKEW_SECONDS = 1.0  # times of logs and of diag's own findings are given by the second
# torch 2.13, elastic/rendezvous/dynamic_rendezvous.py: a node whose last sign of life is older than three
# keep_alive_interval (5 s), by the reader's own clock, is taken for dead.
_C10D_SECONDS = 15.0


def mine(plan: LaunchPlan) -> dict[str, int | str | None]:
    name = ""
    if plan.meeting.backend == "c10d":
        name = plan.meeting.local_address or own_name(_RESOLVE_SECONDS)
    return {
        "node_rank": plan.meeting.node_rank,
        "nodes": plan.meeting.nodes,
        "host": socket.gethostname(),
        "name": name,
    }


def reported_lines(plan: LaunchPlan, met: Met) -> Iterator[Line]:
    yield from _name_lines(plan, met)
    yield from clock_lines(plan, met)


def _name_lines(plan: LaunchPlan, met: Met) -> Iterator[Line]:
    """Of torchrun's c10d rendezvous, whose rank 0 gives the ranks its own name as MASTER_ADDR, whatever the
    endpoint was.

    torch 2.13, elastic/rendezvous/dynamic_rendezvous.py and api.py: `local_addr or socket.getfqdn()`.
    """
    if plan.meeting.backend != "c10d" or not met.name:
        return
    addresses, why = resolve(met.name, plan.meeting.port, _RESOLVE_SECONDS)
    if not addresses:
        yield line("rendezvous.unusable-name", met=met, wrong=f"does not resolve here: {why}")
    elif any(map(is_own, addresses)):
        wrong = f"resolves to {', '.join(addresses)} here, to this machine's own address"
        yield line("rendezvous.unusable-name", met=met, wrong=wrong)


def clock_lines(plan: LaunchPlan, met: Met) -> Iterator[Line]:
    """None for a difference smaller than the exchange's own uncertainty."""
    if met.ahead_seconds is None:
        return
    off = abs(met.ahead_seconds)
    least, host = off - met.unsure_seconds, met.host or met.seen_as
    who = host if met.node_rank is None else f"node {met.node_rank} ({host})"
    if least <= _SKEW_SECONDS:
        yield line("rendezvous.clock-agrees", who=who, within=format_seconds(off + met.unsure_seconds))
        return
    way = "ahead of" if met.ahead_seconds > 0 else "behind"
    dead = plan.meeting.backend == "c10d" and least > _C10D_SECONDS
    said = f"the clock of {who} is {format_seconds(off)} {way} this node's"
    yield line(f"rendezvous.clock-{'c10d' if dead else 'differs'}", said=said)


def is_translated(met: Met, seen_as: str) -> bool:
    """Whether something between the two nodes gives it another address. A node that did not report its own is
    not judged."""
    return bool(met.own) and met.own.partition("%")[0] != seen_as.partition("%")[0]


def absent(plan: LaunchPlan, came: Sequence[Met]) -> str:
    """ ": node 2 (gpu3)": the nodes that did not come, with their names where the engine has them; "" where a rank is not known."""
    ranks = {met.node_rank for met in came}
    nodes = plan.meeting.nodes
    missing = [rank for rank in range(1, nodes) if rank not in ranks]
    if plan.meeting.node_rank is None or len(missing) != nodes - 1 - len(came):
        return ""
    hosts = nodes_of(plan.command.line, plan.environment).hosts
    named = [
        f"node {rank} ({hosts[rank]})" if len(hosts) == nodes else f"node {rank}"
        for rank in missing[:_MOST_NAMED]
    ]
    more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
    return f": {', '.join(named)}{more}"
