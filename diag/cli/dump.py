"""`diag dump`: finds the live run by itself, asks its hub for evidence of every rank, prints merged stacks. Of a job
that no run watches (`--pid`, or nothing else lives here) it looks itself: see `look`.

A person who types this waits: nothing is imported that is not needed, and the hub renders the text.
"""

from __future__ import annotations

import json
import os
import sys

from diag.cli.chosen import run_word
from diag.cli.client.endpoint import DUMP_SECONDS, NATIVE_SECONDS, NoLiveRun, add_options, endpoint
from diag.cli.language import add_language, language
from diag.text.colour import wanted
from diag.text.errors import DiagError
from diag.text.units import format_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

_COUNT_SECONDS = 1.0  # for the question how many ranks there are
_OTHER = "the hub runs another version of diag, or it is not a hub"
_GRACE_SECONDS = 4.0  # past its deadline the hub still writes the bundle


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all-ranks", action="store_true", help="every rank of the job (also the default)")
    where = add_options(parser)
    where.add_argument(
        "--pid",
        action="extend",
        nargs="+",
        type=_pids,
        metavar="PID",
        help="a job that diag did not start: its launcher, one rank or several; looks for 20 to 40 s, touches nothing",
    )
    where.add_argument(
        "run",
        nargs="?",
        type=run_word,
        metavar="RUN",
        help="the same as --run-dir (default: the newest live run; where none lives, the only job that runs here)",
    )
    add_language(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="copy the bundle to FILE")
    parser.add_argument(
        "--json", action="store_true", help="print the report (diag.report/1) and the dump as JSON"
    )
    parser.add_argument(
        "--native",
        action="store_true",
        help="also read C frames of one rank per stack class (8 at most); pauses these ranks for about a second",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        metavar="S",
        help=f"answer within S seconds (default {DUMP_SECONDS:g}, with --native {NATIVE_SECONDS:g}; "
        "of a job that no run watches: look for S seconds at most, default 40)",
    )


def run(args: argparse.Namespace) -> int:
    if args.run is not None:
        if args.pid:
            raise DiagError("RUN and --pid are two jobs", hint="give one of them", exit_code=2)
        args.run_dir = _run(args.run)
    document, where = _document(args)
    if args.output is not None:
        _copy(document, args.output)
    try:
        text, code = _text(document, json_too=args.json)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise DiagError(
            f"{where} did not return a diag dump: {type(error).__name__}: {error}"[:300], hint=_OTHER
        ) from None
    print(text)
    if args.output is not None and not args.json:
        print(f"copied to {args.output}")
    return code


def _document(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """The dump with its text as `screen`, and where it is from."""
    if args.pid:
        from diag.cli import look

        args.run_dir = look.run_of_pids(args.pid)
    if not args.pid or args.run_dir is not None:
        try:
            url, token, run_path, ca = endpoint(args)
        except NoLiveRun:
            pass
        else:
            return _ask(args, url, token, run_path, ca), url
    from diag.cli import look

    return look.dump_of_pids(args) if args.pid else look.dump_of_the_only_job(args), "the look"


def _pids(word: str) -> list[int]:
    """One pid, or several as `pgrep -d,` gives them.

    >>> _pids("812,813")
    [812, 813]
    """
    return [int(part) for part in word.split(",")]


_pids.__name__ = "int"  # argparse names it in its errors


def _run(path: str) -> str:
    if not os.path.exists(path):  # noqa: PTH110 - no pathlib for who waits
        raise DiagError(
            f"{path!r} is neither a run directory nor the id of a run",
            hint="`diag runs` lists them",
            exit_code=2,
        )
    return path


def _text(document: dict[str, Any], *, json_too: bool) -> tuple[str, int]:
    """What is printed, and the exit code. Raises anything where it is not a dump."""
    screen = document.pop("screen", None)
    code = 10 if document["found"] else 0
    if json_too:
        return json.dumps({**document["report"], "dump": document}, indent=1), code
    from diag.text.sanitize import clean_lines

    return clean_lines(screen, colour=wanted(1)), code  # whatever answered, it only paints


def _columns() -> int:
    """As shutil.get_terminal_size, without its imports."""
    try:
        return max(60, int(os.environ.get("COLUMNS") or 0) or os.get_terminal_size(1).columns)
    except (OSError, ValueError):
        return 80


def _ask(
    args: argparse.Namespace, url: str, token: str | None, run_path: str | None, ca: str | None
) -> dict[str, Any]:
    from diag.cli.client.answer import ask, check_address, document_of
    from diag.cli.client.http import post
    from diag.text.language import language_for
    from diag.text.ticker import Ticker

    check_address(url)
    seconds = args.seconds or (NATIVE_SECONDS if args.native else DUMP_SECONDS)
    lang = language_for(sys.stdout, args.lang or language())
    query = f"deadline={seconds:g}&columns={_columns()}&colour={int(wanted(1))}&lang={lang}"
    query += "&native=1" if args.native else ""
    again = f"diag watch --run-dir {run_path}" if run_path else "diag watch --pid PID on that node"
    with Ticker(_Waiting(url, token, ca, seconds)):
        body = ask(
            *(url, f"/dump?{query}", token, ca, seconds + _GRACE_SECONDS),
            *(f"attach a new one: {again}", post),
        )
    document = document_of(url, body)
    if "report" not in document:
        raise DiagError(f"{url} did not return a diag dump", hint=_OTHER)
    return document


class _Waiting:
    """The line while the hub gathers: how many ranks are awaited, and how long at most."""

    def __init__(self, url: str, token: str | None, ca: str | None, deadline: float) -> None:
        self._asked = url, token, ca
        self._deadline = deadline
        self._ranks: int | None = None

    def __call__(self, seconds: float) -> str:
        if self._ranks is None:
            self._ranks = self._count()
        whom = f"{self._ranks} rank{'s' if self._ranks > 1 else ''}" if self._ranks else "the ranks"
        if seconds < self._deadline:
            return f"diag: waiting for {whom}: {format_seconds(seconds)} of at most {format_seconds(self._deadline)}"
        return f"diag: {format_seconds(seconds)}: assembling the answers of {whom}"

    def _count(self) -> int:
        """Of the hub's report; 0 where it does not say it at once."""
        from diag.cli.client.answer import authorization
        from diag.cli.client.http import get

        url, token, ca = self._asked
        try:
            job = json.loads(get(f"{url}/findings", authorization(token), _COUNT_SECONDS, ca)[2])["job"]
            return max(int(job.get("world_size") or 0), int(job.get("ranks_seen") or 0))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return 0


def _is_bundle(path: str) -> bool:
    """Raises OSError and ValueError."""
    import gzip

    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as raw, gzip.open(raw) as file:
        head = file.read(1024)
    return head.startswith(b"manifest.json\0") and b'"diag.bundle/1"' in head


def _copy(document: dict[str, Any], target: str) -> None:
    import shutil

    source = document.get("bundle")
    if not source:
        raise DiagError(
            f"no bundle was written: {document.get('bundle_error', 'the run has no run directory')}"
        )
    try:
        if not _is_bundle(str(source)):  # the hub that answered named a file of this machine
            raise DiagError(f"{source} is not a diag bundle and was not copied")
        shutil.copyfile(source, target)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise DiagError(
            f"the bundle cannot be copied to {target}: {why}", hint=f"it is at {source}"
        ) from None
    document["bundle"] = target
