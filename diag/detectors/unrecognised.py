"""What a log says went wrong where no rule knows it: the line that is the root, by the forms in which programs end."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from diag.detectors.contract import Detector
from diag.detectors.echoed_errors import CASCADE
from diag.detectors.last_words import NATIVE
from diag.detectors.remedies import remedy
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
    OF_LAUNCHER,
    behind_prefix,
)
from diag.model import JOB, Confidence, Evidence, Finding, Severity
from diag.model.observations import LogLine, PlainLines, QuietLines
from diag.state.log import lines_of
from diag.state.own_code import is_own_file
from diag.state.reducer import StepMade
from diag.state.view import JobView

_MOST_CLAIMS, _MOST_RANKS = 64, 4096
_ABOVE = 12
_BELOW = 5
_WENT_ON_STEPS = 2  # a peer may report one more step after a rank has raised
_NEAR_END = 3  # lines: what a program says last. Ours.
_STRANGERS = 8  # lines of others that may be between a frame and its exception
# One of these is in each line that can be a claim, or that is of a traceback.
_MAY = re.compile(
    r"rror|received by PID|nccl|segfault|xception|Interrupt|Exit"
    r"|Traceback|File \"|ERROR|FATAL|CRITICAL|WARN|Fatal|fatal|illed|fault|bort|Assertion"
    r"|terminate called|free|malloc|corrupt|stack smashing|not found|No such|denied|unbound|not set$|CANCELLED|Failed|EVICTED|Command '"
    r"|Call stack|[A-Za-z_.]{3,80}: |(?:eceiv|ot |aught ).{0,30}(?:SIG|ignal)"
)
_CLASS = r"(?:[A-Za-z_]\w{0,100}\.){0,12}[A-Za-z_]\w{0,100}"
# CPython 3.8-3.14 below frames, whatever its name is; elsewhere by the usual endings.
_RAISED = re.compile(rf"({_CLASS})(?:: (.*)|:?$)")
_NAMED = re.compile(
    r"((?:\w{1,100}\.){0,12}[A-Z]\w{0,100}(?:Error|Exception|Interrupt|Exit|Timeout))(?:: (.*)|:?$)"
)
# The same as a module's, whose name is its own:   http.client.IncompleteRead: IncompleteRead(4835 bytes read, 5405 more expected)
_OF_MODULE = re.compile(r"((?:[a-z_]\w{0,100}\.){1,12}[A-Z]\w{0,100})(?:: (.*)|:$)")
# A line that is an exception's repr, as Hydra 1.1-1.3 prints the cause of what it could not instantiate:
#   TypeError("Adam.__init__() missing 1 required positional argument: 'params'")
_REPR = re.compile(
    r"\s{0,12}((?:\w{1,100}\.){0,12}[A-Z]\w{0,100}(?:Error|Exception))\((?:'[^\n]{3,2000}'|\"[^\n]{3,2000}\"),?\)$"
)
# A line of source, as warnings quote it:   torch.distributed.distributed_c10d._set_pg_timeout(timeout, group)
_SOURCE = re.compile(
    r"\s*(?:[\w.]{1,200}(?: = [\w.]{1,200})?\(.*[)(],?|(?:return|raise|with|if|for|assert) .*)$"
)
_FILE = re.compile(r'\s*(?:\| {1,3})?File "([^"\n]{1,400})", line (\d{1,7})(?:, in (\S{1,200}))?')
# Around the exception that a worker raised, its parent's (ray 2.x, multiprocessing, concurrent.futures, torch 1.9-2.13):
_WRAPPERS = (
    *OF_LAUNCHER,
    "RayTaskError",
    "RemoteTraceback",
    "RemoteError",
    "SystemExit",
    "KeyboardInterrupt",
)
_DIRECT = "The above exception was the direct cause"
# Slurm 20-24, Open MPI 4-5, PBS and LSF; kubelet's words:
#   srun: PrologSlurmctld failed, job killed
#   slurmstepd: error: *** STEP 1234.0 ON gpu-17 CANCELLED AT 2026-11-20T22:48:19 DUE TO TIME LIMIT ***
#   srun: error: gpu-17: task 3: Segmentation fault         mpirun noticed that process rank 3 with PID 0 on node gpu-17 exited on ...
_SCHEDULER = re.compile(
    r"(?:srun|slurmstepd|sbatch|salloc|mpirun|mpiexec|prterun|prte|orterun|qsub|bsub)(?:\[\d+\])?: (?:error|fatal|\w{1,40} failed, )"
    r"|(?:mpirun|prterun) noticed"
    r"|.{0,80}CANCELLED AT|TERM_(?:MEMLIMIT|RUNLIMIT|OWNER)|=>> PBS: job killed|.{0,80}\b(?:OOMKilled|Evicted|FailedScheduling)\b"
)
# NCCL 2.4-2.32 by torch's words; CANN 6-8 (EI0002, EJ0001, ERR02200):
_ACCELERATOR = re.compile(
    r"nccl[A-Z]\w{3,40}: |(?:.{0,60}[\s\[(])?(?:E[A-Z]\d{4}|ERR\d{5})[\]): ]|.{0,80}\bHCCL\b.{0,80}(?:rror|ailed)"
)
# What NCCL 2.18-2.28 says of its proxy's connections while the processes at their other ends go away, after a failure or at
# the end of all work:
#   proxy.cc:1458 NCCL WARN [Service thread] Accept failed Resource temporarily unavailable
#   proxy.cc:1497 NCCL WARN [Service thread] Could not receive type from localRank 1, res=3, closed=0
#   proxy.cc:1521 NCCL WARN [Proxy Service 1] Failed to execute operation Close from rank 1, retcode 3
_CLOSING = re.compile(
    r"\[Service thread\] (?:Accept failed|Could not receive )|Failed to execute operation Close\b"
)
# bash 4-5, dash; argparse; what compilers, linkers and most commands print:
#   train.sh: line 12: torchrun: command not found      train.py: error: unrecognized arguments: --lora_rnak 8
_OTHER = re.compile(
    r"\S{1,200}: (?:(?:line )?\d{1,7}: )?(?:\S{1,200}: )?(?:command not found|No such file or directory|Permission denied"
    r"|not found|unbound variable|parameter not set)$"
    r"|(?:[\w./+-]{1,80}: )?(?:fatal )?(?:error|Error|ERROR|FATAL|Fatal)\b ?:.{3}|.{0,40}\bException: "
)
# A shell reads no further than this (bash 4-5, dash 0.5):
#   slurm_script: line 98: syntax error: unexpected end of file       job.sh: 12: Syntax error: "fi" unexpected
_UNREAD = re.compile(
    r"\S{1,300}: (?:line )?\d{1,7}: (?:[sS]yntax error\b|unexpected EOF while)|\S{1,300}: error reading input file: "
)
_MISSING = re.compile(r": (?:command not found|No such file or directory|Permission denied|not found)$")
# torch 1.10-2.13, the launcher's table of failures; kernel, in a log of the node:
#   Program received signal SIGSEGV: Segmentation fault - invalid memory reference.    (gfortran 8-14; Intel: forrtl: severe (174))
_SIGNALLED = re.compile(
    r"Signal \d{1,2} \(SIG[A-Z]{3,6}\) received by PID|\bsegfault at [0-9a-f]{1,16} ip "
    r"|^Program received signal SIG|^forrtl: severe|\*\*\* Process received signal \*\*\*"
)
# Who started a program reports that it failed, and no more (CPython 3.8-3.14 subprocess; GNU make 4):
#   Command '['flower-simulation', '--app', '.']' returned non-zero exit status 1.       make: *** [Makefile:12: train] Error 1
_EXITED = re.compile(
    r"\breturned non-zero exit status [1-9]\d{0,2}\.?$|^make(?:\[\d{1,3}\])?: \*\*\* .{1,300}\bError [1-9]\d{0,2}$"
)
# In a paste of a few lines any word of failure is worth showing (docker 28, kubelet 1.31, OpenSSH 9.2, nvidia-smi 575):
#   exec /usr/bin/bash: exec format error        ssh: Could not resolve hostname node2: Name or service not known
_FAILING = re.compile(
    r"(?i)(?<!\bno )(?<!\b0 )\b(?:fail(?:ed|ure|s|ing)?|errors?|denied|refused|unreachable|timed? ?out|cannot|can't|could not"
    r"|unable|not (?:found|permitted|supported|available|known)|no such|no devices|mismatch(?:ed)?|lost|killed|out of memory"
    r"|corrupt(?:ed)?|invalid|illegal|unsupported|unknown|abort(?:ed|ing)?|crash(?:ed)?|panic|exceed(?:s|ed)|insufficient)\b"
    r"|(?<!无)(?<!没有)(?:错误|异常|失败|报错|崩溃)|无法|未找到|不存在|拒绝"
)
_FEW_LINES = 20
_KINDS = (
    (_SCHEDULER, "scheduler"),
    (_ACCELERATOR, "accelerator"),
    (_UNREAD, "other"),
    (_OTHER, "other"),
)


@dataclass(slots=True)
class _Claim:
    at: float
    number: int
    rank: int | None
    klass: str
    text: str  # the message, without prefixes
    line: str  # as it was printed
    type: str = ""
    sure: bool = False  # under a traceback, or of torch's own hook
    frames: tuple[str, ...] = ()  # each with its line of source, where it has one
    wrapper: bool = False
    weak: bool = False  # it only has a word of failure
    asked: str = ""  # the signal that it was told to end by
    below: list[str] = field(default_factory=list)  # lines that follow: an exception's message may go on

    @property
    def said(self) -> str:
        """With the condition of a bare assertion, or the message that begins below the exception's name."""
        bare = self.text.startswith("AssertionError")
        if bare and self.frames and not FRAME.match(self.frames[-1]):
            return f"{self.frames[-1].strip()} ... {self.text}"
        return (
            f"{self.text} {self.below[0]}"
            if self.sure and self.below and self.text.endswith(":")
            else self.text
        )

    def begins_with_source(self, rank: int | None) -> bool:
        """Whether that rank's message is source that was compiled at run time, before what the compiler says of it."""
        bare = self.sure and self.rank == rank and self.text.endswith(":")
        return bare and bool(self.below) and self.below[0].startswith("#")

    @property
    def is_raised(self) -> bool:
        return self.klass == "python" and self.sure and not self.wrapper


