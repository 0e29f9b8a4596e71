"""Which hub a command asks: the one that the options name, else that of this user's newest live run on this
machine.

A person who types `diag dump` waits: nothing is imported that is not needed.
"""

from __future__ import annotations

import os
import sys

from diag.cli.chosen import load_settings, run_root, run_word
from diag.launch import tokens
from diag.text.errors import DiagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

DUMP_SECONDS, NATIVE_SECONDS = 8.0, 30.0  # for a dump of all ranks, without and with native frames


class NoLiveRun(DiagError):
    """No hub lives that could be asked."""


def add_options(parser: argparse.ArgumentParser) -> argparse._MutuallyExclusiveGroup:
    """The options that name a hub. Returns the group of which one may be given."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--run-dir",
        type=run_word,
        metavar="DIR",
        help="the run to ask: its directory, its id, or -1 for the last",
    )
    where.add_argument("--endpoint", metavar="URL", help="the hub to ask, as printed by diag run")
    tokens.options(parser)
    parser.add_argument(
        "--tls-ca",
        metavar="FILE",
        help="CA certificates for verifying an https:// endpoint (default: DIAG_TLS_CA)",
    )
    return where


def endpoint(args: argparse.Namespace) -> tuple[str, str | None, str | None, str | None]:
    """Address, token, run directory and certificates of the hub that the options of `add_options` name. Raises
    DiagError where there is none."""
    ca = args.tls_ca or os.environ.get("DIAG_TLS_CA")
    if args.token:
        tokens.warn_of_arguments()
    if args.endpoint:
        return args.endpoint.rstrip("/"), _given(args), None, ca
    from diag.launch.runs import live_in, places, read_run

    if args.run_dir is not None:
        path, data = args.run_dir, read_run(args.run_dir)
    else:
        runs = list(live_in(places(run_root())))
        if not runs:
            raise NoLiveRun(
                "this user has no live run of diag on this machine",
                hint="a job that hangs now: diag dump --pid PID; to go on watching it: diag watch --pid PID",
            )
        path, data = runs[0]
        if len(runs) > 1:
            print(
                f"diag: {len(runs)} runs are live here; using the newest, {path} (--run-dir selects another)",
                file=sys.stderr,
            )
    if data.get("ended"):
        raise DiagError(f"the run in {path} has ended", hint=f"diag replay {path}")
    if not data.get("url"):
        raise DiagError(
            f"the run in {path} serves no HTTP (--no-http)",
            hint=f"its journal can be read: diag replay {path}",
        )
    return str(data["url"]).rstrip("/"), data.get("token") or _given(args), path, data.get("tls_ca") or ca


def _given(args: argparse.Namespace) -> str | None:
    """As for all settings: option, variable, diag.toml. An empty variable is none."""
    if args.token:
        return str(args.token)
    if args.token_file:
        return tokens.read_token(args.token_file, hint="--token-file FILE")
    token = os.environ.get("DIAG_TOKEN", "").strip()
    if token:
        return token
    if os.path.exists("diag.toml"):  # noqa: PTH110 - as below
        return load_settings().token
    path = os.environ.get("DIAG_TOKEN_FILE")
    return tokens.read_token(path) if path else None
