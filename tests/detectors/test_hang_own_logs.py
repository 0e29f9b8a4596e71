"""What a rank wrote into a log of its own before it stood still is quoted where nobody is left that would end its wait, and
only where it tells of a failure."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from diag.model import Finding
from diag.model.observations import LastLines
from diag.model.observations.waits import Party, Wait
from tests.detectors.test_hang_endless_waits import GET, Job
from tests.facts import TRAIN, Story

NEXT = (*TRAIN, "Prefetcher.next /app/reader.py:33", *GET)
SAID = "12:00:01 up upload: 403 QuotaExceeded: step160.pt"


@dataclass
class Logged(Job):
    lines: tuple[str, ...] = ()
    ago: float = 9.0

    def begun(self, story: Story) -> None:
        story.tell(LastLines(1, "rank1.log", self.lines, story.now - self.ago))


def told(*lines: str, ago: float = 9.0) -> Finding:
    return Logged(NEXT, left=("prefetch",), lines=lines, ago=ago).told()


def test_last_line_that_tells_of_a_failure_is_quoted_with_its_time() -> None:
    hang = told("12:00:00 up uploaded step140.pt", SAID)

    assert hang.cause == "nobody_puts"
    assert (
        f'it wrote into rank1.log: "{SAID}", ' in hang.summary and "before it stopped moving" in hang.summary
    )
    assert any(one.kind == "output" and SAID in one.excerpt for one in hang.evidence)


def test_line_that_others_follow_has_no_time() -> None:
    hang = told("ERROR upload: disk full", "12:00:02 loss 1.5")

    assert 'it wrote into rank1.log: "ERROR upload: disk full"' in hang.summary
    assert 'disk full", ' not in hang.summary


@pytest.mark.parametrize(
    ("line", "ago"),
    [("12:00:01 step 400 loss 1.5", 9.0), ("12:00:01 uploaded step160.pt", 9.0), (SAID, 900.0)],
)
def test_line_of_no_failure_and_one_of_long_before_are_not_quoted(line: str, ago: float) -> None:
    assert "it wrote into" not in told(line, ago=ago).summary


# -- of who is in a call that does not come back, and of processes that are no ranks

SERVE = (*TRAIN, "serve /app/actor.py:37", "recv /usr/lib/python3.11/multiprocessing/connection.py:395")
# As logging writes it, of an actor that refused (b14 of the eleventh round of first sight).
REFUSED = (
    "ERROR:actor:update_weights",
    "Traceback (most recent call last):",
    '  File "/app/actor.py", line 44, in serve',
    "    update_weights(policy, arg, group)",
    '  File "/app/actor.py", line 28, in update_weights',
    '    raise KeyError(f"no parameter {name!r}")',
    "KeyError: \"no parameter 'module.0.weight'\"",
)
SERVER = 91_000
ASKS = Wait("unix_receive", "recvfrom", 19, others=(Party(SERVER, 0, "python server.py", 5),))


@dataclass
class Served(Logged):
    """Rank 1 waits for the next word of a process; `shared`: rank 0 has the same file."""

    shared: bool = False
    helper: tuple[str, ...] = ()

    def begun(self, story: Story) -> None:
        for rank in (1, 0)[: 1 + self.shared]:
            story.tell(LastLines(rank, "actor.log", self.lines, story.now - self.ago))
        if self.helper:
            story.tell(LastLines(1, "server.log", self.helper, story.now - self.ago, SERVER))


@pytest.mark.parametrize("shared", [False, True])
def test_last_error_of_a_rank_that_waits_is_quoted_with_the_line_that_raised_it(shared: bool) -> None:
    found = Served(SERVE, wait=ASKS, lines=REFUSED, shared=shared).told()

    assert (
        'it wrote into actor.log: "KeyError: "no parameter \'module.0.weight\'"", raised in update_weights (/app/actor.py:28), '
        in found.summary
    )
    assert found.advice.startswith("Begin with the error quoted: it is the last that was written there")


@pytest.mark.parametrize(
    "job",
    [
        Served(SERVE, wait=ASKS, lines=(*REFUSED, "INFO:actor:generate")),  # it went on
        Served(SERVE, wait=ASKS, lines=("INFO:actor:generate",)),
        Served(SERVE, wait=ASKS, lines=REFUSED, ago=-30.0),  # written since
        Served(SERVE, wait=ASKS, lines=REFUSED, ago=900.0),
        Served(SERVE, wait=ASKS, lines=REFUSED[-1:], shared=True),  # whose it is, is not known
        Served((*TRAIN, "ask /app/net.py:12"), wait=ASKS, lines=REFUSED, shared=True),  # not this rank's
    ],
)
def test_error_that_was_not_its_last_word_is_not_quoted(job: Served) -> None:
    found = job.told()

    assert "it wrote into" not in found.summary and "Begin with" not in found.advice


def test_last_error_of_the_process_that_is_waited_for_is_quoted() -> None:
    helper = ("serving", "ERROR out of slots: request 71 dropped")
    found = Served(SERVE, wait=ASKS, helper=helper).told()

    said = f'pid {SERVER} wrote into server.log: "ERROR out of slots: request 71 dropped", '
    assert said in found.summary and "before the rank stopped moving" in found.summary


def test_line_of_no_failure_of_that_process_is_not() -> None:
    assert "server.log" not in Served(SERVE, wait=ASKS, helper=("served request 70",)).told().summary
