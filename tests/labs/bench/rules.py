"""Lines of real training logs through diag's own path, rules and all, against the tools by which people look
for fifty things in a log: a loop of `re`, `grep -E -f`, ripgrep. And rules that try to stall it."""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from diag.detectors import make_detectors
from diag.detectors.rules.load import packaged
from diag.detectors.rules.reader import LogReader
from diag.detectors.rules.ruleset import RuleSet
from diag.detectors.rules.schema import Rule
from diag.engine.engine import Engine
from diag.model import Record
from diag.sources.logs import output
from diag.sources.logs.output import LineAssembler
from diag.sources.parsers import PARSERS

from .captured import captured_lines
from .machine import cpu_of
from .runs import NotReady
from .stats import Interval, interval
from .table import Row

__all__ = ["rows"]

_LINES_A_SECOND = 300_000  # ours: ranks of a large job start with about a million lines
_NAIVE_TIMES, _RG_SHARE = 8.0, 1 / 3
_NAIVE_PATTERNS = 50
_CHUNK = 64 << 10  # of a pipe
_RG = ("rg", "-c", "-a")
# Each takes a backtracking engine longer than the age of the universe, or nearly.
_EVIL = (r"^(a+)+$", r"(a|aa)+$", r"(.*)*x", r"(a|a?)+b", r"([a-z]+)*\d")


