"""`diag doctor --manifest`: what is wrong with Kubernetes manifests, and with --fix the manifests without it."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from diag.cli.language import speaker
from diag.text.colour import wanted
from diag.text.errors import DiagError
from diag.text.units import format_count

if TYPE_CHECKING:
    from diag.preflight.manifest.fix import Fixed


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--manifest",
        action="append",
        metavar="FILE",
        help="check Kubernetes manifests instead of this machine: a file, a folder, - for stdin; may be repeated",
    )
    parser.add_argument(
        "--fix",
        action="store_true",
        help="with --manifest: print the manifests with their problems mended, and what was changed on stderr",
    )
    parser.add_argument(
        "--rdma",
        metavar="RESOURCE",
        default="",
        help="with --manifest: what the cluster calls its RDMA devices, such as rdma/hca_shared_devices_a, or none",
    )


def run(args: argparse.Namespace) -> int:
    if args.fix:
        return _fix(args)
    from diag.preflight import document, sorted_lines, summary, text
    from diag.preflight.manifest import check_manifests
    from diag.preflight.manifest.edits import ManifestLine

    lines = list(check_manifests(args.manifest, args.rdma))
    problems = [line for line in lines if line.status == "problem"]
    if args.json:
        print(json.dumps(document(lines), indent=1))
    else:
        say = speaker("doctor", sys.stdout, args.lang)
        print(text(sorted_lines(lines), colour=wanted(1), verbose=args.verbose, say=say))
        can = sum(isinstance(line, ManifestLine) and bool(line.edits) for line in problems)
        if can:
            mends = "all" if can == len(problems) else f"{can} of {len(problems)}"
            print("\n" + say(f"`{_command(args)}` mends {mends}"))
        print("\n" + summary(lines, say))
    return 10 if problems else 0


def _command(args: argparse.Namespace) -> str:
    places = " ".join(f"--manifest {place}" for place in args.manifest)
    rdma = f" --rdma {args.rdma}" if args.rdma else ""
    return f"diag doctor {places}{rdma} --fix > fixed.yaml"


def _fix(args: argparse.Namespace) -> int:
    if args.json:
        raise DiagError("--fix prints manifests, not JSON", hint="one of --fix and --json", exit_code=2)
    from diag.preflight.manifest.fix import fix_manifests

    found = fix_manifests(args.manifest, args.rdma)
    print(found.text, end="")
    print(_report(found, args), file=sys.stderr)
    return 10 if found.left else 0


def _report(found: Fixed, args: argparse.Namespace) -> str:
    from diag.preflight import text

    say = speaker("doctor", sys.stderr, args.lang)
    rows = [say(f"{format_count(len(found.changes), 'change')}:" if found.changes else "no change")]
    rows += [say(f"  {change}") for change in found.changes]
    rows += [say(f"{file}: its comments could not be kept") for file in found.without_comments]
    if found.left:
        rows += [
            say(f"{format_count(len(found.left), 'problem')} left to you:"),
            text(found.left, colour=wanted(2), say=say),
        ]
    if found.changes:
        files = " ".join(f"-f {place}" for place in args.manifest if place != "-") or "-f the old one"
        rows.append(
            say(f"first `kubectl delete {files}`: Kubernetes changes no pod, Job or clusterIP that is there")
        )
    return "\n".join(rows)
