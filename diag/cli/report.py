"""`diag report [RUN]`: the page of a run as one HTML file to send; it opens without diag and without a network."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from diag.cli.chosen import run_path
from diag.text.errors import DiagError


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        nargs="*",
        type=run_path,
        metavar="RUN",
        help="a run directory, its id, or -1 for the last run (also the default); or what `diag replay` takes: a bundle, "
        "a captured folder, log files; - is stdin",
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write it to FILE (default: diag-report-RUN.html; - is stdout)"
    )
    parser.add_argument(
        "--rules", type=Path, metavar="DIR", help="a folder of rules beside those that come with diag"
    )


def run(args: argparse.Namespace) -> int:
    from diag.cli.recorded import RecordedView
    from diag.detectors.rules.load import load
    from diag.engine.replay import replay
    from diag.outputs.one_file import page_file
    from diag.text.progress_line import Progress
    from diag.text.sanitize import clean

    paths = args.paths or [run_path("-1")]
    progress = Progress()
    try:
        engine, _, notes = replay(paths, progress, load([args.rules]) if args.rules else None)
    finally:
        progress.close()
    for note in notes:
        print(f"diag: {clean(note)}", file=sys.stderr)
    view = RecordedView(engine, paths)
    run = engine.job.run
    if run.evidence and run.ended_at is not None:  # its processes are gone, and with them where they stood
        print(
            f"diag: as it was when it was told: diag report {clean(run.evidence[-1][1].path)}",
            file=sys.stderr,
        )
    document = page_file(view, view.recorded)
    _write(document, args.output or f"diag-report-{view.run_id.partition('.')[0]}.html")
    return 0


def _write(document: bytes, target: str) -> None:
    from diag.text.units import format_bytes

    if target == "-":
        sys.stdout.buffer.write(document)
        return
    try:
        # It has the job's command and lines of its log: for who writes it alone, until they give it on.
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(document)
    except OSError as error:
        raise DiagError(f"the report cannot be written to {target}: {error.strerror or error}") from None
    print(f"{target} ({format_bytes(len(document))})")
