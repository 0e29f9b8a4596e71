"""The rules over lines of real training logs, beside `grep -F -f` with the same literals; and rules that try to stall it."""

from __future__ import annotations

import resource
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from diag.rules.load import packaged
from diag.rules.reader import LogReader
from diag.rules.ruleset import RuleSet
from diag.rules.schema import Rule

from .stats import interval
from .table import Row

__all__ = ["rows"]

_LOGS = Path(__file__).resolve().parents[1] / "captures" / "logs"
_LINES_A_SECOND = 300_000  # ours: ranks of a large job start with about a million lines
# Each takes a backtracking engine longer than the age of the universe, or nearly.
_EVIL = (r"^(a+)+$", r"(a|aa)+$", r"(.*)*x", r"(a|a?)+b", r"([a-z]+)*\d")


def rows(lines: int, times_each: int, say: Callable[[str], None]) -> list[Row]:
    texts = [line for path in sorted(_LOGS.glob("*.log")) for line in path.read_text("utf-8", "replace").splitlines()]
    texts = (texts * (lines // len(texts) + 1))[:lines]
    rules = packaged()
    say(f"{len(rules.rules)} rules over {lines} lines, {times_each} times")
    with tempfile.TemporaryDirectory(prefix="diag-bench-") as folder:
        log, words = Path(folder) / "job.log", Path(folder) / "literals"
        log.write_text("\n".join(texts) + "\n")
        words.write_text("\n".join(rules.literals) + "\n")
        ours = [_cpu(lambda: _read(rules, texts), resource.RUSAGE_SELF) for _ in range(times_each)]
        peer = [_cpu(lambda: _grep(words, log), resource.RUSAGE_CHILDREN) for _ in range(times_each)]
        speed, grep = interval([lines / one for one in ours]), interval(peer)
        ratio = interval([a / b for a, b in zip(ours, peer, strict=True)])
    return [
        Row(f"lines a second of CPU through {len(rules.rules)} rules ({lines} lines of training logs)",
            f"{speed.mid:,.0f} [{speed.low:,.0f}, {speed.high:,.0f}]", f"`grep -F -f`: {1000 * grep.mid:.0f} ms",
            f"{ratio.mid:.1f} [{ratio.low:.1f}, {ratio.high:.1f}]", f"> {_LINES_A_SECOND:,}",
            "met" if speed.low > _LINES_A_SECOND else "missed" if speed.high < _LINES_A_SECOND else "unclear",
            {"lines_per_second": speed.mid, "rules": len(rules.rules), "ratio": ratio.mid}),
        _evil_row(rules),
    ]  # fmt: skip


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
    seconds = _cpu(lambda: _read(RuleSet([*rules.rules, *evil]), texts), resource.RUSAGE_SELF)
    each = 1000 * seconds / len(texts)
    return Row("CPU for a line of 4000 characters that meets 5 catastrophic patterns", f"{each:.2f} ms", goal="< 5 ms",
               verdict="met" if each < 5 else "missed", values={"seconds": seconds / len(texts)})


def _cpu(work: Callable[[], object], who: int) -> float:
    before = resource.getrusage(who)
    work()
    after = resource.getrusage(who)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _read(rules: RuleSet, texts: list[str]) -> None:
    reader = LogReader(rules)
    for text in texts:
        reader.read(0.0, None, text)


def _grep(words: Path, log: Path) -> None:
    subprocess.run(["grep", "-cF", "-f", str(words), str(log)], stdout=subprocess.PIPE, check=False)
