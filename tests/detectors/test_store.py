"""A store that cannot be reached is named while launchers and ranks still try, and is over when the
connection comes."""

from __future__ import annotations

import pytest

from diag.detectors import make_detectors
from diag.detectors.precedence import PRECEDENCE
from diag.engine.engine import Engine
from diag.model import Confidence, Finding, Record, Severity
from diag.model.observations import Interrupted, Iteration, RunEnded, RunStarted
from diag.sources.collectives import store
from diag.sources.logs.line_facts import read_text
from diag.sources.parsers import PARSERS
from tests.facts import Story

# torch 2.13.0, torchrun with an address without a route, 2026-11-23: when each line came, its delay
NO_ROUTE = (
    "[W1123 00:19:{:02}.189396703 TCPStore.cpp:340] [c10d] TCP client failed to connect/validate to host 10.9.9.9:29500 - "
    "retrying (try={}, timeout=900000ms, delay={}ms): The client socket has failed to connect to any network address of "
    "(10.9.9.9, 29500). The client socket has failed to connect to 94.85.0.0:1529 (errno: 101 - Network is unreachable)."
)
TRIED = ((0.7, 412), (1.1, 783), (1.9, 760), (2.7, 1366), (4.1, 1795), (6, 3300), (9.4, 4100), (13.6, 9000), (22.7, 11500),
         (34.3, 18344), (53.6, 22638), (76, 32325))  # fmt: skip
# torch 2.4.1 and 2.13.0, socket.cpp, each second
UNKNOWN = (
    "[W1121 23:29:34.025284904 socket.cpp:697] [c10d] The IPv6 network addresses of (trainer-0.train-svc, 29500) cannot be "
    "retrieved (gai error: -2 - Name or service not known)."
)
# torch 1.13, socket.cpp, each second
OLD = "[W socket.cpp:558] [c10d] The client socket has failed to connect to [trainer-0]:29500 (errno: 111 - Connection refused)."
PLACE = ("10.9.9.9", 29500, 1)


class Launch:
    """A job whose launcher waits: no rank is there yet."""

    def __init__(self) -> None:
        self.engine = Engine(PARSERS, make_detectors(), PRECEDENCE)
        self.now = 1000.0
        self.engine.advance(self.now)
        self.engine._dispatch(RunStarted(None, ("torchrun", "--nnodes", "2", "train.py"), 999, "node-1", 0))

    def until(self, second: float) -> None:
        self.now = 1000.0 + second
        self.engine.advance(self.now)

    def prints(self, line: str) -> None:
        for fact in read_text(line, "stderr", None):
            self.engine._dispatch(fact)

    def looked(self, *, pending: bool = False, over: bool = False, rank: int | None = None) -> None:
        told = store.payload(41, PLACE, pending=pending, over=over)
        self.engine.feed(Record(store.SOURCE, told, rank=rank, host="node-1", at=self.now))

    def found(self) -> list[Finding]:
        return [
            one for one in self.engine.active() if one.id in ("rendezvous-failure", "hostname-resolution")
        ]


def tries(launch: Launch, last: float) -> None:
    for number, (second, delay) in enumerate(TRIED):
        if second <= last:
            launch.until(second)
            launch.prints(NO_ROUTE.format(int(second) % 60, number, delay))
    launch.until(last)


def test_launcher_that_cannot_reach_the_store_is_named_after_40_seconds_with_the_reason() -> None:
    launch = Launch()

    tries(launch, 30)
    early = launch.found()
    tries(launch, 45)

    (found,) = launch.found()
    assert early == []
    assert (found.id, found.cause, found.severity, found.confidence) == (
        "rendezvous-failure",
        "no_route",
        Severity.WARNING,
        Confidence.HIGH,
    )
    assert "the launcher has been trying to reach 10.9.9.9:29500 for 4" in found.summary
    assert "Network is unreachable" in found.summary and "attempts in its log" in found.summary
    assert "ip route get 10.9.9.9" in found.advice


def test_it_is_grave_after_a_while_and_stays_when_the_job_ends_of_it() -> None:
    launch = Launch()
    tries(launch, 100)
    (grave,) = launch.found()

    launch.engine._dispatch(RunEnded(None, 1))
    launch.until(130)

    (ended,) = launch.found()
    assert grave.severity is ended.severity is Severity.CRITICAL and ended.final


