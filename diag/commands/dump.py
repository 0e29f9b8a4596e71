"""`diag dump`: finds the live run by itself, asks its hub for evidence of every rank, prints merged stacks."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from diag.errors import DiagError

__all__ = ["add", "run"]


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all-ranks", action="store_true", help="every rank of the job (also the default)")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--run-dir", type=Path, metavar="DIR", help="the run directory of the run to ask")
    where.add_argument("--endpoint", metavar="URL", help="the hub to ask, as printed by diag run")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="copy the bundle to FILE")
    parser.add_argument("--json", action="store_true", help="print the report (diag.report/1) and the dump as JSON")
    parser.add_argument("--token", metavar="TOKEN", help="bearer token of an endpoint beyond loopback")
    parser.add_argument("--seconds", type=float, default=8.0, metavar="S", help="answer within S seconds (default 8)")


def run(args: argparse.Namespace) -> int:
    url, token, run_path = _endpoint(args)
    document = _ask(url, token, args.seconds, run_path)
    if args.output is not None:
        _copy(document, args.output)
    from diag.model import found

    if args.json:
        print(json.dumps({**document["report"], "dump": document}, indent=1))
    else:
        from diag.outputs.text import dump_text

        colour = os.isatty(1) and "NO_COLOR" not in os.environ
        print(dump_text(document, colour=colour, width=max(60, shutil.get_terminal_size().columns)))
    return 10 if found(document["report"]) else 0


def _endpoint(args: argparse.Namespace) -> tuple[str, str | None, Path | None]:
    if args.endpoint:
        return args.endpoint.rstrip("/"), args.token, None
    from diag.rundir import live_runs, read_run

    if args.run_dir is not None:
        path, data = args.run_dir, read_run(args.run_dir)
    else:
        runs = list(live_runs(_run_root()))
        if not runs:
            raise DiagError("no run of diag lives on this machine for this user",
                            hint="start the job with `diag run -- CMD`, or attach first with `diag watch --pid PID`")
        path, data = runs[0]
        if len(runs) > 1:
            print(f"diag: {len(runs)} runs live here; taking the newest, {path} (--run-dir chooses)", file=sys.stderr)
    if data.get("ended"):
        raise DiagError(f"the run in {path} has ended", hint=f"diag replay {path}")
    if not data.get("url"):
        raise DiagError(f"the run in {path} serves no HTTP (--no-http)", hint=f"its journal can be read: diag replay {path}")
    return str(data["url"]).rstrip("/"), data.get("token") or args.token, path


def _run_root() -> Path | None:
    """As `settings.load().run_root`, without 100 ms of pydantic where no diag.toml asks for it."""
    root = os.environ.get("DIAG_RUN_ROOT")
    if root or not Path("diag.toml").exists():
        return Path(root) if root else None
    from diag.settings import load

    return load().run_root


def _ask(url: str, token: str | None, seconds: float, run_path: Path | None) -> dict[str, Any]:
    import http.client
    import urllib.error
    import urllib.request

    if not url.startswith(("http://", "https://")):
        raise DiagError(f"{url} is no address of a hub", hint="it looks like http://127.0.0.1:9095", exit_code=2)
    request = urllib.request.Request(f"{url}/dump?deadline={seconds:g}")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy must not see this, nor be waited for
    again = f"diag watch --run-dir {run_path}" if run_path else "diag watch --pid PID on that node"
    try:
        with opener.open(request, timeout=seconds + 4.0) as answer:
            document = json.load(answer)
    except urllib.error.HTTPError as error:
        hint = "give --token (run.json has it)" if error.code == 401 else ""
        raise DiagError(f"{url} answers {error.code} {error.reason}", hint=hint) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise DiagError(f"the hub at {url} does not answer: {error}", hint=f"attach a new one: {again}") from None
    if not isinstance(document, dict) or "report" not in document:
        raise DiagError(f"{url} is no hub of diag")
    return document


def _copy(document: dict[str, Any], target: Path) -> None:
    source = document.get("bundle")
    if not source:
        raise DiagError(f"there is no bundle to copy: {document.get('bundle_error', 'the run has no run directory')}")
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        raise DiagError(f"the bundle cannot be copied to {target}: {error.strerror}", hint=f"it is at {source}") from None
    document["bundle"] = str(target)
