"""`diag runs`: this user's runs, newest first; `diag runs rm` removes some."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from diag.cli.chosen import run_path, run_root
from diag.cli.language import add_language, speaker
from diag.text.errors import DiagError

if TYPE_CHECKING:
    from diag.launch.past.reading import PastRun
    from diag.launch.past.removal import Removal

_SHOWN = 20
_LEAST_COMMAND = 20  # columns
_MOST_NAMED = 10


def add(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(what="list")
    parser.add_argument("--all", action="store_true", help=f"all of them (default: the newest {_SHOWN})")
    parser.add_argument("--json", action="store_true", help="print diag.runs/1, of all runs")
    add_language(parser)
    verbs = parser.add_subparsers(dest="what", metavar="WHAT", help="rm: remove runs")
    removing = verbs.add_parser("rm", help="remove runs whose jobs have ended")
    removing.add_argument(
        "runs", nargs="*", type=run_path, metavar="RUN", help="a run directory or id, or -1 for the last run"
    )
    removing.add_argument("--older", type=_age, metavar="AGE", help="all that ended longer ago: 7d, 12h, 90m")
    removing.add_argument("-y", "--yes", action="store_true", help="do not ask")


def _age(text: str) -> float:
    from diag.launch.past.removal import age_seconds

    try:
        return age_seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(args: argparse.Namespace) -> int:
    return _remove(args) if args.what == "rm" else _list(args)


def remembered(*, save: bool = True) -> list[PastRun]:
    """All runs of this user that are found here, newest first."""
    from diag.launch.past.index import all_runs
    from diag.launch.runs import places

    return all_runs(places(run_root()), save=save)


def _list(args: argparse.Namespace) -> int:
    found = remembered()
    if args.json:
        print(json.dumps({"schema": "diag.runs/1", "runs": [one.to_json() for one in found]}, indent=1))
        return 0
    say = speaker("runs", sys.stdout, args.lang)
    if not found:
        print(say("no run is remembered here"))
        return 0
    shown = found if args.all else found[:_SHOWN]
    width = shutil.get_terminal_size((0, 0)).columns if sys.stdout.isatty() else 0
    print("\n".join(table(shown, say, width)))
    if len(found) > len(shown):
        print(say(f"and {len(found) - len(shown)} more: diag runs --all"))
    return 0


# --- the table


def table(
    runs: Sequence[PastRun], say: Callable[[str], str], width: int = 0, numbers: Sequence[str] = ()
) -> list[str]:
    """A line each; the command is cut where there is a `width`. `numbers` in place of -1, -2 ..., and no command then."""
    from diag.text.columns import columns, cut, pad
    from diag.text.sanitize import clean

    several = len({one.host for one in runs}) > 1
    heads = [
        "",
        "run",
        "began",
        *(["node"] if several else []),
        "state",
        "length",
        "step",
        "findings",
        "command",
    ]
    rows = [[say(head) if head else "" for head in heads]]
    for number, one in zip(numbers or _numbers(runs), runs, strict=True):
        node = [clean(one.host)] if several else []
        rows.append([number, one.id, *_cells(one, say, node)])
    widths = [max(columns(row[at]) for row in rows) for at in range(len(heads) - 1)]
    lines = []
    for row in rows:
        begin = "  ".join(pad(cell, size) for cell, size in zip(row, widths, strict=False)) + "  "
        if numbers:
            lines.append(begin.rstrip())
            continue
        room = max(_LEAST_COMMAND, width - columns(begin))
        lines.append((begin + (cut(row[-1], room) if width else row[-1])).rstrip())
    return lines


def _numbers(runs: Sequence[PastRun]) -> list[str]:
    """-1, -2 ... as commands take them: of this host's runs, where it has any."""
    from diag.launch.past.reading import is_of_this_host

    counted = [is_of_this_host(one) for one in runs]
    if not any(counted):
        counted = [True] * len(runs)
    return [f"-{sum(counted[: at + 1])}" if counted[at] else "" for at in range(len(runs))]


def _cells(one: PastRun, say: Callable[[str], str], node: list[str]) -> list[str]:
    import shlex

    from diag.text.sanitize import clean
    from diag.text.units import format_seconds, format_time

    state = say(one.state) + (f" ({one.returncode})" if one.returncode else "")
    length = one.seconds
    if length is None and one.state in ("running", "held-up", "hung", "unwatched"):
        length = max(0.0, time.time() - one.began)
    step = "-" if one.step is None else str(one.step) + (f"/{one.steps}" if one.steps else "")
    return [
        format_time(one.began),
        *node,
        state,
        "-" if length is None else format_seconds(length),
        step,
        format_findings(one),
        clean(shlex.join(one.argv)) or "-",
    ]


def format_findings(one: PastRun) -> str:
    """The gravest, and how many more of level warning or above."""
    from diag.text.sanitize import clean
    from diag.text.units import format_ranks

    counted = [finding for finding in one.findings if finding.severity != "info"]
    if not counted:
        return "-"
    worst = counted[0]
    text = worst.id + (f" ({worst.klass})" if worst.klass else "")
    text += f", {format_ranks(worst.ranks, longest=12)}" if worst.ranks else ""
    return clean(text) + (f" +{len(counted) - 1}" if len(counted) > 1 else "")


# --- removing


def _remove(args: argparse.Namespace) -> int:
    from diag.launch.past.removal import removal, remove
    from diag.text.units import format_bytes, format_count

    if not args.runs and args.older is None:
        raise DiagError("which runs?", hint="`diag runs rm -1`, or `diag runs rm --older 7d`", exit_code=2)
    if args.runs and args.older is not None:
        raise DiagError("--older cannot be combined with runs", hint="one of them", exit_code=2)
    asked = [removal(path) for path in dict.fromkeys(args.runs or _older(args.older))]
    wanted = [one for one in asked if not one.why_not]
    say = speaker("runs", sys.stderr, args.lang)
    for one in asked:
        if one.why_not:
            _tell(say(f"{one.path} stays: {one.why_not}"))
    failed = bool(args.runs) and len(wanted) < len(asked)
    if not wanted:
        if args.older is not None:
            _tell(say("no run is that old"))
        return 1 if failed else 0
    size = format_bytes(sum(one.size_bytes for one in wanted))
    if not args.yes and not _confirmed(wanted, f"{format_count(len(wanted), 'run')}, {size}", say):
        return 1
    removed = 0
    for one in wanted:
        why_not = remove(one)
        removed += not why_not
        if why_not:
            failed = True
            _tell(say(f"{one.path} stays: {why_not}"))
    remembered()  # the index forgets them, too
    print(speaker("runs", sys.stdout, args.lang)(f"removed {format_count(removed, 'run')}"))
    return 1 if failed else 0


def _older(seconds: float) -> list[Path]:
    limit = time.time() - seconds
    return [Path(one.path) for one in remembered() if one.final and (one.ended or one.began) < limit]


def _confirmed(wanted: Sequence[Removal], what: str, say: Callable[[str], str]) -> bool:
    if not sys.stdin.isatty():
        raise DiagError(f"{what} would be removed", hint="add --yes", exit_code=2)
    for one in wanted[:_MOST_NAMED]:
        _tell(str(one.path))
    if len(wanted) > _MOST_NAMED:
        _tell("...")
    print(say(f"remove {what}? [y/N]"), end=" ", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _tell(text: str) -> None:
    from diag.text.sanitize import clean_lines

    print(clean_lines(text), file=sys.stderr)