def rows(lines: int, times_each: int, say: Callable[[str], None]) -> list[Row]:
    known = captured_lines()
    texts = [*known * (lines // len(known) + 1)][:lines]
    rules = packaged()
    patterns = [pattern.regex or re.escape(pattern.literal) for rule in rules.rules for pattern in rule.match]
    naive = [re.compile(pattern) for pattern in patterns[:: len(patterns) // _NAIVE_PATTERNS]][
        :_NAIVE_PATTERNS
    ]
    say(f"{len(rules.rules)} rules over {lines} lines, {times_each} times")
    with tempfile.TemporaryDirectory(prefix="diag-bench-") as folder:
        log, some = Path(folder) / "job.log", Path(folder) / "some"
        data = ("\n".join(texts) + "\n").encode()
        log.write_bytes(data)
        words = [
            re.sub(r"[^\w ]", ".", literal)
            for literal in rules.literals[:: len(rules.literals) // _NAIVE_PATTERNS]
        ]
        some.write_text("\n".join(words[:_NAIVE_PATTERNS]) + "\n")
        ours, whole, loop, grep, rg = [], [], [], [], []
        for _ in range(times_each):
            ours.append(cpu_of(lambda: _read(rules, texts), resource.RUSAGE_SELF))
            grep.append(
                cpu_of(
                    lambda: _run(["grep", "-c", "-E", "-f", str(some), str(log)]), resource.RUSAGE_CHILDREN
                )
            )
            if shutil.which("rg"):
                rg.append(cpu_of(lambda: _run([*_RG, "-f", str(some), str(log)]), resource.RUSAGE_CHILDREN))
        for _ in range(min(times_each, 3)):  # seconds each
            loop.append(cpu_of(lambda: _naive(naive, texts), resource.RUSAGE_SELF))
            whole.append(cpu_of(lambda: _whole(rules, data), resource.RUSAGE_SELF))
    speed, peer = interval([lines / one for one in ours]), interval([lines / one for one in loop])
    grepped = lines / interval(grep).mid
    peers = (
        f"loop of {_NAIVE_PATTERNS} `re`: {peer.mid:,.0f}; `grep -E -f` of {_NAIVE_PATTERNS}: {grepped:,.0f}"
    )
    found = [
        Row(f"lines a second of CPU through {len(rules.rules)} rules ({lines:,} lines of training logs)", _lines(speed), peers,
            "", f"> {_LINES_A_SECOND:,}", _above(speed, _LINES_A_SECOND),
            {"diag": speed.mid, "rules": len(rules.rules), "peer": peer.mid, "grep": grepped}, "rules speed"),
        _times_row("lines a second of CPU through all rules, against a loop of fifty `re`", speed.mid, peer,
                   f"> {_NAIVE_TIMES:g} x", _NAIVE_TIMES, "P11 naive"),
    ]  # fmt: skip
    what = "lines a second of CPU through all rules, against `rg -f` of fifty words"
    if rg:
        found.append(
            _times_row(what, speed.mid, interval([lines / one for one in rg]), "> 1/3 x", _RG_SHARE, "P11 rg")
        )
    else:
        found.append(Row(what, "not measured: no rg here", verdict="not measured", key="P11 rg"))
    read = interval([lines / one for one in whole])
    return [
        *found,
        Row(
            "lines a second of CPU through all of `diag run`: parsers, job state, detectors, rules (a log that is all start-up)",
            _lines(read),
            peers,
            f"{read.mid / peer.mid:.2f}",
            values={"diag": read.mid, "peer": peer.mid},
            key="live speed",
        ),
        _evil_row(rules),
    ]


def _lines(speed: Interval) -> str:
    return f"{speed.mid:,.0f} [{speed.low:,.0f}, {speed.high:,.0f}]"


def _above(speed: Interval, goal: float) -> str:
    return "met" if speed.low > goal else "missed" if speed.high < goal else "unclear"


def _times_row(  # noqa: PLR0917 - one file
    what: str, speed: float, peer: Interval, goal: str, times: float, key: str
) -> Row:
    ratio = Interval(speed / peer.high, speed / peer.mid, speed / peer.low)
    return Row(
        what,
        f"{speed:,.0f} lines/s",
        f"{peer.mid:,.0f} lines/s",
        f"{ratio.mid:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]",
        goal,
        _above(ratio, times),
        {"diag": speed, "peer": peer.mid, "ratio": ratio.mid},
        key,
    )


def _evil_row(rules: RuleSet) -> Row:
    """The same with rules beside them whose patterns stall an engine that backtracks, on lines made for it."""
    base = rules.rules[0]
    evil = [
        Rule.model_validate(base.model_dump(by_alias=True, mode="json") | {
            "id": f"evil-{number}", "kind": "line", "match": [{"literal": "aaaaaaaa", "regex": pattern}], "summary": "it was met",
            "advice": "nothing to do"})
        for number, pattern in enumerate(_EVIL)
    ]  # fmt: skip
    texts = [*("a" * 4000 + "!" for _ in range(200))]
    seconds = cpu_of(lambda: _read(RuleSet([*rules.rules, *evil]), texts), resource.RUSAGE_SELF)
    each = 1000 * seconds / len(texts)
    return Row(
        "CPU for a line of 4000 characters that meets 5 catastrophic patterns",
        f"{each:.2f} ms",
        goal="< 5 ms",
        verdict="met" if each < 5 else "missed",
        values={"seconds": seconds / len(texts)},
        key="evil rules",
    )


def _read(rules: RuleSet, texts: Sequence[str]) -> None:
    reader = LogReader(rules)
    for text in texts:
        reader.read(0.0, None, text)


def _naive(patterns: Sequence[re.Pattern[str]], texts: Sequence[str]) -> int:
    return sum(
        any([pattern.search(text) for pattern in patterns])  # noqa: C419 - all of them, as diag does
        for text in texts
    )


def _whole(rules: RuleSet, data: bytes) -> None:
    """As the hub does it with what the relay hands over, a quarter of a second apart."""
    engine, lines = Engine(PARSERS, make_detectors(rules)), LineAssembler("stdout")
    for place, at in enumerate(range(0, len(data), _CHUNK)):
        payload = lines.feed(data[at : at + _CHUNK])
        if payload is not None:
            engine.feed(Record(output.SOURCE, payload, at=1e9 + place / 4))


def _run(command: Sequence[str]) -> None:
    """Through a pipe: with /dev/null as its output grep stops at the first match."""
    done = subprocess.run(command, capture_output=True, check=False, timeout=60)
    if done.returncode > 1:
        raise NotReady(
            f"{command[0]} ended with code {done.returncode}: {done.stderr.decode('utf-8', 'replace')[-60:]}"
        )
