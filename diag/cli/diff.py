"""`diag diff [A] [B]`: what differs between two runs, and what is new in B beside all that worked before."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diag.cli.chosen import run_path
from diag.cli.language import add_language, speaker
from diag.text.errors import DiagError

if TYPE_CHECKING:
    from diag.engine.comparing.differences import Comparison, Side
    from diag.engine.comparing.history import Before
    from diag.launch.past.reading import PastRun

_TOGETHER = 76  # columns of both values on one line
_NAMED = 8
_WORDED = ("end", "phases", "steps")  # parts whose values are diag's words; others may be any


@dataclass(frozen=True, slots=True)
class _Run:
    """`past` is None for evidence that is no run directory of this user."""

    path: Path
    past: PastRun | None
    side: Side


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        nargs="*",
        type=run_path,
        metavar="RUN",
        help="A and B: run directories or ids, -1 for the last run, or what `diag replay` reads (default: B is the last "
        "run, A the last one of the same program before it that finished)",
    )
    parser.add_argument("--json", action="store_true", help="print diag.diff/1")
    add_language(parser)


def run(args: argparse.Namespace) -> int:
    from diag.cli.runs import remembered
    from diag.engine.comparing.differences import compare, each_time
    from diag.engine.comparing.history import before

    if len(args.runs) > 2:
        raise DiagError("diag diff compares two runs", hint="diag diff A B", exit_code=2)
    known = remembered()
    later = _read(args.runs[-1] if args.runs else run_path("-1"), known)
    earlier = _read(args.runs[0] if len(args.runs) == 2 else _last_that_worked(later, known), known)
    alike = [one.facts for one in known if _is_same_program(one, later)]
    comparison = compare(earlier.side, later.side, each_time(alike))
    history = None if later.past is None else before(later.past, known, later.side.facts)
    if args.json:
        print(json.dumps(_document(earlier, later, comparison, history), indent=1))
    else:
        print(_text(earlier, later, comparison, history, speaker("runs", sys.stdout, args.lang)))
    return 0


# --- which two, and what is read of them


def _is_same_program(one: PastRun, run: _Run) -> bool:
    from diag.engine.comparing.differences import program_of

    return program_of(one.argv) == program_of(run.side.argv)


def _last_that_worked(later: _Run, known: Sequence[PastRun]) -> Path:
    from diag.engine.comparing.history import is_forerunner

    past, first = later.past, later.side.facts.get("first_rank")
    found = [one for one in known if past is not None and one.succeeded and is_forerunner(one, past, first)]
    if not found:
        raise DiagError(
            "no earlier run of this program that finished is remembered",
            hint="name two runs: diag diff -2 -1; `diag runs` lists them",
            exit_code=2,
        )
    return Path(found[0].path)


def _read(path: Path, known: Sequence[PastRun]) -> _Run:
    from diag.engine.comparing.differences import Side
    from diag.engine.comparing.evidence import RunEvidence, read_evidence
    from diag.launch.past.reading import read_past
    from diag.text.progress_line import Progress
    from diag.text.sanitize import clean

    past = next((one for one in known if Path(one.path) == path.absolute()), None)
    if past is None:
        try:
            past = read_past(str(path.absolute()))
        except (DiagError, OSError):
            past = None
    if past is not None and not past.evidence_kept:
        if not past.facts:
            raise DiagError(f"of {path} neither journal nor facts are kept", exit_code=2)
        evidence = RunEvidence(past.facts)
    else:
        progress = Progress()
        try:
            evidence = read_evidence(path, progress)
        finally:
            progress.close()
    for note in evidence.notes:
        print(f"diag: {clean(note)}", file=sys.stderr)
    argv = past.argv if past is not None else evidence.argv
    return _Run(path, past, Side(evidence, argv, _end(past, evidence.facts)))


def _end(past: PastRun | None, facts: dict[str, Any]) -> dict[str, str]:
    from diag.cli.runs import format_findings

    step, steps = facts.get("iteration"), facts.get("total_iterations")
    end = {"step": "-" if step is None else str(step) + (f" of {steps}" if steps else "")}
    if past is None:
        return end
    state = past.state + (f" (exit {past.returncode})" if past.returncode else "")
    return {"state": state, "findings": format_findings(past), **end}


# --- shown


def _document(a: _Run, b: _Run, comparison: Comparison, history: Before | None) -> dict[str, Any]:
    return {
        "schema": "diag.diff/1",
        "a": _of_run(a),
        "b": _of_run(b),
        "differences": [one.to_json() for one in comparison.differences],
        "left_out": comparison.left_out,
        "alike": comparison.alike,
        "not_checked": [{"what": part, "reason": why} for part, why in comparison.not_checked.items()],
        "before": None if history is None else history.to_json(),
    }


def _of_run(run: _Run) -> dict[str, Any]:
    return {"path": str(run.path)} if run.past is None else run.past.to_json()


def _text(a: _Run, b: _Run, found: Comparison, history: Before | None, say: Callable[[str], str]) -> str:
    from diag.text.columns import columns, pad
    from diag.text.sanitize import clean

    lines = [*_heads(a, b, say)]
    part = ""
    size = 0
    for one in found.differences:
        if one.part != part:
            part = one.part
            size = max(columns(say(each.name)) for each in found.differences if each.part == part)
            title = "log: new in B" if part == "log" else part
            lines += ["", say(title)]
        value = say if part in _WORDED else str
        first, second = clean(value(one.a)), clean(value(one.b))
        if part == "log":
            lines.append(f"  {clean(one.b)}")
        elif columns(first) + columns(second) <= _TOGETHER:
            lines.append(f"  {pad(clean(say(one.name)), size)}  {first} -> {second}")
        else:
            lines += [f"  {clean(say(one.name))}", f"    A  {first}", f"    B  {second}"]
    if found.left_out.get("log"):
        lines.append("  " + say(f"and {found.left_out['log']} more"))
    lines.append("")
    if not found.differences:
        lines.append(say("nothing differs that was compared"))
    if found.alike:
        lines.append(say("alike") + ": " + ", ".join(map(say, found.alike)))
    lines += [say("not checked") + f": {say(part)}: {say(why)}" for part, why in found.not_checked.items()]
    if history is not None:
        lines.append(_history(history, say))
    return "\n".join(lines)


def _heads(a: _Run, b: _Run, say: Callable[[str], str]) -> list[str]:
    from diag.cli.runs import table
    from diag.text.sanitize import clean

    if a.past is None or b.past is None:
        return [f"A  {clean(str(a.path))}", f"B  {clean(str(b.path))}"]
    return table([a.past, b.past], say, numbers=("A", "B"))


def _history(history: Before, say: Callable[[str], str]) -> str:
    from diag.text.sanitize import clean

    if not history.worked:
        return say("no earlier run of this program that worked is remembered")
    times = f"{history.worked} time{'' if history.worked == 1 else 's'}"
    text = f"this program worked {times} before, {history.on_these_nodes} of them on these nodes; "
    new = [f"{name} {value}" for name, value in history.new.items()]
    if not new:
        return say(f"{text}nothing is new beside those")
    more = f" (+{len(new) - _NAMED})" if len(new) > _NAMED else ""
    return clean(say(f"{text}new in B: {', '.join(new[:_NAMED])}{more}"))
