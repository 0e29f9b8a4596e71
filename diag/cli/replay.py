"""`diag replay PATH ...`: the live checks over evidence on disk. Nothing is executed, nothing is unpacked to
disk."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from diag.cli.chosen import run_path
from diag.cli.language import add_language, language
from diag.text.colour import wanted
from diag.text.errors import DiagError

if TYPE_CHECKING:
    from diag.engine.engine import Engine


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        nargs="+",
        type=run_path,
        metavar="PATH",
        help="a run directory or id, -1 for the last run, a dump bundle, a capture directory or log files; - is stdin",
    )
    parser.add_argument("--json", action="store_true", help="print diag.report/1")
    parser.add_argument(
        "--rules", type=Path, metavar="DIR", help="a folder of rules beside those that come with diag"
    )
    parser.add_argument(
        "--changes", action="store_true", help="print each change with its time instead of the report"
    )
    add_language(parser)
    parser.add_argument("--serve", action="store_true", help="serve it as a live job's page until Ctrl-C")
    parser.add_argument("--host", metavar="ADDRESS", help="with --serve: HTTP address (default 127.0.0.1)")
    parser.add_argument(
        "--port", type=int, metavar="N", help="with --serve: HTTP port (default 9095, else any free one)"
    )


def run(args: argparse.Namespace) -> int:
    if not args.serve and (args.host is not None or args.port is not None):
        raise DiagError("--host and --port apply only to the page", hint="add --serve", exit_code=2)
    if args.serve and (args.json or args.changes):
        raise DiagError(
            "--serve shows a page and prints no report",
            hint="omit --json and --changes, or --serve",
            exit_code=2,
        )
    from diag.detectors.rules.load import load
    from diag.engine.replay import replay
    from diag.model import found
    from diag.outputs.report import report
    from diag.outputs.terminal.text import classes_text, report_text
    from diag.outputs.view.classes import stack_classes
    from diag.text.language import language_for
    from diag.text.progress_line import Progress
    from diag.text.sanitize import clean

    progress = Progress()
    try:
        engine, changes, notes = replay(args.paths, progress, load([args.rules]) if args.rules else None)
    finally:
        progress.close()
    for note in notes:
        print(f"diag: {clean(note)}", file=sys.stderr)  # names of files are strangers' too
    if args.serve:
        return _serve(engine, args)
    document = report(engine)
    if args.json:
        print(json.dumps(document, indent=1))
    elif args.changes:
        for change in changes:
            print(json.dumps(change.to_json()))
    else:
        width = max(60, shutil.get_terminal_size().columns)
        lang = language_for(sys.stdout, args.lang or language())
        print(report_text(document, colour=wanted(1), width=width, lang=lang))
        classes = stack_classes(engine)
        if classes and any(finding["id"] in ("hang", "held-up") for finding in document["findings"]):
            print()
            print(classes_text(classes, width, lang=lang))
    return 10 if found(document) else 0


def _serve(engine: Engine, args: argparse.Namespace) -> int:
    """The page over what was read, until a signal ends it."""
    import signal

    from diag.cli.recorded import RecordedView
    from diag.launch.ports import is_loopback
    from diag.launch.settings_file import OF_EVIDENCE
    from diag.outputs.http.server import PortTaken, serve
    from diag.outputs.http.serving import format_page_line, refuse_taken_port
    from diag.outputs.report import report
    from diag.settings import load

    settings = load(take=OF_EVIDENCE, host=args.host, port=args.port)
    refuse_taken_port(settings, asked_for="port" in settings.model_fields_set)
    host = settings.host or "127.0.0.1"
    view = RecordedView(engine, args.paths, beyond_loopback=not is_loopback(host), token=settings.token)
    signals = {signal.SIGINT, signal.SIGTERM}
    # before the server's threads, which would take them otherwise
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        server = serve(view, host, settings.port, certificate=settings.tls_cert, key=settings.tls_key)
    except PortTaken:
        server = serve(view, host, 0, certificate=settings.tls_cert, key=settings.tls_key)
    print(report(engine)["sentence"], flush=True)
    print(
        f"diag: page {format_page_line(server, settings, view.token)}; Ctrl-C stops it",
        file=sys.stderr,
        flush=True,
    )
    signal.sigwait(signals)
    server.stop()
    return 0
