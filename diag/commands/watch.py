"""`diag watch --pid PID`: the same hub for a job that diag did not start. It only looks; the job does not notice."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import Any

from diag.errors import DiagError

__all__ = ["add", "run"]


def add(parser: argparse.ArgumentParser) -> None:
    from diag.commands.run import add_hub_options

    parser.add_argument("--pid", type=int, metavar="PID", help="the job's root process: torchrun, the CLI, or one rank")
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="the run directory of a `diag run` whose diag died")
    parser.add_argument("--seconds", type=float, metavar="S", help="stop watching after S seconds")
    parser.add_argument("--json", action="store_true", help="print the report as JSON at the end")
    add_hub_options(parser)


def run(args: argparse.Namespace) -> int:
    import json
    import time

    from diag.commands.run import _width, publish, start_server
    from diag.engine import report
    from diag.hub import Hub
    from diag.language import language_for
    from diag.model import found
    from diag.outputs.text import panel, report_text
    from diag.rundir import RunDir
    from diag.settings import load
    from diag.sources.exits import ExitWatch

    settings = load(run_root=args.run_root, host=args.host, port=args.port, http=args.http, stack_seconds=args.stack_seconds,
                    ras=args.ras, expected_net=args.expect_net, rules=args.rules)
    pid, stack_signal = _target(args)
    words = _command_line(pid)
    run_dir = None
    try:
        run_dir, problems = RunDir.create(settings.run_root)
        for problem in problems:
            print(f"diag: {problem}", file=sys.stderr)
    except DiagError as error:
        print(f"diag: {error}; watching without a journal", file=sys.stderr)
    colour = os.isatty(2) and "NO_COLOR" not in os.environ
    lang = language_for(sys.stderr, settings.lang)

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    hub = Hub(settings, run_dir, stack_signal=stack_signal, stack_dir=args.run_dir, talk=say,
              on_change=lambda change: say(panel(change, colour=colour, width=_width(), lang=lang)))
    stopped: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda signo, frame: stopped.append(signo))
    watch = ExitWatch(pid)
    hub.watch_job(words, pid)
    server = start_server(hub, settings, say)
    publish(hub, run_dir, server, words, pid)
    say(f"diag {hub.version}: watching pid {pid}" + (f", page {server.url}" if server else "") +
        (f", run directory {run_dir.path}" if run_dir else ""))
    end = time.monotonic() + args.seconds if args.seconds else None
    hub.loop(lambda: bool(stopped) or watch.wait(0) is not None or (end is not None and time.monotonic() > end))
    ended = watch.wait(0)
    hub.settle(1.0, lambda: ended is None or not hub.engine.job.alive_ranks())
    hub.finish(_returncode(ended))
    publish(hub, run_dir, None, words, pid, ended=0)
    if server is not None:
        server.stop(1.0)
    document = report(hub.engine)
    if args.json:
        print(json.dumps(document, indent=1))
    else:
        print(report_text(document, colour=os.isatty(1) and "NO_COLOR" not in os.environ, width=_width(),
                          lang=language_for(sys.stdout, settings.lang)))
    return 10 if found(document) else 0


def _target(args: argparse.Namespace) -> tuple[int, int]:
    """The pid to watch, and the signal by which its ranks dump their stacks (0: they were not started by diag)."""
    if args.run_dir is not None:
        from diag.inject import STACK_SIGNAL
        from diag.rundir import read_run

        data: dict[str, Any] = read_run(args.run_dir)
        pid = data.get("pid")
        if not isinstance(pid, int) or not Path(f"/proc/{pid}").is_dir():
            raise DiagError(f"the job of {args.run_dir} has ended", hint=f"diag replay {args.run_dir}", exit_code=2)
        return pid, STACK_SIGNAL
    if args.pid is None:
        raise DiagError("what to watch is not said", hint="diag watch --pid PID (see `ps`), or --run-dir DIR", exit_code=2)
    if not Path(f"/proc/{args.pid}").is_dir():
        raise DiagError(f"there is no process {args.pid}", hint="give the pid of the launcher or of a rank", exit_code=2)
    return args.pid, 0


def _command_line(pid: int) -> list[str]:
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return [f"pid {pid}"]
    return [word.decode("utf-8", "replace") for word in raw.split(b"\0") if word]


def _returncode(ended: Any) -> int | None:
    """An exit status as the shell says it; None while it lives or when nobody could read it."""
    if not isinstance(ended, dict) or ended.get("status") is None:
        return None
    code = os.waitstatus_to_exitcode(int(ended["status"]))
    return code if code >= 0 else 128 - code