def test_tries_that_stop_since_the_connection_came_are_over() -> None:
    launch = Launch()
    tries(launch, 45)
    opened = launch.found()

    launch.until(34.3 + 18.4 + 11)

    assert opened and launch.found() == []


def test_node_0_that_comes_after_20_seconds_raises_nothing() -> None:
    launch = Launch()

    for second in range(1, 20):
        launch.until(second)
        launch.prints(UNKNOWN)
        launch.prints(OLD)
    launch.until(300)

    assert launch.found() == [] and launch.engine.over() == []


def test_launcher_that_prints_nothing_of_refused_tries_is_known_by_its_stack_and_its_sockets() -> None:
    """torch 2.13 is silent for 900 s while it is refused."""
    launch = Launch()
    for second in range(5, 50, 5):
        launch.until(second)
        launch.looked()
    launch.until(51)

    (found,) = launch.found()
    assert (found.cause, found.confidence) == ("refused", Confidence.MEDIUM)
    assert "the launcher of node 1 has been trying to reach 10.9.9.9:29500 for 4" in found.summary
    assert "ss -ltn 'sport = :29500'" in found.advice


def test_connection_that_the_kernel_gets_no_answer_for_is_told_so() -> None:
    launch = Launch()
    for second in range(5, 50, 5):
        launch.until(second)
        launch.looked(pending=True)

    (found,) = launch.found()
    assert (found.cause, found.confidence) == ("no_answer", Confidence.HIGH)
    assert "firewall" in found.advice and "SYN_SENT" in found.evidence[0].excerpt


def test_connection_that_came_ends_it_at_once() -> None:
    launch = Launch()
    for second in range(5, 50, 5):
        launch.until(second)
        launch.looked()
    launch.until(51)
    opened = launch.found()

    launch.looked(over=True)
    launch.until(53)

    assert opened and launch.found() == []


@pytest.mark.parametrize(
    ("line", "finding", "cause"),
    [
        (UNKNOWN, "hostname-resolution", "gai_error"),
        (OLD, "rendezvous-failure", "refused"),
    ],
)
def test_lines_that_come_each_second_are_one_wait(line: str, finding: str, cause: str) -> None:
    launch = Launch()
    for second in range(1, 50):
        launch.until(second)
        launch.prints(line)

    (found,) = launch.found()
    assert (found.id, found.cause) == (finding, cause)
    assert "(4" in found.summary and "attempts in its log)" in found.summary


def test_line_of_a_try_in_a_job_that_trains_is_nothing() -> None:
    launch = Launch()
    launch.engine._dispatch(Iteration(None, 3, 100, "3/100"))
    tries(launch, 60)

    assert launch.found() == []


def test_job_that_somebody_ends_meanwhile_keeps_the_finding() -> None:
    launch = Launch()
    tries(launch, 45)
    launch.engine._dispatch(Interrupted(None, 2))
    launch.engine._dispatch(RunEnded(None, 130))
    launch.until(120)

    assert [one.cause for one in launch.found()] == ["no_route"]


def test_rank_that_tried_in_vain_is_named_and_its_death_refers_to_it() -> None:
    story = Story()
    error = (
        "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to "
        "(10.9.9.9, 29500)."
    )
    story.tell(
        *store.parse(Record(store.SOURCE, store.payload(1001, PLACE, pending=False, over=False), rank=1))
    )
    for _ in range(12):
        story.wait(5)
        story.tell(
            *store.parse(Record(store.SOURCE, store.payload(1001, PLACE, pending=False, over=False), rank=1))
        )
    for line in (
        "Traceback (most recent call last):",
        '  File "/app/t.py", line 3, in <module>',
        "    init()",
        error,
    ):
        story.tell(*read_text(f"[rank1]: {line}", "stderr", None))
    story.exit(1, code=1)
    story.wait(0.5)
    story.exit(0, signal=15)
    story.tell(RunEnded(None, 1))
    story.wait(5)

    found, died = story.the("rendezvous-failure"), story.the("rank-died")
    assert (
        found.ranks == (1,)
        and not found.rule
        and "rank 1 has been trying to reach 10.9.9.9:29500" in found.summary
    )
    assert "See finding rendezvous-failure for why rank 1 failed" in died.advice
    assert [one.id for one in story.findings()].count("rendezvous-failure") == 1