@dataclass(slots=True)
class _Open:
    """A traceback of one source that is being read."""

    frames: list[str]
    left: int = 0
    ignored: bool = False
    source: str = ""  # the last line of it that was quoted
    direct: _Claim | None = None  # the exception that this one was raised from

    @property
    def indent(self) -> int:
        """Blanks before the last frame."""
        frame = next((line for line in reversed(self.frames) if FRAME.match(line)), "")
        return len(frame) - len(frame.lstrip())


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
        self._claims: list[_Claim] = []
        self._open: dict[int | None, _Open] = {}
        self._before: dict[int | None, deque[str]] = {}
        self._samples = SampleTracker()
        self._last: _Claim | None = None  # whose message may go on
        self._lines = 0
        self._unread: dict[int | None, PlainLines | QuietLines] = {}  # the last run, until a line follows it
        self._steps: deque[int] = deque(maxlen=_WENT_ON_STEPS)

    # -- observing ---------------------------------------------------------------------------------------

    def observe(self, at: float, fact: LogLine | PlainLines | QuietLines | StepMade) -> None:
        if isinstance(fact, StepMade):
            self._samples.over()
            self._steps.append(self._lines)
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
        if not fact.text:
            return
        self._goes_on(fact)
        traceback = self._open.get(fact.rank)
        may = traceback is not None or self._samples.is_open(fact.rank) or may_begin(fact.text)
        if not may and self._lines > _FEW_LINES and _MAY.search(fact.text[:400]) is None:
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
            self._open[fact.rank] = _Open([], ignored=True)
        elif FRAME.match(text):
            self._open.setdefault(fact.rank, _Open([])).frames.append(text)
            self._open[fact.rank].left = _STRANGERS
        elif CHAIN in text:
            self._chained(at, fact, before)
        elif not self._ends_traceback(at, fact, text, uncaught):
            rank = message.rank if fact.rank is None else fact.rank  # Lightning writes [rank: 1]
            self._alone(at, replace(fact, rank=rank), text, level, uncaught)
        before.append(text)

    def _scheduled(self) -> None:
        self._claims = [claim for claim in self._claims if "FailedScheduling" not in claim.text]

    def _goes_on(self, fact: LogLine) -> None:
        claim = self._last
        if claim is None or claim.rank != fact.rank:
            return
        text = fact.text.strip()
        if (
            len(claim.below) == _BELOW
            or FRAME.match(fact.text)
            or "Traceback" in text
            or CHAIN in text
            or (fact.text[:1] == "[" and not _same_head(fact.text, claim.line))
        ):
            self._last = None
        elif any(letter.isalnum() for letter in text):  # more than the brackets that close a notebook's JSON
            claim.below.append(text[:LONGEST])

    def _chained(self, at: float, fact: LogLine, before: deque[str]) -> None:
        """An excerpt may begin below the frames of what this sentence speaks of."""
        text = next((line for line in reversed(before) if line.strip()), "")
        match = _NAMED.match(text) or _OF_MODULE.match(text)
        known = any(claim.text == text for claim in self._claims)
        if match is not None and not known and fact.rank not in self._open:
            self._add(at, replace(fact, text=text), "python", text, match[1], sure=True)

    def _begin(self, rank: int | None, before: deque[str]) -> None:
        if len(self._open) >= _MOST_RANKS:
            return
        chained = any(_DIRECT in line for line in before)
        last = next((claim for claim in reversed(self._claims) if claim.rank == rank and claim.sure), None)
        ignored = bool(before) and NOT_ITS_END.search(before[-1]) is not None
        self._open[rank] = _Open([], 0, ignored, direct=last if chained else None)

    def _ends_traceback(self, at: float, fact: LogLine, text: str, uncaught: bool) -> bool:
        """Whether the line is a traceback's; its exception becomes a claim."""
        traceback = self._open.get(fact.rank)
        if traceback is not None and traceback.frames and text[:1].isspace():
            bare = text.lstrip()
            # source stands deeper than its frame, so this is none: whoever pasted it lost the indents
            if len(text) - len(bare) <= traceback.indent and _NAMED.match(bare):
                text, fact = bare, replace(fact, text=bare)
        if traceback is None or not traceback.left or text[:1].isspace() or not text:
            if traceback is not None and text.strip(" ^~"):
                traceback.source = text.strip()
                if traceback.frames and FRAME.match(traceback.frames[-1]):
                    traceback.frames.append(text)
            return traceback is not None and bool(text[:1].isspace())
        match = _RAISED.match(text)
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
            self._add(at, fact, "python", text, match[1], sure=True, frames=frames)
        return True

    def _alone(self, at: float, fact: LogLine, text: str, level: str, uncaught: bool) -> None:
        if " Scheduled " in text and "Successfully assigned" in text:
            self._scheduled()
        if "NCCL WARN " in fact.text and not _CLOSING.search(fact.text[:400]):
            self._add(at, fact, "accelerator", fact.text)
        if match := ASKED_TO_END.search(text[:300]):
            self._add(at, fact, "scheduler", text, asked=signal_name(match))
            return
        if level in ("INFO", "DEBUG", "WARNING"):
            if level == "WARNING" and self._is_weak(text):
                self._add(at, fact, "other", text, weak=True)
            return
        bare = text.lstrip(" |+")
        if self._lines <= _FEW_LINES and (behind := behind_prefix(text)):
            bare = behind
        if match := _NAMED.match(bare) or (_OF_MODULE.match(bare) if self._lines <= _FEW_LINES else None):
            self._add(at, fact, "python", bare, match[1], sure=uncaught)
        elif match := _REPR.match(text):
            self._add(at, fact, "python", text.strip(), match[1])
        elif NATIVE.search(text) or _SIGNALLED.search(text):
            self._add(at, fact, "native", text)
        else:
            klass = next((name for form, name in _KINDS if form.match(text)), "")
            if klass or level in ("ERROR", "CRITICAL"):
                self._add(at, fact, klass or "other", text)
            elif _EXITED.search(text):
                self._add(at, fact, "other", text, wrapper=True)
            elif self._is_weak(text):
                self._add(at, fact, "other", text, weak=True)

    def _is_weak(self, text: str) -> bool:
        """Only a word of failure, which is worth showing where there are few lines."""
        worth = self._lines <= _FEW_LINES and "Warning" not in text and _FAILING.search(text) is not None
        return worth and not _SOURCE.match(text)

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
                or any(name in kind or name in text[:200] for name in _WRAPPERS)
                or CASCADE.search(text[:500]) is not None
            )
            self._last = None
            told = (klass, text, fact.text, kind, sure, frames, wrapper, weak, asked)
            self._claims.append(_Claim(at, self._lines, fact.rank, *told))
            if (klass == "python" and sure) or "*** Process received signal" in text:
                self._last = self._claims[-1]

    @property
    def _is_a_paste(self) -> bool:
        return self._lines <= _FEW_LINES and not self._steps

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
        claim = min(claims, key=_order)
        raised = next((one for one in self._claims if one.sure), claim)
        if raised.text.startswith("KeyboardInterrupt"):
            claim = raised  # nothing had raised an error before somebody ended it
        if claim.klass == "other" and _MISSING.search(
            claim.text
        ):  # a script goes on from it; not from the last
            claim = next(one for one in reversed(claims) if _MISSING.search(one.text))
        # a program may go on from what it only printed
        passing = job.run.end_unknown and claim.klass == "other" and self._lines - claim.number > _NEAR_END
        passing = passing or claim.weak
        who = f"rank {claim.rank}: " if claim.rank is not None else ""
        own = _own_frame(claim.frames)
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


