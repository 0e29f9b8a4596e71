"""`diag rules`: test rule files, list the rules, show their JSON Schema."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from diag.text.errors import DiagError
from diag.text.units import format_seconds


def add(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="what", metavar="WHAT", required=True, help="test, list or schema")
    test = verbs.add_parser("test", help="run the rules' examples; reject ambiguous, slow or untested rules")
    test.add_argument(
        "paths",
        nargs="*",
        type=Path,
        metavar="PATH",
        help="rule files or folders, tested beside the rules that come with diag; none: those",
    )
    listed = verbs.add_parser("list", help="the rules that are used")
    listed.add_argument("--rules", type=Path, metavar="DIR", help="a folder of more rules")
    listed.add_argument("--json", action="store_true", help="print them as JSON")
    verbs.add_parser("schema", help="the JSON Schema of a rule file, for an editor")


def run(args: argparse.Namespace) -> int:
    return {"test": _test, "list": _list, "schema": _schema}[args.what](args)


def _test(args: argparse.Namespace) -> int:
    from diag.detectors.rules.check import check
    from diag.detectors.rules.load import Loaded, Problem, packaged, packaged_folder, read_rules

    began = time.monotonic()
    paths = args.paths or [packaged_folder()]
    if not args.paths and not packaged_folder().is_dir():
        raise DiagError("diag was installed without its rules", hint="give a folder of rules")
    read = list(read_rules(paths))
    good = [item for item in read if isinstance(item, Loaded)]
    problems = [item for item in read if isinstance(item, Problem)]
    problems += check(good, packaged().rules if args.paths else ())
    for problem in problems:
        print(problem)
    lines = sum(len(item.rule.examples) + len(item.rule.silent) for item in good)
    files = len({item.path for item in read})
    counts = ((files, "rule"), (lines, "example"), (len(problems), "problem"))
    line = ", ".join(f"{count} {name}{'' if count == 1 else 's'}" for count, name in counts)
    line += f", {format_seconds(time.monotonic() - began)}"
    print(line, file=sys.stderr)
    return 10 if problems else 0


def _list(args: argparse.Namespace) -> int:
    from diag.detectors.rules.load import load

    rules = load([args.rules] if args.rules else []).rules
    if args.json:
        print(
            json.dumps(
                [rule.model_dump(by_alias=True, mode="json") for rule in rules], indent=1, ensure_ascii=False
            )
        )
        return 0
    for rule in sorted(rules, key=lambda rule: (rule.finding or "", rule.id)):
        print(f"{rule.id:<44} {rule.finding or '-':<24} {rule.role:<11} {rule.title}")
    return 0


def _schema(args: argparse.Namespace) -> int:
    from diag.detectors.rules.schema import Rule

    print(json.dumps(Rule.model_json_schema(by_alias=True), indent=1))
    return 0
