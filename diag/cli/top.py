"""`diag top`: a run in the terminal, live from its hub or from evidence on disk; plain text, once, where
there is no terminal."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from diag.cli.chosen import run_path
from diag.cli.client.endpoint import add_options, endpoint
from diag.cli.language import language
from diag.text.colour import wanted
from diag.text.errors import DiagError

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from diag.cli.tui.source import Source
    from diag.cli.tui.state import State


def add(parser: argparse.ArgumentParser) -> None:
    where = add_options(parser)
    where.add_argument(
        "paths",
        nargs="*",
        type=run_path,
        default=[],
        metavar="PATH",
        help="evidence on disk: a run directory or id, -1 for the last run, a bundle, a capture (default: the newest "
        "live run)",
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help="print one snapshot as text and exit (the default without a terminal or with TERM=dumb)",
    )
    parser.add_argument("--json", action="store_true", help="print the state (diag.state/1) and exit")
    parser.add_argument(
        "--lang",
        choices=("en", "zh"),
        help="language of the screen (default: the setting lang, else the locale)",
    )


def run(args: argparse.Namespace) -> int:
    from diag.text.language import language_for

    source = _source(args)
    document = source.first()
    if args.json:
        import json

        print(json.dumps(document, indent=1))
    from diag.cli.tui.state import State

    state = State()
    try:
        state.take_document(document)
    except ValueError as error:
        raise DiagError(
            f"not the state of a run: {error}", hint="the hub runs another version of diag"
        ) from None
    if args.json:
        return _code(state)
    lang = language_for(sys.stdout, args.lang or language())
    if args.once or not is_screen():
        _print(state, lang)
        return _code(state)
    from diag.cli.tui.app import TopApp
    from diag.cli.tui.spark import BLOCKS
    from diag.text.language import can_show

    # what a shell exported once: the terminal knows better, also after a change of its size
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
    # which is where Textual draws
    app = TopApp(source, document, lang=lang, blocks=can_show(BLOCKS, sys.stderr))
    app.run(mouse=False)  # the terminal's own selection copies text
    if app.copied:
        print(app.copied)
    return app.return_code or 0


def is_screen() -> bool:
    """A person looks, and can type."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    return os.environ.get("TERM", "dumb") != "dumb" and all(
        stream is not None and stream.isatty() for stream in streams
    )


def _code(state: State) -> int:
    from diag.model import found

    return 10 if found(state.report) else 0


def _print(state: State, lang: str) -> None:
    import shutil

    from diag.cli.tui.once import picture
    from diag.cli.tui.spark import BLOCKS, PLAIN
    from diag.text.language import can_show

    marks = BLOCKS if can_show(BLOCKS, sys.stdout) else PLAIN
    width = max(60, shutil.get_terminal_size().columns)
    print(picture(state, "LIVE", width=width, colour=wanted(1), lang=lang, marks=marks))


def _source(args: argparse.Namespace) -> Source:
    """A run directory whose run lives here is asked, other paths are read."""
    from diag.cli.tui.live import Live

    if args.paths:
        if len(args.paths) > 1 or not lives(args.paths[0]):
            from diag.cli.tui.source import Recorded

            evidence = Recorded(args.paths)
            from diag.text.sanitize import clean

            for note in evidence.notes:
                print(f"diag: {clean(note)}", file=sys.stderr)
            return evidence
        args.run_dir = str(args.paths[0])
    return Live(*endpoint(args))


def lives(path: Path) -> bool:
    """A run directory whose run lives on this machine, and can be asked."""
    from diag.launch.runs import is_alive, is_ours, read_run

    try:
        run = read_run(str(path))
        serves = bool(run.get("url")) and not run.get("ended")
        return serves and is_ours(run) and is_alive(int(run["hub_pid"]), run.get("hub_start_ticks"))
    except (DiagError, KeyError, TypeError, ValueError, OverflowError):
        return False
