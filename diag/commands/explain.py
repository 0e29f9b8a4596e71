"""`diag explain ID`: the manual page of a finding, in English or Chinese."""

from __future__ import annotations

import argparse
import io
import os
import shutil
import sys
from collections.abc import Iterator

from diag.errors import DiagError

__all__ = ["add", "pages", "rule_page", "run"]

_WIDEST = 110  # columns: longer lines are hard to read
_NAMES = 26  # columns of the list's first word


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", nargs="?", help="a finding id, such as hang; without one: list them")
    parser.add_argument("--lang", choices=("en", "zh"), help="language of the page (default: the setting lang, else the locale)")
    parser.add_argument("--json", action="store_true", help="print the page as GET /explain/ID gives it; without ID each meaning")


def pages(lang: str = "en") -> dict[str, str]:
    """Finding id -> manual page."""
    from diag import manual

    return {finding: manual.text(finding, lang) for finding in manual.ids()}


def rule_page(rule: str, lang: str) -> dict[str, str]:
    """The sections of a rule's page, where the id is no finding's; none where there is no such rule."""
    from diag.rules.load import load
    from diag.rules.page import sections
    from diag.settings import load as settings

    folder = settings().rules
    known = load([folder] if folder is not None else []).by_id
    return sections(known[rule], lang) if rule in known else {}


def run(args: argparse.Namespace) -> int:
    from diag import manual

    if args.json:
        return _print_json(args.id, args.lang)
    lang = _language(args.lang)
    width = min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns)
    if args.id is None:
        for finding in manual.ids():
            print(_entry(finding, lang, width if os.isatty(1) else 0))
        return 0
    page = manual.sections(args.id, lang) or rule_page(args.id, lang)
    if not page:
        raise DiagError(f"there is no finding and no rule {args.id!r}", hint=_near(args.id), exit_code=2)
    print(args.id + os.linesep + "=" * len(args.id))
    for heading, text in page.items():
        print(os.linesep.join(["", *_section(heading, text, lang, max(40, width))]))
    return 0


def _print_json(finding: str | None, told: str | None) -> int:
    import json

    from diag import manual
    from diag.language import language

    lang = told or language()
    if finding is None:
        print(json.dumps({"lang": lang, "meanings": {name: manual.meaning(name, lang) for name in manual.ids()}}, indent=1))
        return 0
    page = manual.sections(finding, lang) or rule_page(finding, lang)
    if not page:
        raise DiagError(f"there is no finding and no rule {finding!r}", hint=_near(finding), exit_code=2)
    print(json.dumps({"id": finding, "lang": lang, "sections": page}, indent=1))
    return 0


def _language(told: str | None) -> str:
    """Chinese only where it can be shown, or was asked for by name; then with question marks, and a word of why."""
    from diag.language import CHINESE, can_show, language

    lang = told or language()
    if lang != "zh" or can_show(CHINESE, sys.stdout):
        return lang
    encoding = getattr(sys.stdout, "encoding", "") or "unknown"
    shown = "question marks stand for it" if told else "the page is English"
    print(f"diag: this terminal's encoding ({encoding}) has no Chinese, {shown}: set PYTHONUTF8=1", file=sys.stderr)
    if told and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    return told or "en"


def _entry(finding: str, lang: str, width: int) -> str:
    """One line of the list, cut where it goes to a terminal."""
    from diag.manual import meaning
    from diag.outputs.text import _cut
    from diag.outputs.wide import pad

    line = f"{pad(finding, _NAMES)} {meaning(finding, lang)}"
    return _cut(line, width) if width else line


def _section(heading: str, text: str, lang: str, width: int) -> Iterator[str]:
    from diag.outputs.wide import wrap

    yield heading + ("：" if lang == "zh" else ":")
    for line in text.splitlines():
        if line.startswith("- "):
            yield from wrap(line[2:], width, "  - ", "    ")
        elif line:
            yield from wrap(line, width, "  ")
        else:
            yield ""


def _near(wrong: str) -> str:
    from diag import manual

    having = [finding for finding in manual.ids() if wrong in manual.causes(finding, "en")]
    if having:
        return f"it is a cause of {', '.join(having[:4])}: diag explain {having[0]}"
    from diag.suggest import did_you_mean

    return did_you_mean(wrong, manual.ids()) or "diag explain lists them"
