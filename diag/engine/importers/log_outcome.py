"""How the logs of a job end, as their facts show in one pass: which ranks died and of what, whether the job came
to its end, or where it stops.

A log has no exit codes. An uncaught traceback that no progress follows, and what launchers say,
stand for them.
"""

from __future__ import annotations

import re
import signal
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import replace

from diag.engine.importers.outcome_forms import (
    ASKED,
    DONE,
    DONE_WORDS,
    LAUNCHERS,
    OF_STARTERS,
    OF_THE_JOB,
    ROOT,
    RUN,
    TROUBLE,
    WORLD,
)
from diag.engine.importers.tracebacks import (
    EXCEPTION,
    MORE_LINES,
    MOST_LINES,
    NOT_FATAL,
    TRACEBACK,
    USUAL_LEVELS,
    Raised,
    by_launcher,
    goes_on,
)
from diag.knowledge.log_prefix import message_of, without_outer, without_quote
from diag.knowledge.tracebacks import (
    BY_SCHEDULER,
    CHAIN,
    CRASHED,
    ENDED,
    NOT_ITS_END,
    OF_LAUNCHER,
    PREFIX,
    SIGNALS,
)
from diag.model import Placement, Record
from diag.model.observations import (
    CollectiveTimedOut,
    EpochStarted,
    Iteration,
    LogLine,
    LogsEnded,
    MetricsLogged,
    NcclCommunicator,
    NcclLine,
    Observation,
    PhaseMarked,
    PlainLines,
    QuietLine,
    SaveStarted,
    WorkerFailureReported,
    WorkerNamed,
)
from diag.sources.host import exits
from diag.sources.host import run as run_source
from diag.state.log import lines_of
from diag.text.units import EARLIEST_DATED
from diag.text.words import has_any

_PROGRESS = (Iteration, EpochStarted, SaveStarted, MetricsLogged)
_ANEW = ("launch", "rendezvous", "model_load")
# Phases that tell of a training's end; "exits successfully" and the others of `teardown`.
_ENDED = ("teardown",)
_TROUBLED_LINES = 40
_MOST_RANKS = 1 << 17
_MOST_FILES = 1 << 12
_ERROR_LINES = 8
_MOST_ENDS = 64
_LAST_LINES = 3  # of a process that a launcher reports as failed
_CHECK_SECONDS = 11.0  # a check falls between, however seldom they are


