"""`diag flame RANK`: what a rank spends its time on, recorded now through the run's hub, or drawn from
recorded evidence."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diag.cli.chosen import run_path
from diag.cli.client.endpoint import add_options, endpoint
from diag.text.errors import DiagError
from diag.text.ticker import Ticker, bar
from diag.text.units import format_ranks, format_seconds

if TYPE_CHECKING:
    from diag.outputs.http.flame import Profile

_ENDINGS = {"svg": "svg", "speedscope": "speedscope.json", "collapsed": "txt"}
# Of the hub, beyond the recording: py-spy starts, writes, and is given up by the hub after 15 s.
_GRACE_SECONDS = 30.0


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "rank", metavar="RANK", help="a global rank; all: one graph of all ranks, from their last stacks"
    )
    parser.add_argument(
        "--seconds", type=_between(1, 300), default=10.0, metavar="S", help="recording time (default 10)"
    )
    parser.add_argument(
        "--rate", type=_between(1, 200), default=50, metavar="N", help="samples a second (default 50)"
    )
    parser.add_argument(
        "--format", choices=list(_ENDINGS), default="svg", help="svg (default), speedscope or collapsed lines"
    )
    parser.add_argument(
        "--children", action="store_true", help="child processes too (DataLoader workers ...)"
    )
    parser.add_argument(
        "--native",
        action="store_true",
        help="C and C++ frames too; pauses the rank for some milliseconds at each sample",
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="where to write (default flame-rankN.svg; - is stdout)"
    )
    where = add_options(parser)
    where.add_argument(
        "--from",
        dest="source",
        type=run_path,
        metavar="PATH",
        help="draw recorded stacks from a run directory or id (-1: the last run) or a bundle; no process is read",
    )


def _between(low: int, high: int) -> Any:
    def number(text: str) -> float:
        value = float(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text} is not between {low} and {high}")
        return value

    number.__name__ = "number"  # as argparse prints it: invalid number value
    return number


def run(args: argparse.Namespace) -> int:
    rank = _rank(args.rank)
    data = recorded([args.source], args, rank) if args.source is not None else _live(args, rank)
    name = "all" if rank is None else f"rank{rank}"
    _write(data, args.output or f"flame-{name}.{_ENDINGS[args.format]}")
    return 0


def _rank(text: str) -> int | None:
    if text == "all":
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 8):
        raise DiagError(f"{text!r} is not a rank", hint="diag flame 3, or diag flame all", exit_code=2)
    return int(text)


def _write(data: bytes, target: str) -> None:
    if target == "-":
        if sys.stdout is not None:
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
        return
    path = Path(target)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")  # whole or not at all
    try:
        if path.exists() and not path.is_file():  # /dev/stdout, a FIFO
            path.write_bytes(data)
        else:
            temporary.write_bytes(data)
            temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise DiagError(
            f"the flame graph cannot be written to {path}: {error.strerror}", hint="choose a place with -o"
        ) from None
    print(path)


# --- live


def _live(args: argparse.Namespace, rank: int | None) -> bytes:
    from urllib.parse import urlencode

    from diag.cli.client.answer import ask, check_address
    from diag.cli.client.http import get, post

    url, token, _, ca = endpoint(args)
    check_address(url)
    wanted: dict[str, str] = {"format": args.format, "children": str(args.children).lower()}
    path, recorded = "/flame", 0.0
    if rank is not None:
        path, recorded = f"/ranks/{rank}/flame", args.seconds
        wanted |= {
            "seconds": f"{args.seconds:g}",
            "rate": f"{args.rate:.0f}",
            "native": str(args.native).lower(),
        }
        about = "; it is paused for some milliseconds at each sample (--native)" if args.native else ""
        recording = f"diag: recording rank {rank} for {format_seconds(args.seconds)}{about}"
        print(recording, file=sys.stderr, flush=True)
    with Ticker(lambda passed: _recording(passed, recorded)):
        body = ask(
            *(url, f"{path}?{urlencode(wanted)}", token, ca, args.seconds + _GRACE_SECONDS),
            *("diag flame RANK --from RUN_DIR draws what was recorded", get if rank is None else post),
        )
    if not _is_graph(body, args.format):
        raise DiagError(
            f"{url} answers, but is not diag: it returned no flame graph",
            hint="is that another server's port?",
        )
    return body


def _is_graph(body: bytes, form: str) -> bool:
    """Something of the form that was asked for: any server answers 200 to something. Collapsed lines end in a
    number."""
    head = body.lstrip()[:2000]
    if form == "svg":
        return b"<svg" in head
    if form == "speedscope":
        return head.startswith(b"{") and b'"$schema"' in body
    return not head or head.partition(b"\n")[0].rpartition(b" ")[2].rstrip().isdigit()


def _recording(passed: float, seconds: float) -> str:
    """
    >>> _recording(4.2, 10.0)
    'diag: [##########              ] 4 s of 10 s'
    """
    if passed < seconds:
        return f"diag: {bar(passed, seconds)} {format_seconds(round(passed))} of {format_seconds(seconds)}"
    return f"diag: {format_seconds(passed)}: drawing the graph"


# --- recorded


def recorded(sources: Sequence[Path], args: argparse.Namespace, rank: int | None) -> bytes:
    """Drawn from what a replay of these reads, as `args.format`, with `args.children`. Raises DiagError."""
    from diag.outputs.http.flame import write

    if args.native:
        raise DiagError("recorded stacks have no native frames", hint="omit --native or --from", exit_code=2)
    profile = _merged(sources, args) if rank is None else _of_rank(sources, args, rank)
    return write(profile, args.format).encode("utf-8", "backslashreplace")


def _of_rank(sources: Sequence[Path], args: argparse.Namespace, rank: int) -> Profile:
    from diag.model.observations import RunStarted, StackSample
    from diag.outputs.http.flame import SeriesBuilder

    builder = SeriesBuilder(rank, children=args.children)
    seen: set[int] = set()
    for at, fact in _facts(sources):
        if isinstance(fact, StackSample) and fact.rank is not None:
            seen.add(fact.rank)
            builder.add(at, fact)
        elif isinstance(fact, RunStarted):
            builder.cwd = fact.cwd
    if not builder.seen:
        hint = f"it has stacks of {format_ranks(list(seen))}" if seen else "it has no stacks of any rank"
        raise DiagError(f"{', '.join(map(str, sources))} has no stack of rank {rank}", hint=hint)
    return builder.profile()


def _merged(sources: Sequence[Path], args: argparse.Namespace) -> Profile:
    from diag.detectors.relations import Precedence
    from diag.engine.engine import Engine
    from diag.model.observations import RankExited, RunEnded
    from diag.outputs.http.flame import merged_profile
    from diag.sources.parsers import PARSERS

    engine = Engine(PARSERS, [], Precedence())
    for at, fact in _facts(sources):
        if not isinstance(fact, (RankExited, RunEnded)):  # where they were last, though all have ended since
            engine.job.observe(at, fact)
    profile = merged_profile(engine, children=args.children)
    if not profile.samples:
        raise DiagError(f"{', '.join(map(str, sources))} has no stack of any rank")
    return profile


def _facts(sources: Sequence[Path]) -> Iterator[tuple[float, Any]]:
    """What was recorded, in order, with the time of its record."""
    from diag.engine.replay import Evidence
    from diag.sources.parsers import PARSERS
    from diag.text.progress_line import Progress

    progress = Progress()
    evidence = Evidence(list(sources), progress)
    try:
        for record in evidence:
            parser = PARSERS.get(record.source)
            for fact in parser(record) if parser is not None else ():
                yield record.at, fact
    finally:
        progress.close()
    from diag.text.sanitize import clean

    for note in evidence.notes:
        print(f"diag: {clean(note)}", file=sys.stderr)
