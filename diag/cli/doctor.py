"""`diag doctor`: what will get in the way of the run, or of diag, reported before the run. It changes nothing."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from diag.cli import manifests
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
    manifests.add(parser)
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- CMD ...", help="the command that will be run"
    )


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
    from diag.preflight import check_machine, document, sorted_lines, summary, text
    from diag.preflight.network import check_network
    from diag.preflight.software import check_software

    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if args.manifest and command:
        hint = "the command is taken from the manifest"
        raise DiagError("--manifest cannot be combined with a command", hint=hint, exit_code=2)
    if command and not command[0].strip():
        hint = "a variable in front of it may be empty"
        raise DiagError("the command after `--` is empty", hint=hint, exit_code=2)
    if args.manifest:
        return manifests.run(args)
    if args.fix or args.rdma:
        hint = "diag doctor --manifest FILE --fix > fixed.yaml"
        raise DiagError("--fix and --rdma are about manifests", hint=hint, exit_code=2)
    lines: list[Line] = []
    # Imports take seconds, more on one node than on another: the nodes meet before them.
    checks = itertools.chain(
        check_machine(command),
        check_network(command, args.wait),
        check_software(command, loads=not args.no_load),
    )
    try:
        with Ticker(lambda seconds: _doing(lines, args.wait, seconds)):
            for line in checks:
                lines.append(line)
    except KeyboardInterrupt:  # while node 0 waits for the others: what was seen until then is printed
        if not args.json and lines:
            print(text(sorted_lines(lines), colour=wanted(1)), flush=True)
        raise
    if args.json:
        print(json.dumps(document(lines), indent=1))
    else:
        print(text(sorted_lines(lines), colour=wanted(1)) + "\n\n" + summary(lines))
    return 10 if any(line.status == "problem" for line in lines) else 0
