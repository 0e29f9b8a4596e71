"""`diag explain ID`: the manual page of a finding, its detector's docstring or a page of the checks before the run."""

from __future__ import annotations

import argparse
import difflib
import inspect
import os

from diag.errors import DiagError

__all__ = ["add", "pages", "run"]


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", nargs="?", help="a finding id, such as hang; without one: list them")


def pages() -> dict[str, str]:
    """Finding id -> manual page."""
    from diag.detectors import DETECTORS
    from diag.preflight.manual import PAGES

    return {**{kind.name: inspect.cleandoc(kind.__doc__ or "") for kind in DETECTORS}, **PAGES}


def run(args: argparse.Namespace) -> int:
    manual = pages()
    if args.id is None:
        for name, text in manual.items():
            print(f"{name:<20} {text.splitlines()[0].removeprefix('Meaning: ')}")
        return 0
    if args.id not in manual:
        near = difflib.get_close_matches(args.id, manual, n=1)
        raise DiagError(f"there is no finding {args.id!r}", hint=f"did you mean {near[0]}?" if near else
                        "diag explain lists them", exit_code=2)
    print(args.id + os.linesep + "=" * len(args.id) + os.linesep + manual[args.id])
    return 0
