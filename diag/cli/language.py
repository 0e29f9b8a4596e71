"""The language of a command, where it reads no other setting."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TextIO

from diag.text.language import language_for, language_of


def language() -> str:
    """For commands that need no other setting: pydantic is imported only where it has something to read or to
    complain of."""
    chosen = os.environ.get("DIAG_LANG", "")
    if chosen not in ("", "en", "zh") or Path("diag.toml").exists():
        from diag.settings import load

        chosen = load(take=("lang",)).lang
    return language_of(chosen, os.environ)


def add_language(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--lang",
        choices=("en", "zh"),
        help="language of the report (default: the setting lang, else the locale); JSON is English always",
    )


def speaker(of: str, stream: TextIO, lang: str | None = None) -> Callable[[str], str]:
    """What gives a text of the command `of` in the language of who reads the stream: `str` in English; else Chinese, as
    far as there is any. `lang`: the option, where it was given."""
    if language_for(stream, lang or language()) == "en":
        return str
    from diag.outputs.chinese import by_line

    return partial(by_line, of=of)
