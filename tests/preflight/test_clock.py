"""Clocks of nodes that meet: the real exchange between two network namespaces, one with a clock that is off."""

from __future__ import annotations

import socket
import sys
import threading
import time

import pytest

from diag.preflight.met_nodes import clock_lines
from diag.preflight.plan import make_plan
from diag.preflight.rendezvous_probe import Met, connect, listen
from tests.netlab import Node
from tests.preflight.test_two_nodes import ADDRESSES, PORT, check, doctor, lab, nodes, ranked, report

__all__ = ["lab", "nodes"]  # the fixtures
pytestmark = pytest.mark.xdist_group("namespaces")

# `diag doctor` itself, on a node whose clock is off
OFF = (
    "import json, os, sys, time; from diag.preflight import document; from diag.preflight.network import check_network;"
    "off = float(sys.argv[1]);"
    "print(json.dumps(document(list(check_network(sys.argv[2:], 40.0, clock=lambda: time.time() + off)))))"
)


def meet(first: Node, second: Node, off: float) -> tuple[dict[str, str], dict[str, str]]:
    """What node 0 and node 1 say of the clocks; node 1's is off."""
    here = doctor(first, "--wait", "40", command=ranked(0))
    there = second.start(sys.executable, "-c", OFF, str(off), *ranked(1))
    told = report(there), report(here)
    return check(told[1], "clock"), check(told[0], "clock")


def test_clock_that_is_an_hour_ahead_is_told_on_both_nodes(nodes: tuple[Node, Node]) -> None:
    here, there = meet(*nodes, off=3600.0)

    assert here["status"] == there["status"] == "note"
    assert "the clock of node 1" in here["said"] and "1 h ahead of this node's" in here["said"]
    assert "the clock of node 0" in there["said"] and "1 h behind this node's" in there["said"]
    assert "chronyc makestep" in here["remedy"]


def test_clocks_that_agree_are_ok(nodes: tuple[Node, Node]) -> None:
    here, there = meet(*nodes, off=0.0)

    assert here["status"] == there["status"] == "ok" and "agrees with this one's" in here["said"]


def of_skew(ahead: float | None, unsure: float, *command: str) -> list[tuple[str, str]]:
    plan = make_plan(command or ranked(0), {}, 1.0)
    return [
        (line.status, line.id)
        for line in clock_lines(plan, Met(1, 2, "b", ADDRESSES[1], ADDRESSES[1], "", ahead, unsure))
    ]


def test_skew_that_the_exchange_itself_may_have_made_is_none() -> None:
    assert of_skew(1.4, 0.5) == [("ok", "")]
    assert of_skew(-1.6, 0.5) == [("note", "")]


def test_node_that_did_not_tell_its_clock_is_not_judged() -> None:
    assert of_skew(None, 0.0) == []


def test_skew_that_lets_c10d_take_a_node_for_dead_is_a_problem() -> None:
    c10d = (
        "torchrun",
        "--nnodes",
        "2",
        "--rdzv_backend",
        "c10d",
        "--rdzv_endpoint",
        f"{ADDRESSES[0]}:{PORT}",
        "train.py",
    )

    assert of_skew(20.0, 0.1, *c10d) == [("problem", "rendezvous-failure")]
    assert of_skew(10.0, 0.1, *c10d) == [("note", "")] and of_skew(20.0, 0.1) == [("note", "")]


def test_difference_is_between_the_clocks_at_the_time_of_the_exchange() -> None:
    met: list[Met | None] = []
    with socket.create_server(("127.0.0.1", 0)) as place:
        port = place.getsockname()[1]
        listener = threading.Thread(
            target=lambda: met.extend(listen(place, 20.0, 1, {"node_rank": 0, "nodes": 2}))
        )
        listener.start()
        outcome = connect("127.0.0.1", port, 20.0, {"node_rank": 1, "nodes": 2}, lambda: time.time() - 100.0)
        listener.join()

    assert outcome.met is not None and outcome.met.ahead_seconds is not None
    assert abs(outcome.met.ahead_seconds - 100.0) <= outcome.met.unsure_seconds + 0.01
    (there,) = met
    assert there is not None and there.ahead_seconds is not None
    assert abs(there.ahead_seconds + 100.0) <= there.unsure_seconds + 0.01
