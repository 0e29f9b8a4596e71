"""`diag notify --test [URL ...]`: a test message, and what each service answered."""

from __future__ import annotations

import argparse
import json
import os
import sys

from diag.text.errors import DiagError


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "urls",
        nargs="*",
        metavar="URL",
        help="an address as `diag run --notify` takes it, or @FILE (default: the setting notify)",
    )
    parser.add_argument(
        "--test", action="store_true", help="send a test message, and print what each service answered"
    )
    parser.add_argument("--json", action="store_true", help="print the answers as JSON")
    parser.add_argument(
        "--lang",
        choices=("en", "zh"),
        help="language of the message (default: the setting lang, else the locale)",
    )


def run(args: argparse.Namespace) -> int:
    from diag.cli.language import language, speaker
    from diag.outputs.notify.addresses import INSTALL, addresses, lacking
    from diag.outputs.notify.child import ask

    if not args.test:
        raise DiagError("nothing to do: --test is missing", hint="diag notify --test URL", exit_code=2)
    found = addresses(" ".join(args.urls) or _set())
    if not found:
        raise DiagError(
            "no address is given",
            hint="diag notify --test URL, or the setting notify (DIAG_NOTIFY, diag.toml)",
            exit_code=2,
        )
    if line := lacking(found):
        raise DiagError(line, hint=INSTALL, exit_code=2)
    lang = args.lang or language()
    answers = ask(
        {"event": {"event": "test", "run": {"host": os.uname().nodename}}, "lang": lang},
        [(one.url, one.name) for one in found],
    )
    if args.json:
        print(json.dumps({"schema": "diag.notify/1", "answers": answers}, indent=1))
    else:
        say = speaker("notify", sys.stdout, args.lang)
        for answer in answers:
            print(say(f"{answer['name']}: {answer['text']}"))
    return 0 if all(answer["accepted"] for answer in answers) else 1


def _set() -> str:
    from diag.settings import load

    return load().notify
