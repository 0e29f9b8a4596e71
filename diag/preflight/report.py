"""The report of doctor's lines: as text, and as `diag.report/1`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from diag.preflight.line import Line, line
from diag.text.columns import columns


def document(lines: Sequence[Line]) -> dict[str, Any]:
    """`diag.report/1`: problems as findings, what could not be checked under not_checked."""
    now = time.time()
    return {
        "schema": "diag.report/1",
        "job": {"state": "not started", "phase": "preflight", "world_size": 0, "ranks_seen": 0},
        "findings": [
            {
                "id": one.id,
                "subject": "node",
                "class": "",
                "severity": one.level,
                "confidence": "high",
                "ranks": [],
                "waiting_ranks": [],
                "since": now,
                "summary": one.said,
                "cause": "preflight",
                "advice": one.remedy,
                "evidence": [{"rank": None, "at": now, "kind": "preflight", "excerpt": one.said}],
            }
            for one in lines
            if one.status == "problem" or (one.status == "note" and one.id)
        ],
        "not_checked": [
            {"what": one.what, "reason": one.said, "remedy": one.remedy}
            for one in lines
            if one.status == "not checked"
        ],
        "checks": [
            {"what": one.what, "status": one.status, "said": one.said, "remedy": one.remedy} for one in lines
        ],
    }


_ORDER = ("problem", "not checked", "note", "ok")


def sorted_lines(lines: Iterable[Line]) -> list[Line]:
    """As they are printed: what has to be done first, what is well last; else in the order of the checks.

    >>> [one.what for one in sorted_lines([Line("disk", "ok", ""), Line("GPUs", "note", ""), Line("launch", "problem", "")])]
    ['launch', 'GPUs', 'disk']
    """
    return sorted(lines, key=lambda one: (_ORDER.index(one.status), one.level != "critical"))


def text(
    lines: Sequence[Line], *, colour: bool, verbose: bool = True, say: Callable[[str], str] = str
) -> str:
    """The lines in their order; without `verbose` those that are ok are one, which counts and names them. `say`
    gives a text in the reader's language."""
    marks = {"ok": "\033[32m", "problem": "\033[31m", "not checked": "\033[33m", "note": "\033[36m"}
    rows = []
    widest = max(columns(say(status)) for status in _ORDER)
    for one in lines if verbose else _folded(lines, say):
        status = say(one.status)
        status += " " * (widest - columns(status))
        shown = f"{marks[one.status]}{status}\033[0m" if colour else status
        rows.append(f"{shown} {say(one.what)}{': ' if say is str else '：'}{say(one.said)}")
        if one.remedy:
            rows += [f"{'':<{widest}}   {row}" for row in say(one.remedy).split("\n")]
    return "\n".join(rows)


def _folded(lines: Sequence[Line], say: Callable[[str], str]) -> list[Line]:
    fine = [one for one in lines if one.status == "ok"]
    if len(fine) < 2:
        return list(lines)
    named = ", ".join(dict.fromkeys(say(one.what) for one in fine))
    return [one for one in lines if one.status != "ok"] + [line("report.fine", count=len(fine), named=named)]


def summary(lines: Sequence[Line], say: Callable[[str], str] = str) -> str:
    """The last line of the text, for who sees only the end of it.

    >>> summary([Line("launch", "problem", "4 ranks, 2 GPUs"), Line("disk", "ok", "free"), Line("GPUs", "not checked", "")])
    '1 problem: launch; 1 not checked: GPUs'
    """
    parts = [] if any(one.status == "problem" for one in lines) else [say("no problem")]
    for status in ("problem", "not checked"):
        found = [one.what for one in lines if one.status == status]
        many = "s" if status == "problem" and len(found) > 1 else ""
        if found:
            named = ", ".join(dict.fromkeys(map(say, found)))
            parts.append(f"{say(f'{len(found)} {status}{many}')}{': ' if say is str else '：'}{named}")
    return ("; " if say is str else "；").join(parts)
