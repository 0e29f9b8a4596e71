"""The `diag` command: parses the line, runs the verb, prints errors as `error:` and `hint:`."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence

from diag import __version__
from diag.errors import DiagError

__all__ = ["VERBS", "main", "make_parser"]

# Verb -> (module, one-line help). The module is imported only when its verb is used: `diag --help` stays quick.
VERBS: dict[str, tuple[str, str]] = {
    "run": ("diag.commands.run", "run CMD unchanged and watch its ranks"),
    "watch": ("diag.commands.watch", "watch a job that already runs"),
    "dump": ("diag.commands.dump", "evidence and stacks of every rank, now"),
    "flame": ("diag.commands.flame", "flame graph of a rank, or of all ranks merged"),
    "replay": ("diag.commands.replay", "the same checks over evidence on disk"),
    "doctor": ("diag.commands.doctor", "check machine, limits and environment before the run"),
    "estimate": ("diag.commands.estimate", "GPU and host memory that CMD will need, the save included"),
    "rules": ("diag.commands.rules", "test and list the rules for lines of logs"),
    "explain": ("diag.commands.explain", "the manual page of a finding"),
}

_EPILOG = """exit codes: 0 clear, 1 diag itself failed, 2 usage, 10 findings of level warning or above;
`diag run` returns CMD's own code (128+n when CMD died of signal n)."""


def make_parser(verb: str | None = None) -> argparse.ArgumentParser:
    """The parser; with `verb` only that one's options are loaded, with None all of them (documentation, tests)."""
    parser = argparse.ArgumentParser(
        prog="diag",
        description="Diagnostics for distributed training: which rank, why, on what evidence, and what to change.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"diag {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    for name, (module, text) in VERBS.items():
        sub = verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        if verb is None or verb == name:
            importlib.import_module(module).add(sub)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    verb = words[0] if words and words[0] in VERBS else ""
    for stream in (sys.stdout, sys.stderr):  # a log line has any characters, a terminal's encoding may not
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    parser = make_parser(verb)
    if not words:
        parser.print_help()
        return 2
    args = parser.parse_args(words)
    if args.verb is None:
        parser.print_help()
        return 2
    try:
        code: int = importlib.import_module(VERBS[args.verb][0]).run(args)
        if sys.stdout is not None:  # closed by who called
            sys.stdout.flush()
        return code
    except DiagError as error:
        print(f"error: {error}", file=sys.stderr)
        if error.hint:
            print(f"\nhint: {error.hint}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # `diag replay ... | head`: nobody reads on, nor may Python say so when it flushes at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
