"""`diag mcp`: a server of the Model Context Protocol, by which an agent asks what diag knows of a run."""

from __future__ import annotations

import argparse
from pathlib import Path

from diag.cli.chosen import run_path
from diag.cli.client.endpoint import add_options
from diag.text.errors import DiagError

_PORT = 9096


def add(parser: argparse.ArgumentParser) -> None:
    where = add_options(parser)
    where.add_argument(
        "paths",
        nargs="*",
        type=run_path,
        default=[],
        metavar="PATH",
        help="evidence on disk that is meant where a tool names no source (default: the newest live run, else the last run)",
    )
    parser.add_argument(
        "--http",
        action="store_true",
        help="over streamable HTTP, for who has the token (default: stdin and stdout)",
    )
    parser.add_argument(
        "--skill", action="store_true", help="print a skill file for agents (SKILL.md), and serve nothing"
    )
    parser.add_argument("--host", metavar="ADDRESS", help="with --http: address (default 127.0.0.1)")
    parser.add_argument("--port", type=int, metavar="N", help=f"with --http: port (default {_PORT})")
    parser.add_argument(
        "--lang", choices=("en", "zh"), default="en", help="language of the answers (default: en)"
    )


def run(args: argparse.Namespace) -> int:
    if args.skill:
        print((Path(__file__).parent / "agents" / "skill.md").read_text(encoding="utf-8"), end="")
        return 0
    if not args.http and (args.host is not None or args.port is not None):
        raise DiagError("--host and --port apply only to --http", hint="add --http", exit_code=2)
    for path in args.paths:
        if not path.exists():
            raise DiagError(f"{path} does not exist", exit_code=2)
    from diag.cli.agents.server import make_server, serve_http
    from diag.cli.agents.sources import Sources
    from diag.cli.agents.tools import Tools

    server = make_server(Tools(Sources(args, args.paths, only_given=args.http), args.lang))
    if args.http:
        serve_http(server, args.host or "127.0.0.1", args.port or _PORT, args.token or _token(args))
    else:
        server.run("stdio")
    return 0


def _token(args: argparse.Namespace) -> str | None:
    """Of who may ask this server: as a hub's, by file or variable."""
    import os

    from diag.launch.tokens import read_token

    if args.token_file:
        return read_token(args.token_file)
    return os.environ.get("DIAG_TOKEN", "").strip() or None