def _advice(claim: _Claim) -> str:
    if claim.asked:
        return ASKED
    if claim.wrapper and "KeyboardInterrupt" in (claim.type or claim.text[:200]):
        return INTERRUPTED
    if claim.klass == "accelerator" and PEER.search(claim.text):
        return OF_PEER
    if "(SIGKILL) received by PID" in claim.text:
        return KILLED
    known = remedy([*claim.frames, claim.text, *claim.below], claim.text, general=not claim.wrapper)
    if known or claim.wrapper or claim.weak:
        return known or (REPORTED if claim.wrapper else WEAK)
    if claim.klass == "other" and _MISSING.search(claim.text):
        return NOT_STARTED
    if claim.klass == "other" and claim.number == 1:
        return NOTHING_ABOVE
    return ADVICE[claim.klass]


def _order(claim: _Claim) -> tuple[bool, int, int]:
    """Consequences last; an exception with its traceback before what native code, the scheduler or the driver say, and
    those before a line that only looks like an error, a heading last; of equals the first."""
    weak = claim.weak or (claim.klass == "other" and claim.text.rstrip().endswith(":"))
    other = 1 if _UNREAD.match(claim.text) else 4 if weak else 3
    kinds = {"python": 2, "native": 1, "scheduler": 1, "accelerator": 1, "other": other}
    return (claim.wrapper, 0 if claim.sure else 5 if claim.asked else kinds[claim.klass], claim.number)


def _same_head(text: str, line: str) -> bool:
    """Whether Open MPI puts the same host and process before both:   [nid006549:31808] Signal: Segmentation fault (11)"""
    head, end, _ = line.partition("] ")
    return bool(end) and ":" in head and text.startswith(f"{head}] ")


def _own_frame(frames: tuple[str, ...]) -> str:
    """`data.py:33 in encode` of the innermost frame that is the program's own; "" where there is none."""
    for line in reversed(frames):
        match = _FILE.match(line)
        if match and is_own_file(match[1]):
            name = re.split(r"[/\\]", match[1])[-1]
            return f"{name}:{match[2]}" + (f" in {match[3]}" if match[3] else "")
    return ""
