"""`diag completion SHELL`: the script by which a shell completes the words of `diag`, made from the parsers
of all verbs. The folder `shells` has what surrounds it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

SHELLS = ("bash", "zsh", "fish", "tcsh")

# By what an option's value is called in its help.
_FILES = frozenset({"FILE", "PATH"})
_DIRECTORIES = frozenset({"DIR", "RUN"})
_WORDS = {"auto|off|HOSTS": ("auto", "off"), "RANK": ("all",)}
_COMMAND = "_diag_command"  # the function of shells/zsh that completes what follows `--`


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "shell",
        choices=SHELLS,
        metavar="SHELL",
        help="bash, zsh, fish or tcsh; the first lines of its output show where to install it",
    )


def run(args: argparse.Namespace) -> int:
    print(script(args.shell))
    return 0


def script(shell: str) -> str:
    import shtab

    from diag.cli.main import make_parser
    from diag.outputs import manual

    parser = make_parser()
    for action in _actions(parser):
        if action.nargs == argparse.REMAINDER:
            action.complete = {"bash": "_shtab_compgen_files", "zsh": _COMMAND, "tcsh": "c", "fish": ""}  # type: ignore[attr-defined]
        elif action.dest == "id":
            action.choices = manual.ids()
        elif action.metavar in _WORDS:
            action.choices = _WORDS[str(action.metavar)]
        elif action.metavar in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar in _DIRECTORIES:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    body = shtab.complete(parser, shell).removeprefix("#compdef diag\n")
    # shtab's own directions name folders that no shell reads by itself.
    body = re.sub(r"(?m)^# (AUTOMATICALLY GENERATED|Usage:|\d\) |   (source|fpath=)|See also:).*\n", "", body)
    template = (Path(__file__).parent / "shells" / shell).read_text(encoding="utf-8")
    return template.replace("@completion@", body.strip("\n")).rstrip()


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from _actions(sub)
