"""What is asked of a suspected rank: what its threads wait for, and what its flight recorder says of its collectives."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from diag.agent.samplers.rank_context import RankContext, RankSampler
from diag.launch.runs import start_ticks
from diag.model import Payload, Record
from diag.model.observations.waits import WaitsRead
from diag.sources import waits
from diag.sources.collectives import flight_recorder
from diag.sources.host import run as run_source
from diag.sources.host.process_tree import read_process
from diag.state.wait_chain import follow

_CALM_SECONDS = 3600.0  # a suspicion wakes it
_FIRST_SECONDS = 5.0  # what lasts is read again before it is reported
_LONGEST_SECONDS = (
    30.0  # a reading costs 10 ms of CPU for a torch rank, 120 where a lock has to be looked for
)
_GROWTH = 1.5
_OVER_SECONDS = 0.5  # between the two halves of a reading


class WaitSampler(RankSampler):
    """When the suspicion begins, soon again, then more and more seldom."""

    name = what = "waits"
    sources = (waits.SOURCE,)
    woken_by = ("closer",)

    def __init__(self, rank: RankContext) -> None:
        super().__init__(rank)
        self._reader = waits.WaitReader(rank.pid)
        self._lock = threading.Lock()
        self._read_at = -_FIRST_SECONDS
        self._pause = self._wait = _FIRST_SECONDS

    def sample(self) -> None:
        if not self.rank.closer:
            self._pause, self._wait = _FIRST_SECONDS, _CALM_SECONDS
            return
        since = time.monotonic() - self._read_at
        if since < _FIRST_SECONDS:  # suspicions that come and go
            self._wait = _FIRST_SECONDS - since
            return
        self.read_waits()
        self._read_at = time.monotonic()
        self._wait, self._pause = self._pause, min(_LONGEST_SECONDS, self._pause * _GROWTH)

    def period(self, cpu: float, wall: float) -> float:
        return self._wait

    def read_waits(self, over_seconds: float = _OVER_SECONDS) -> str:
        """Returns why there is no reading, empty when there is."""
        if not self._lock.acquire(timeout=1.0):
            return "an earlier reading has not come back from the kernel"
        try:
            with self.rank.stops.reading():
                began, marks = time.monotonic(), self.rank.pauses.marks
                payload = self._reader.sample(
                    over_seconds, self.rank.gone.wait, other_ranks=self.rank.other_ranks
                )
            if self.rank.pauses.marks != marks:
                return "another diag paused the process meanwhile"
            if not payload["processes"]:
                return "the process is gone"
            self.rank.strangers = tuple(
                (int(pid), ticks)
                for pid, row in payload["processes"].items()
                if not row["job"] and int(pid) not in self.rank.other_ranks and (ticks := start_ticks(pid))
            )
            self.rank.awaited = _awaited(payload)
            self.reporter.record(waits.SOURCE, payload, time.monotonic() - began)
            return ""
        finally:
            self._lock.release()


def _awaited(payload: Payload) -> frozenset[int]:
    """The processes for which the main thread waits, and for which those wait in turn."""
    record = Record(waits.SOURCE, payload)
    read = next((fact for fact in waits.parse(record) if isinstance(fact, WaitsRead)), None)
    chain = follow(read, read.pid) if read is not None else None
    if chain is None:
        return frozenset()
    last = chain.last.wait.pids
    return frozenset((*(step.process.pid for step in chain.steps), *last))


# Ours, in a suspicion: to the next question after each answer, and from then on. They end shortly before most of what lasts
# is first reported (30 s): calls that were made since the last answer are otherwise taken for none.
_AGAIN_SECONDS, _LATER_SECONDS = (5.0, 10.0, 10.0), 30.0
_ANSWER_SECONDS = 3.0  # then it is said that the answer is late
_GIVEN_UP_SECONDS = 600.0  # ours: on a crowded machine an answer may take a minute
_PIPE_SECONDS = 10.0  # twice what the dump of torch's pipe took on an H200 machine
# Looks while the job moves. Ours: 0.1 % of a core a rank on average, the rank's own threads counted, and half a second
# beforehand: what does not fit is mostly there in the first steps. A mismatch is told within minutes where the ring
# would hold hours.
_LOOK_RATIO, _LOOK_CREDIT_SECONDS = 0.001, 0.5
_RING_SHARE = 0.8  # of the time that the ring holds: the next look still has the last one's newest calls
_FIRST_LOOK_SECONDS, _LONGEST_LOOK_SECONDS, _DEAREST_LOOK_SECONDS = 16.0, 512.0, 4096.0
_LONGEST_SOCKET_FOLDER = 80  # a UNIX socket's path has 107 characters, and w.<pid>.sock needs up to 17
_LATE: Payload = {"failed": "timed_out"}


class _Question(threading.Thread):
    """One question to the recorder, whose answer is taken whenever it comes."""

    def __init__(self, answer: Callable[[], str]) -> None:
        super().__init__(name="question", daemon=True)
        self._answer, self._began = answer, time.monotonic()
        self.done = threading.Event()
        self.why = ""  # there is nothing

    def run(self) -> None:
        try:
            self.why = self._answer()
        except Exception as error:  # the outermost frame of a thread: whoever waits is told
            self.why = f"bug in diag: {type(error).__name__}: {error}"
        self.done.set()

    @property
    def is_late(self) -> bool:
        return not self.done.is_set() and time.monotonic() - self._began > _ANSWER_SECONDS


class CollectivesSampler(RankSampler):
    """Under suspicion soon again, since one reading cannot tell a hang from a rank one call behind, once more before it is
    reported, then seldom. One question at a time: each takes a thread of the rank's server until that answers, whether
    anybody still waits for it or not. So none is asked anew because the first answer is late.

    While the job moves, a rank whose server listens is looked at now and then: of calls that do not fit together and
    that NCCL lets pass nothing else tells."""

    name = what = "flight_recorder"
    sources = (flight_recorder.SOURCE,)
    woken_by = ("closer",)

    def __init__(self, rank: RankContext) -> None:
        super().__init__(rank)
        self._lock = threading.Lock()
        self._question: _Question | None = None
        self._by_pipe = False
        self._answered = 0  # so many, in this suspicion
        self._refused = False  # a look was not answered in time: none more
        self._calls: object = None  # of the last answer
        self._lines: Payload | None = (
            None  # the same with the lines that made them; None where they were not given
        )
        self._asked_for_lines = False
        self._took, self._credit = 0.0, _LOOK_CREDIT_SECONDS
        self._look_seconds = _FIRST_LOOK_SECONDS
        self._look_at = next_look(time.time(), self._look_seconds)

    @property
    def is_there(self) -> bool:
        """False without torch, or before it is initialised: then nothing is missing."""
        rank = self.rank
        return rank.run_dir is not None and flight_recorder.reachable(rank.number, rank.pid, rank.run_dir)

    @property
    def is_late(self) -> bool:
        """An earlier question is still not answered."""
        return self._question is not None and self._question.is_late

    def sample(self) -> None:
        if not self.rank.closer:
            self._answered = 0
            if time.time() >= self._look_at:
                self._look()
        # each question is a line in the job's log
        elif not (self._by_pipe and self._answered >= 2):
            self.ask(_ANSWER_SECONDS, _PIPE_SECONDS)
            if self.is_late:
                self.reporter.failed(self.what, *flight_recorder.explain(_LATE))

    def period(self, cpu: float, wall: float) -> float:
        if not self.rank.closer:
            # not longer, where the clock was set back
            return wall + min(max(0.0, self._look_at - time.time()), self._look_seconds)
        asked = max(0, self._answered - 1)
        return wall + (_AGAIN_SECONDS[asked] if asked < len(_AGAIN_SECONDS) else _LATER_SECONDS)

    def _look(self) -> None:
        rank, reporter = self.rank, self.reporter
        if (
            rank.run_dir is not None
            and not self._refused
            and (self._question is None or self._question.done.is_set())
            and flight_recorder.has_server(rank.pid, rank.run_dir)
            and (process := read_process(rank.pid)) is not None
            and process.state not in "Tt"  # stopped: it would answer when it goes on, too late
        ):
            began = time.monotonic()
            reporter.record(run_source.SOURCE, {"event": "asked"})
            payload = flight_recorder.look(rank.pid, rank.run_dir, _ANSWER_SECONDS)
            # The rank's thread that answers and this one work by turns: both together take no more CPU than that.
            took = time.monotonic() - began
            self._credit -= took
            self._took = (self._took + took) / 2 if self._took else took
            self._look_seconds = look_seconds(self._took, payload.get("ring_seconds"), free=self._credit > 0)
            if "failed" not in payload:
                reporter.record(flight_recorder.SOURCE, payload, took)
            elif payload["failed"] == "timed_out":
                self._refused = True
                reporter.erred(flight_recorder.SOURCE, "timed_out")
                reporter.failed(
                    "whether all collectives fit together",
                    "the rank's worker server did not answer in time, and is not asked again while the job moves",
                )
        self._look_at = next_look(time.time(), self._look_seconds)

    def ask(self, seconds: float, pipe_seconds: float) -> str:
        """Ask torch's worker server of this rank, or its pipe where it has no server, unless an answer is still due.
        Returns why there is none by then, empty when there is."""
        rank = self.rank
        if rank.run_dir is None:
            return ""
        with self._lock:
            question = self._question
            if question is None or question.done.is_set():
                question = _Question(self._ask)
                try:
                    question.start()
                except RuntimeError as error:  # there are no more threads
                    return str(error)
                self._question = question
        by_pipe = self._by_pipe or not flight_recorder.socket_path(rank.pid, rank.run_dir).exists()
        if question.done.wait(pipe_seconds if by_pipe else seconds):
            return question.why
        self.reporter.erred(flight_recorder.SOURCE, "timed_out")
        return _explained(_LATE)

    def _ask(self) -> str:
        rank, reporter = self.rank, self.reporter
        assert rank.run_dir is not None
        began = time.monotonic()
        if self.is_there:
            reporter.record(run_source.SOURCE, {"event": "asked"})
        payload = flight_recorder.read(
            rank.number, rank.pid, rank.run_dir, _GIVEN_UP_SECONDS, pipe_deadline=_GIVEN_UP_SECONDS
        )
        self._by_pipe = payload.get("how") == "pipe"
        self._answered += self.rank.closer
        why = payload.get("failed")
        if why is None:
            reporter.record(flight_recorder.SOURCE, payload, time.monotonic() - began)
            reporter.works(self.what)
            self._add_lines(payload, rank.run_dir)
            return ""
        reporter.erred(flight_recorder.SOURCE, why)
        if why == "no_socket" and len(str(rank.run_dir)) > _LONGEST_SOCKET_FOLDER:
            reporter.failed(
                self.what,
                "the path of the run directory is too long for a UNIX socket",
                "choose a shorter place with --run-root DIR",
            )
        return "" if why in ("gone", "no_socket") else _explained(payload)

    def _add_lines(self, payload: Payload, run_dir: Path) -> None:
        """Once nothing was called between two answers: the rank's own thread gives them, for which it takes the GIL."""
        calls, before = payload.get("calls"), self._calls
        self._calls = calls
        if not calls or calls != before:
            self._asked_for_lines, self._lines = False, None
            return
        began = time.monotonic()
        if not self._asked_for_lines and not self._by_pipe:
            self._asked_for_lines = True
            self._lines = flight_recorder.look_with_lines(self.rank.pid, run_dir)
        if self._lines is not None:
            self.reporter.record(flight_recorder.SOURCE, self._lines, time.monotonic() - began)


def _explained(payload: Payload) -> str:
    return ": ".join(filter(None, flight_recorder.explain(payload)))


def look_seconds(took: float, ring_seconds: float | None, *, free: bool = False) -> float:
    """From one look to the next. Such looks took so much; the ring holds the calls of so many seconds; `free`: it may cost
    more than its share.

    Doubled from 16 s, so that ranks whose looks cost unlike much still look at one time.
    """
    needed = max(_FIRST_LOOK_SECONDS, min(_LONGEST_LOOK_SECONDS, (ring_seconds or 0.0) * _RING_SHARE))
    least = 0.0 if free else took / _LOOK_RATIO
    found = _FIRST_LOOK_SECONDS
    while found < _DEAREST_LOOK_SECONDS and (found < least or 2 * found <= needed):
        found *= 2
    return found


def next_look(now: float, seconds: float) -> float:
    """By the clock of the host: the ranks' rings have the same calls only when they are read at the same time."""
    return (now // seconds + 1) * seconds
