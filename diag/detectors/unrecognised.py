"""What a log says went wrong where no rule knows it: the line that is the root, by the forms in which programs end."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from diag.detectors.contract import Detector
from diag.detectors.echoed_errors import CASCADE
from diag.detectors.last_words import NATIVE
from diag.detectors.remedies import remedy
from diag.detectors.unrecognised_claims import Claim, Open, order, own_frame, same_head
from diag.detectors.unrecognised_forms import (
    CLOSING,
    DIRECT,
    EXITED,
    FAILING,
    FEW_LINES,
    KINDS,
    MAY,
    MISSING,
    NAMED,
    NOBODY_TOOK,
    OF_MODULE,
    RAISED,
    REPR,
    SCHEDULER,
    SIGNALLED,
    SOURCE,
    WARNING_EVENT,
    WRAPPERS,
)
from diag.detectors.unrecognised_words import (
    ADVICE,
    ASKED,
    INTERRUPTED,
    KILLED,
    LONGEST,
    NOT_STARTED,
    NOTHING_ABOVE,
    OF_PEER,
    PEER,
    REPORTED,
    STOOD,
    WARNED,
    WEAK,
    short,
    signal_name,
)
from diag.knowledge.data_samples import SampleTracker, may_begin
from diag.knowledge.log_prefix import Message, message_of
from diag.knowledge.tracebacks import (
    ASKED_TO_END,
    CALL_STACK,
    CHAIN,
    FRAME,
    NOT_ITS_END,
    behind_prefix,
)
from diag.model import JOB, Confidence, Evidence, Finding, Severity
from diag.model.observations import LogLine, PlainLines, QuietLines
from diag.state.log import lines_of
from diag.state.reducer import StepMade
from diag.state.view import JobView

_MOST_CLAIMS, _MOST_RANKS = 64, 4096
_ABOVE = 12
_BELOW = 5
_REPORTED = 12  # lines of a report, or frames of a debugger
_WENT_ON_STEPS = 2  # a peer may report one more step after a rank has raised
_NEAR_END = 3  # lines: what a program says last. Ours.
_STRANGERS = 8  # lines of others that may be between a frame and its exception


class UnrecognisedFailureDetector(Detector):
    """Meaning: the log shows what went wrong in words that no rule knows: an exception, a crash in native code, the
    scheduler's or the driver's line.

    Evidence: the line that is the root, with the frames above it: the exception that others were raised from, of the
    rank that printed one first; what launchers and peers report of it is left out, and what steps followed is
    over.

    What to do: read it; it is the program's own word. The frame named is the last of your own code.

    False alarms: an error that the program printed and went on from without a step in the log. In an excerpt it is
    marked as seen alone.
    """

    name = "unrecognised-failure"
    listens = (LogLine, PlainLines, QuietLines, StepMade)

    def __init__(self) -> None:
        self._claims: list[Claim] = []
        self._open: dict[int | None, Open] = {}
        self._before: dict[int | None, deque[str]] = {}
        self._samples = SampleTracker()
        self._last: Claim | None = None  # whose message may go on
        self._lines = 0
        self._unread: dict[int | None, PlainLines | QuietLines] = {}  # the last run, until a line follows it
        self._steps: deque[int] = deque(maxlen=_WENT_ON_STEPS)

    # -- observing ---------------------------------------------------------------------------------------

    def observe(self, at: float, fact: LogLine | PlainLines | QuietLines | StepMade) -> None:
        if isinstance(fact, StepMade):
            self._samples.over()
            self._steps.append(fact.line or self._lines)
            if len(self._steps) == _WENT_ON_STEPS:
                self._claims = [claim for claim in self._claims if claim.number > self._steps[0]]
            return
        if isinstance(fact, (PlainLines, QuietLines)):
            self._run(at, fact)
            return
        self._lines += 1
        if fact.bar or not fact.text:
            return
        if self._unread and (run := self._unread.pop(fact.rank, None)) is not None:
            for text in run.last[-_ABOVE:]:
                self._line(at, LogLine(run.rank, run.stream, text))
        self._line(at, fact)

    def _run(self, at: float, run: PlainLines | QuietLines) -> None:
        """Nothing in it is a claim: it is read where it may belong to one, else the last of it, once a line follows."""
        if self._open.get(run.rank) or self._samples.is_open(run.rank) or self._last is not None:
            for line in lines_of(run):
                self._lines += 1
                if not line.bar:
                    self._line(at, line)
            return
        self._lines += run.count
        if run.rank in self._unread or len(self._unread) < _MOST_RANKS:
            self._unread[run.rank] = run

    def _line(self, at: float, fact: LogLine) -> None:
        if not fact.text or self._goes_on(fact):
            return
        traceback = self._open.get(fact.rank)
        may = traceback is not None or self._samples.is_open(fact.rank) or may_begin(fact.text)
        if not may and self._lines > FEW_LINES and MAY.search(fact.text[:400]) is None:
            return
        message = message_of(fact.text)
        if not self._samples.is_of_data(fact.rank, message):
            self._read(at, fact, message)

    def _read(self, at: float, fact: LogLine, message: Message) -> None:
        text, level, uncaught = message.text, message.level, message.rank is not None
        before = (
            self._before.setdefault(fact.rank, deque(maxlen=3))
            if len(self._before) < _MOST_RANKS
            else deque()
        )
        if "Traceback (most recent call last)" in text:
            self._begin(fact.rank, before)
        elif text == CALL_STACK:
            self._open[fact.rank] = Open([], ignored=True)
        elif FRAME.match(text):
            self._open.setdefault(fact.rank, Open([])).frames.append(text)
            self._open[fact.rank].left = _STRANGERS
        elif CHAIN in text:
            self._chained(at, fact, before)
        elif not self._ends_traceback(at, fact, text, uncaught):
            rank = message.rank if fact.rank is None else fact.rank  # Lightning writes [rank: 1]
            self._alone(at, replace(fact, rank=rank), text, level, uncaught)
        before.append(text)

    def _scheduled(self) -> None:
        self._claims = [claim for claim in self._claims if "FailedScheduling" not in claim.text]

    def _goes_on(self, fact: LogLine) -> bool:
        """Whether the line is part of a report, and no claim of its own."""
        claim = self._last
        if claim is None or claim.rank != fact.rank:
            return False
        text = fact.text.strip()
        taken = claim.takes(fact.text.strip())
        if taken is not None:
            if taken and len(claim.below) < _REPORTED:
                claim.below.append(text[:LONGEST])
            elif claim.below and not claim.debugged:
                self._last = None
            return taken
        if (
            len(claim.below) == _BELOW
            or FRAME.match(fact.text)
            or "Traceback" in text
            or CHAIN in text
            or (fact.text[:1] == "[" and not same_head(fact.text, claim.line))
        ):
            self._last = None
        elif any(letter.isalnum() for letter in text):  # more than the brackets that close a notebook's JSON
            claim.below.append(text[:LONGEST])
        return False

    def _chained(self, at: float, fact: LogLine, before: deque[str]) -> None:
        """An excerpt may begin below the frames of what this sentence speaks of."""
        text = next((line for line in reversed(before) if line.strip()), "")
        match = NAMED.match(text) or OF_MODULE.match(text)
        known = any(claim.text == text for claim in self._claims)
        if match is not None and not known and fact.rank not in self._open:
            self._add(at, replace(fact, text=text), "python", text, match[1], sure=True)

    def _begin(self, rank: int | None, before: deque[str]) -> None:
        if len(self._open) >= _MOST_RANKS:
            return
        chained = any(DIRECT in line for line in before)
        last = next((claim for claim in reversed(self._claims) if claim.rank == rank and claim.sure), None)
        ignored = bool(before) and NOT_ITS_END.search(before[-1]) is not None
        passing = any(NOBODY_TOOK in line for line in before)
        if any(CHAIN in line for line in before):
            passing = last is not None and last.passing
        self._open[rank] = Open([], 0, ignored, direct=last if chained else None, passing=passing)

    def _ends_traceback(self, at: float, fact: LogLine, text: str, uncaught: bool) -> bool:
        """Whether the line is a traceback's; its exception becomes a claim."""
        traceback = self._open.get(fact.rank)
        if traceback is not None and traceback.frames and text[:1].isspace():
            bare = text.lstrip()
            # source stands deeper than its frame, so this is none: whoever pasted it lost the indents
            if len(text) - len(bare) <= traceback.indent and NAMED.match(bare):
                text, fact = bare, replace(fact, text=bare)
        if traceback is None or not traceback.left or text[:1].isspace() or not text:
            if traceback is not None and text.strip(" ^~"):
                traceback.source = text.strip()
                if traceback.frames and FRAME.match(traceback.frames[-1]):
                    traceback.frames.append(text)
            return traceback is not None and bool(text[:1].isspace())
        match = RAISED.match(text)
        if match is None:
            traceback.left -= 1
            return False
        del self._open[fact.rank]
        if not traceback.ignored:
            root = traceback.direct
            if root is not None and not root.wrapper:
                return True  # raised from one that is a claim already
            frames = tuple(traceback.frames)
            if match[1] == "AssertionError" and not match[2] and traceback.source.startswith("assert"):
                frames = tuple(line for line in frames if line.strip() != traceback.source)
                frames += (f"    {traceback.source}",)  # the condition is all that it says
            if not traceback.passing or self._is_first_of_its_kind(text):
                self._add(at, fact, "python", text, match[1], sure=True, frames=frames)
                self._claims[-1].passing = traceback.passing
        return True

    def _is_first_of_its_kind(self, text: str) -> bool:
        """Of exceptions that the program goes on from, only the kind that it has last counts: those before are over."""
        known = any(claim.passing and claim.text == text for claim in self._claims)
        self._claims = [claim for claim in self._claims if not claim.passing or claim.text == text]
        return not known

    def _alone(self, at: float, fact: LogLine, text: str, level: str, uncaught: bool) -> None:
        if " Scheduled " in text and "Successfully assigned" in text:
            self._scheduled()
        if "NCCL WARN " in fact.text and not CLOSING.search(fact.text[:400]):
            self._add(at, fact, "accelerator", fact.text)
        if match := ASKED_TO_END.search(text[:300]):
            self._add(at, fact, "scheduler", text, asked=signal_name(match))
            return
        if WARNING_EVENT.match(fact.text) and not SCHEDULER.match(text):
            self._add(at, fact, "scheduler", text.strip(), weak=True)
            return
        if level in ("INFO", "DEBUG", "WARNING"):
            if level == "WARNING" and self._is_weak(text):
                self._add(at, fact, "other", text, weak=True)
            return
        bare = text.lstrip(" |+")
        if self._lines <= FEW_LINES and (behind := behind_prefix(text)):
            bare = behind
        if match := NAMED.match(bare) or (OF_MODULE.match(bare) if self._lines <= FEW_LINES else None):
            self._add(at, fact, "python", bare, match[1], sure=uncaught)
        elif match := REPR.match(text):
            self._add(at, fact, "python", text.strip(), match[1])
        elif NATIVE.search(text) or SIGNALLED.search(text):
            self._add(at, fact, "native", text)
        else:
            klass = next((name for form, name in KINDS if form.match(text)), "")
            if klass or level in ("ERROR", "CRITICAL"):
                self._add(at, fact, klass or "other", text)
            elif EXITED.search(text):
                self._add(at, fact, "other", text, wrapper=True)
            elif self._is_weak(text):
                self._add(at, fact, "other", text, weak=True)

    def _is_weak(self, text: str) -> bool:
        """Only a word of failure, which is worth showing where there are few lines."""
        worth = self._lines <= FEW_LINES and "Warning" not in text and FAILING.search(text) is not None
        return worth and not SOURCE.match(text)

    def _add(
        self,
        at: float,
        fact: LogLine,
        klass: str,
        text: str,
        kind: str = "",
        *,
        sure: bool = False,
        frames: tuple[str, ...] = (),
        wrapper: bool = False,
        weak: bool = False,
        asked: str = "",
    ) -> None:
        if "FailedScheduling" in text:  # the newest event tells what the pod waits for now
            self._scheduled()
        if klass == "other" and self._claims and self._claims[-1].begins_with_source(fact.rank):
            self._claims[-1].below[:] = [text]  # what the compiler says of it
            return
        if len(self._claims) < _MOST_CLAIMS:
            wrapper = (
                wrapper
                or any(name in kind or name in text[:200] for name in WRAPPERS)
                or CASCADE.search(text[:500]) is not None
            )
            if self._last is not None and not self._last.debugged:
                self._last = None
            told = (klass, text, fact.text, kind, sure, frames, wrapper, weak, asked)
            self._claims.append(Claim(at, self._lines, fact.rank, *told))
            if (
                (klass == "python" and sure)
                or "*** Process received signal" in text
                or text.endswith("Inner Error!")
                or (klass == "python" and text.endswith(":"))
                or self._claims[-1].takes(text) is not None
            ):
                self._last = self._claims[-1]

    @property
    def _is_a_paste(self) -> bool:
        return self._lines <= FEW_LINES and not self._steps

    # -- judging -------------------------------------------------------------------------------------------

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        if job.log.ended is None or job.returncode == 0 or not self._claims:
            return
        if job.returncode is None and not job.run.end_unknown:
            return  # what is known of the end comes next
        # beside a hang that the watchdog reported, only an exception is more than what the waiting ranks say of it
        claims = [
            claim
            for claim in self._claims
            if claim.is_raised or not (job.log.ended.hung or (claim.weak and not self._is_a_paste))
        ]
        if not claims:
            return
        claim = min(claims, key=order)
        raised = next((one for one in self._claims if one.sure), claim)
        if raised.text.startswith("KeyboardInterrupt"):
            claim = raised  # nothing had raised an error before somebody ended it
        if claim.klass == "other" and MISSING.search(
            claim.text
        ):  # a script goes on from it; not from the last
            claim = next(one for one in reversed(claims) if MISSING.search(one.text))
        # a program may go on from what it only printed
        passing = job.run.end_unknown and claim.klass == "other" and self._lines - claim.number > _NEAR_END
        passing = passing or claim.weak
        who = f"rank {claim.rank}: " if claim.rank is not None else ""
        own = own_frame(claim.frames)
        where = f", from {own}" if own else ""
        why = f"it was told to end by {claim.asked}" if claim.asked else "no rule knows it"
        yield Finding(
            id=self.name,
            subject=JOB,
            severity=Severity.INFO if passing else Severity.CRITICAL,
            confidence=Confidence.MEDIUM if claim.sure else Confidence.LOW,
            summary=f'{who}"{short(claim.said)}"{where}; {why}',
            advice=_advice(claim),
            since=claim.at,
            klass=claim.klass,
            ranks=() if claim.rank is None else (claim.rank,),
            evidence=(
                Evidence(
                    "output",
                    "\n".join([*claim.frames[-6:], claim.line, *claim.below])[-2000:],
                    claim.at,
                    claim.rank,
                ),
            ),
            final=True,
        )


def _advice(claim: Claim) -> str:
    if claim.stood_in:
        return STOOD.format(call=claim.stood_in)
    if claim.asked:
        return ASKED
    if claim.wrapper and "KeyboardInterrupt" in (claim.type or claim.text[:200]):
        return INTERRUPTED
    if claim.klass == "accelerator" and PEER.search(claim.text):
        return OF_PEER
    if "(SIGKILL) received by PID" in claim.text:
        return KILLED
    if claim.reports:
        told = (remedy([line], line, general=False) for line in (*claim.below, claim.text))
        return next(filter(None, told), ADVICE[claim.klass])
    known = remedy([*claim.frames, claim.text, *claim.below], claim.text, general=not claim.wrapper)
    if known or claim.wrapper or claim.weak:
        if known:
            return known
        return REPORTED if claim.wrapper else WARNED if WARNING_EVENT.match(claim.line) else WEAK
    if claim.klass == "other" and MISSING.search(claim.text):
        return NOT_STARTED
    if claim.klass == "other" and claim.number == 1:
        return NOTHING_ABOVE
    return ADVICE[claim.klass]
