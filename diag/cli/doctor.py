"""`diag doctor`: what will get in the way of the run, or of diag, reported before the run. It changes nothing."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from diag.cli import manifests
from diag.cli.language import add_language, speaker
from diag.text.colour import wanted
from diag.text.errors import DiagError
from diag.text.ticker import Ticker
from diag.text.units import format_seconds

if TYPE_CHECKING:
    from diag.preflight import Line


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print diag.report/1")
    parser.add_argument(
        "--wait",
        type=_seconds,
        default=0.0,
        metavar="SECONDS",
        help="with several nodes: node 0 listens on CMD's own "
        "port for this long and the others try to reach it (run it on all at once); default: 0, one try",
    )
    parser.add_argument(
        "--no-load", action="store_true", help="read software versions without importing anything"
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="show the checks that found nothing wrong, one a line"
    )
    parser.add_argument(
        "--env",
        action="store_true",
        help="explain each variable of this environment and of CMD instead: what it does, who reads it, what to do",
    )
    parser.add_argument(
        "--swift-version",
        type=_version,
        metavar="X.Y",
        help="hold CMD's flags against this ms-swift, as of an image or another machine",
    )
    manifests.add(parser)
    add_language(parser)
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- CMD ...", help="the command that will be run"
    )


def _version(text: str) -> str:
    if not re.fullmatch(r"\d{1,3}\.\d{1,3}(\.\S{1,30})?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a version such as 3.7 or 4.6.0")
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds between 0 and 3600")
    return seconds


def _doing(lines: Sequence[Line], wait: float, seconds: float) -> str:
    """For who waits: imports take seconds, the other nodes up to `wait`."""
    done = f"diag: {len(lines)} checks done in {format_seconds(seconds)}"
    return f"{done}; the nodes have {format_seconds(wait)} to meet" if wait else done


def run(args: argparse.Namespace) -> int:
    from diag.preflight.report import document, sorted_lines, summary, text

    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if args.manifest and command:
        hint = "the command is taken from the manifest"
        raise DiagError("--manifest cannot be combined with a command", hint=hint, exit_code=2)
    if command and not command[0].strip():
        hint = "a variable in front of it may be empty"
        raise DiagError("the command after `--` is empty", hint=hint, exit_code=2)
    if args.env and args.manifest:
        hint = "diag doctor --env -- CMD"
        raise DiagError("--env cannot be combined with --manifest", hint=hint, exit_code=2)
    if args.manifest:
        return manifests.run(args)
    if args.fix or args.rdma:
        hint = "diag doctor --manifest FILE --fix > fixed.yaml"
        raise DiagError("--fix and --rdma are about manifests", hint=hint, exit_code=2)
    say = speaker("doctor", sys.stdout, args.lang)
    lines: list[Line] = []
    checks = _checks(command, args)
    try:
        with Ticker(lambda seconds: say(_doing(lines, args.wait, seconds))):
            for line in checks:
                lines.append(line)
    except KeyboardInterrupt:  # while node 0 waits for the others: what was seen until then is printed
        if not args.json and lines:
            print(text(sorted_lines(lines), colour=wanted(1), say=say), flush=True)
        raise
    whole = _corrected(command, lines)
    if args.json:
        print(json.dumps(document(lines) | ({"corrected": whole} if whole else {}), indent=1))
    else:
        print(text(sorted_lines(lines), colour=wanted(1), verbose=args.verbose or args.env, say=say))
        if whole:
            from diag.preflight.line import table

            print(f"\n{say(table('report')['corrected'])}\n{whole}")
        print("\n" + summary(lines, say))
    return 10 if any(line.status == "problem" for line in lines) else 0


def _checks(command: Sequence[str], args: argparse.Namespace) -> Iterator[Line]:
    """Imports take seconds: they are done while the rest is looked at, and while the nodes meet."""
    if args.env:
        from diag.preflight.environment_page import check_variables

        yield from check_variables(command)
        return
    from diag.cli.runs import remembered
    from diag.preflight.beside import beside
    from diag.preflight.history import check_history
    from diag.preflight.software import check_software, stop_asking

    history = beside(check_history(lambda: remembered(save=False)))  # doctor writes nothing
    software = beside(check_software(command, loads=not args.no_load, swift_version=args.swift_version or ""))
    try:
        from diag.preflight.checks import check_machine  # while CMD's Python starts
        from diag.preflight.network import check_network

        yield from check_machine(command)
        yield from history
        yield from check_network(command, args.wait)
        yield from software
    except BaseException:  # Ctrl-C: no import may outlive diag, nor hold it up
        stop_asking()
        raise


def _corrected(command: Sequence[str], lines: Sequence[Line]) -> str:
    """CMD's `docker run` line with all that the report asks for; "" for none."""
    if not any(line.adds for line in lines):
        return ""
    import os

    from diag.launch.launchers.command import read_command
    from diag.preflight.container_flags import corrected

    read = read_command(command, os.environ)
    return "" if read.container is None else corrected(read.container, lines, sudo="sudo" in read.chain)