class LogOutcome:
    """Given the facts of all lines in order; `records` are what a watched run would have had behind them."""

    def __init__(self) -> None:
        self.ranks: set[int] = set()
        self.pids: dict[int, int] = {}
        self.world_size = 0
        self.made_for = 0  # ranks of the largest communicator
        self.raised: dict[int | None, Raised] = {}  # the last of each that no progress followed
        self.failed: dict[int, WorkerFailureReported] = {}  # as launchers say
        self.failed_at: dict[int, float] = {}
        self.root: int | None = None
        self.waited_seconds = 0.0  # as the watchdog says
        self.asked_recorder = False
        self.launcher = ""
        self.ended_well = False
        self._said_done = False  # and no progress followed
        self._untroubled = _TROUBLED_LINES  # lines since one that shows trouble
        self.broken = False  # the launcher itself failed
        self.launchers_own: Raised | None = None  # of its own, for no worker's sake
        self.first_at: float | None = None
        self.last_at = 0.0
        self._streams: set[str] = set()
        self.moved_at: float | None = None
        self._iteration: int | None = None
        self._named: int | None = None
        self._is_root = False
        self._open: dict[int | None, Raised] = {}
        self._before = ""
        self._unnamed: list[tuple[float, WorkerFailureReported]] = []
        self._made: set[int] = set()  # communicators of these pids were created, and destroyed in order
        self._destroyed: set[int] = set()
        self._by_scheduler = False  # it said that it ended the job, and no progress followed
        self._parts = False  # a launcher numbered the processes or tasks whose lines these are
        self._crash: Raised | None = None  # a handler's word of the first process that crashed
        self._said: dict[int | None, deque[str]] = {}  # the last lines of each part
        self._heard: dict[int, list[str]] = {}  # of a rank, as a launcher reported its end
        self._ends: Counter[str] = Counter()  # exceptions of processes that are not named

    # -- observing ---------------------------------------------------------------------------------------

    def observe(self, at: float, fact: Observation) -> None:
        kind = type(fact)
        if kind is LogLine or kind is QuietLine:
            self._line(at, fact)  # type: ignore[arg-type]
        elif kind is PlainLines:
            self._run(at, fact)  # type: ignore[arg-type]
        elif isinstance(fact, _PROGRESS):
            self._progressed(at, fact)
        elif isinstance(fact, PhaseMarked):
            self._phase(at, fact)
        elif isinstance(fact, WorkerNamed):
            self._named = fact.rank
        elif isinstance(fact, WorkerFailureReported):
            self._worker_failed(at, fact)
        elif isinstance(fact, CollectiveTimedOut):
            self.waited_seconds = max(self.waited_seconds, fact.seconds)
        elif isinstance(fact, NcclLine):
            if fact.rank is not None and fact.pid:
                self.pids.setdefault(fact.rank, fact.pid)
        elif isinstance(fact, NcclCommunicator) and fact.stage != "topology":
            self._communicator(fact)

    def _line(self, at: float, line: LogLine) -> None:
        text, who = line.text, line.rank
        if self.first_at is None or self.first_at < EARLIEST_DATED <= at:
            self.first_at = at  # what comes before the first date is only counted
        self.last_at = at
        if line.stream not in self._streams and len(self._streams) < _MOST_FILES:
            self._streams.add(line.stream)
        if line.bar:
            return
        if who is not None and who < _MOST_RANKS:
            self.ranks.add(who)
        self._parts |= line.part is not None
        if text:
            self._say(line.part, text)
        if self._open and who in self._open:
            self._continue(self._open[who], who, text)
        elif who is None and None in self.raised and goes_on(text):
            self.raised[None].caught = True
        if isinstance(line, QuietLine) and not OF_THE_JOB.may_be_in(line.shape):
            self._untroubled += 1  # no trouble is in it
            self._before = text or self._before
            return
        if "Traceback" in text and TRACEBACK.match(text) and not NOT_ITS_END.search(self._before):
            self._traceback(at, text, who)
        elif text[:1] in "FtKSBA[>-*" or ": line " in text:
            self._native(at, without_quote(text), who)
        self._of_the_job(text)
        self._untroubled = 0 if TROUBLE.search(text[:400]) else self._untroubled + 1
        if len(text) < 300 and has_any(text, DONE_WORDS) and self._untroubled > _TROUBLED_LINES:
            self._said_done |= DONE.match(message_of(without_outer(text)).text) is not None
        self._before = text or self._before

    def _run(self, at: float, run: PlainLines) -> None:
        waits = run.rank is None and None in self.raised and not self.raised[None].caught
        if run.rank in self._open or (waits and has_any(run.text, USUAL_LEVELS)):
            for line in lines_of(run):
                self._line(at, line)
            return
        last = replace(run, text="\n".join(run.text.rsplit("\n", _LAST_LINES)[-_LAST_LINES:]))
        for line in lines_of(last):
            self._line(at, line)
        self._untroubled += max(0, run.count - _LAST_LINES)

    def _say(self, part: int | None, text: str) -> None:
        said = self._said.get(part)
        if said is None:
            if len(self._said) >= _MOST_RANKS:
                return
            said = self._said[part] = deque(maxlen=_LAST_LINES)
        said.append(text)

    def _of_the_job(self, text: str) -> None:
        if "world_size" in text and (match := WORLD.search(text)):
            self.world_size = max(self.world_size, int(match[1]))
        elif ROOT in text:
            self._is_root = True
        elif ASKED in text:
            self.asked_recorder = True
        elif '"run_st' in text and (match := RUN.search(text)):
            self.ended_well = match[1] == "op" and '"status": "success"' in text
        elif (" CANCELLED AT " in text or "job killed" in text) and BY_SCHEDULER.search(text):
            self._by_scheduler = True
        if not self.launcher:
            for name, marks in LAUNCHERS:
                if has_any(text, marks):
                    self.launcher = name
                    break

    def _traceback(self, at: float, text: str, who: int | None) -> None:
        raised = self._open.get(who)
        if raised is None or CHAIN not in "".join(list(raised.lines)[-4:]):
            raised = Raised(at, chained=CHAIN in self._before)
        raised.exception, raised.more = "", MORE_LINES
        if not raised.lines or raised.lines[-1] is not text:  # of a chain it was taken as one of its lines
            raised.lines.append(text)
        self._open[who] = raised

    def _continue(self, raised: Raised, who: int | None, text: str) -> None:
        message = PREFIX.sub("", text, count=1)
        if raised.exception:
            raised.more -= CHAIN not in message
            if raised.more < 0 or (who is not None and not text.startswith("[rank")):
                del self._open[who]
                return
        elif (
            message[:1].strip()
            and CHAIN not in message
            and EXCEPTION.match(message)
            and not message.startswith("Traceback")
        ):
            raised.exception = message
            if who is None and len(self._ends) < _MOST_ENDS:
                self._ends[message] += 1
            # somebody ended it, as by Ctrl-C
            raised.signal = signal.SIGINT if message.startswith("KeyboardInterrupt") else 0
            if message.strip() in NOT_FATAL:
                del self._open[who]
            elif raised.by_launcher:
                self.broken = True
                # the first of a chain has no frame of the launcher's
                if raised.chained or self.raised.get(who) is raised:
                    self.raised.pop(who, None)
                if not any(name in message for name in OF_LAUNCHER):
                    self.launchers_own = raised
            else:
                self.raised[who] = raised
        raised.lines.append(text)

    def _native(self, at: float, text: str, who: int | None) -> None:
        match = ENDED.match(text[:1000])
        if match is None and text[:1] == "[" and self._crash is None and CRASHED.match(text[:400]):
            self._crash = Raised(at, deque([text], MOST_LINES), text)
        if match:
            signal = 6 if match[2] else SIGNALS[match[1] or match[3]]
            raised = self.raised.get(who) if match[2] is None else None
            if raised is not None and raised.exception and not raised.signal and match[3] == "Killed":
                return  # the shell reports the others that the launcher killed
            self.raised[who] = Raised(at, deque([text], MOST_LINES), text, 0, signal)
            if match[2]:  # what() stands below it
                self.raised[who].more = 1
                self._open[who] = self.raised[who]

    def _progressed(self, at: float, fact: Observation) -> None:
        """What a rank survives is no end. Torch's hook, which names the rank, is for exceptions that end it."""
        if isinstance(fact, Iteration):
            if fact.iteration == self._iteration:
                return  # a bar that is drawn again
            self._iteration = fact.iteration
        self.moved_at, self._by_scheduler, self._said_done = at, False, False
        if isinstance(fact, MetricsLogged):
            # the last line of transformers' Trainer
            self.ended_well = any(name == "train_runtime" for name, _ in fact.metrics)
        elif not isinstance(fact, SaveStarted):  # the model is saved behind the last step
            self.ended_well = False
        self.raised.pop(None, None)
        self._open.pop(None, None)
        self._ends.clear()
        if fact.rank is not None and self.raised:
            self.raised.pop(fact.rank, None)

    def _phase(self, at: float, fact: PhaseMarked) -> None:
        self.moved_at = at
        if fact.phase in _ENDED:
            self.ended_well = not self._uncaught
        elif fact.phase in _ANEW and (self.failed or self._unnamed or self.broken or self.ended_well):
            self._start_over()  # an elastic restart, or the next job in the same file

    def _start_over(self) -> None:
        for kept in (self.raised, self._open, self.failed, self.failed_at, self._unnamed, self._heard):
            kept.clear()
        self._ends.clear()
        self._by_scheduler = False
        self._crash = None
        self.root, self.broken, self.ended_well, self._said_done = None, False, False, False

    def _worker_failed(self, at: float, fact: WorkerFailureReported) -> None:
        number = fact.rank if fact.rank is not None else self._named
        self._named = None
        if number is None or number >= _MOST_RANKS:
            if len(self._unnamed) < 4096:
                self._unnamed.append((at, fact))
            return
        self.failed_at.setdefault(number, at)
        self.failed[number] = fact
        if not fact.pid:  # torchelastic's own log comes between
            said = self._said.get(number if self._parts else None, ())
            own = [line for line in said if not (line.lstrip().startswith(OF_STARTERS) or by_launcher(line))]
            self._heard.setdefault(number, own)
        if fact.pid:
            self.pids[number] = fact.pid
        if self._is_root or self.root is None:
            self.root, self._is_root = number, False

    def _communicator(self, fact: NcclCommunicator) -> None:
        if self.made_for <= fact.size < _MOST_RANKS:  # the largest communicator is the world's
            self.made_for = fact.size
            self.world_size = max(self.world_size, fact.size)
            self.pids[fact.rank if fact.rank is not None else fact.comm_rank] = fact.line.pid
        (self._destroyed if fact.stage == "destroyed" else self._made).add(fact.line.pid)

    # -- reading ------------------------------------------------------------------------------------------

    @property
    def raised_ranks(self) -> set[int]:
        """Whose own log ends with an uncaught exception."""
        return {rank for rank in self.raised if rank is not None}

    @property
    def _uncaught(self) -> bool:
        return any(not raised.caught for raised in self.raised.values())

    @property
    def _suspicious(self) -> bool:
        """The job's own watchdog reported that it hung."""
        return bool(self.waited_seconds or self.asked_recorder)

    @property
    def _is_one_process(self) -> bool:
        """Nothing shows that several print here: no launcher's number before the lines, and no exception that ended two."""
        return bool(self.ranks) or not (self._parts or self._ends.total() > len(self._ends))

    @property
    def finished(self) -> bool:
        if self._uncaught or self.failed or self.broken:
            return False
        said = self._said_done and not (self._by_scheduler or self._suspicious)
        return self.ended_well or self.in_order or said

    @property
    def in_order(self) -> bool:
        """All communicators that were made were destroyed again."""
        return bool(self._made) and self._made <= self._destroyed

    @property
    def may_begin_anew(self) -> bool:
        """Whether the next lines can be of another attempt: of several processes each opens and ends for itself, until
        their launcher ends, which may start them again."""
        if self.ranks or self.launcher:
            return self.broken and bool(self.failed or self._unnamed)
        return True

    # -- what follows ---------------------------------------------------------------------------------------

    def records(self, now: float) -> Iterator[Record]:
        """Ranks, a hang that the watchdog reported, deaths and the end, as records after the last of the logs."""
        yield replace(run_source.logs_ended(self._ended()), at=now)
        at = _after(now)
        died = self._deaths()
        distributed = self.world_size > 1 or bool(self.ranks or self.failed)
        ranks = sorted({*self.ranks, *died})
        world = max([self.world_size, *(rank + 1 for rank in ranks)], default=0)
        # of ranks with gaps between them it is not known how many there are
        whole = ranks == list(range(world))
        told = world if self.world_size or self._suspicious or whole else 0
        for rank in ranks:
            yield replace(self._found(rank, told, distributed=distributed), at=next(at))
        # Of one rank's line alone the others are not known, nor how many there are.
        if self._suspicious and (self.world_size > 1 or len(ranks) > 1):
            yield from self._stands(at, ranks, world)
        for rank, (status, how, ended, last) in died.items():
            payload = {"pid": self.pids.get(rank, 0), "status": status, "how": how, "last": last}
            payload["ended"] = min(ended, now)
            yield replace(Record(exits.SOURCE, payload, rank=rank), at=next(at))
        if died or self.broken or self._uncaught or self.failed:
            yield replace(run_source.ended(1, ""), at=next(at))
        elif self.finished:
            yield replace(run_source.ended(0, ""), at=next(at))
        else:  # behind a check of what the logs show whatever the end was
            unknown = next(at) + _CHECK_SECONDS
            yield replace(run_source.end_unknown(), at=unknown)
            if self._by_scheduler:  # what failed before, it does not tell
                yield replace(run_source.ended(128 + signal.SIGTERM, ""), at=unknown + _CHECK_SECONDS)

    def _ended(self) -> LogsEnded:
        """Times only where the lines have them."""
        timed = self.first_at is not None and self.last_at - self.first_at >= 1.0
        raised = self.launchers_own
        return LogsEnded(
            None,
            tuple(sorted(self._streams)[:64]),
            self.launcher,
            self.first_at if timed else None,
            self.last_at if timed else None,
            self.last_at - self.moved_at if self.moved_at is not None else 0.0,
            self._suspicious,
            tuple(list(raised.lines)[-_ERROR_LINES:]) if raised else (),
            raised.at if raised else 0.0,
            raised.exception[:200] if raised else "",
        )

    def _found(self, rank: int, world: int, *, distributed: bool = True) -> Record:
        place = Placement(rank, rank, world, "", self.pids.get(rank, 0), launcher="log")
        return run_source.rank_found(place, "", {}, distributed=distributed)

    def _stands(self, at: Iterator[float], ranks: list[int], world: int) -> Iterator[Record]:
        for rank in range(
            min(world, 4096)
        ):  # a rank that prints nothing may be the one that the others waited for
            if rank not in ranks:
                yield replace(self._found(rank, world), at=next(at))
        began, silent = next(at), self.waited_seconds or None
        taken = run_source.snapshot("", began, silent, "the watchdog's lines" if silent else "")
        yield replace(taken, at=next(at))
        # The check of the second that follows sees all of the moment, before the deaths that came of it.
        yield replace(taken, at=began + _CHECK_SECONDS)

    def _deaths(self) -> dict[int, tuple[int, str, float, list[str]]]:
        """By rank: raw wait status, who reported it, when, and the last lines where those do not stand under the
        rank's number."""
        found: dict[int, tuple[int, str, float, list[str]]] = {}
        unnamed = self.raised.get(None)
        named = self.raised_ranks
        for rank, fact in self._failures().items():
            raised = self.raised.get(rank)
            if raised is None and not named and rank == self._blamed():
                # torch before 2.4 puts no rank before its traceback: the table names it
                raised = unnamed or (self._crash if fact.exit_code < 0 else None)
            ended = raised.at if raised is not None else self.failed_at.get(rank, self.last_at)
            status = -fact.exit_code if fact.exit_code < 0 else (fact.exit_code & 0xFF) << 8
            last = _lines(raised)
            if raised is None and (self._parts or self.world_size <= 1 >= len(self.failed)):
                last = self._heard.get(rank, [])
            found[rank] = (status, "torchelastic" if fact.pid else "the launcher", ended, last)
        for rank in sorted(named - set(found)):
            how, raised = "the traceback that its log ends with", self.raised[rank]
            found[rank] = (raised.signal or 1 << 8, how, raised.at, _lines(raised))
        alone = not found and self.world_size <= 1 and len(self.ranks) <= 1 and self._is_one_process
        if unnamed is not None and not unnamed.caught and alone:
            rank = next(iter(self.ranks), 0)
            how = "its last lines" if unnamed.signal else "the traceback that the log ends with"
            found[rank] = (unnamed.signal or 1 << 8, how, unnamed.at, _lines(unnamed))
        return found

    def _failures(self) -> dict[int, WorkerFailureReported]:
        """As launchers say; the agent's own line, which has the local rank only, where its table is missing."""
        if self.failed or not self._unnamed:
            return self.failed
        found: dict[int, WorkerFailureReported] = {}
        for at, fact in self._unnamed:
            match = re.search(r"local_rank: (\d{1,6}) ", fact.text)
            if match and len(found) < 64:
                rank = int(match[1])
                found.setdefault(rank, fact)
                self.failed_at.setdefault(rank, at)
                self.pids.setdefault(rank, fact.pid)
        return found

    def _blamed(self) -> int | None:
        own = (rank for rank, fact in self._failures().items() if fact.exit_code not in (-15, -2))
        return next(own, None) if self.root is None else self.root


def _lines(raised: Raised | None) -> list[str]:
    return list(raised.lines) if raised is not None else []


def _after(now: float) -> Iterator[float]:
    while True:
        now += 1e-6
        yield now
