"""`diag watch`: the same hub for a job that diag did not start. It only looks; the job does not notice.

Without a pid it waits for a job among all processes that are seen: in a sidecar container that shares the
process namespace, and in a second step of a Slurm job.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from diag.text.colour import wanted
from diag.text.errors import DiagError

if TYPE_CHECKING:
    from diag.agent.hub import Hub
    from diag.cli.watch_target import WatchTarget
    from diag.launch.rundir import RunDir
    from diag.outputs.wiring import Outputs
    from diag.settings import Settings


def add(parser: argparse.ArgumentParser) -> None:
    from diag.cli.run import add_hub_options

    parser.add_argument(
        "--pid",
        type=int,
        metavar="PID",
        help="the job's root process: torchrun, the CLI, or one rank (default: "
        "wait for a job among the processes seen here, as in a sidecar container or a second srun step)",
    )
    parser.add_argument(
        "--run-dir", type=Path, metavar="DIR", help="the run directory of a `diag run` whose diag died"
    )
    parser.add_argument(
        "--slurm",
        nargs="?",
        const="",
        metavar="STEP",
        help="a step of this Slurm job on this node, from a step "
        "beside it (srun --overlap); default: the job's first step that is not diag's own",
    )
    parser.add_argument("--seconds", type=float, metavar="S", help="stop watching after S seconds")
    parser.add_argument(
        "--exit-zero",
        action="store_true",
        help="end with 0 whatever was found, not with 10: for a container whose exit code would fail the pod",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON at the end")
    add_hub_options(parser)


def run(args: argparse.Namespace) -> int:
    from diag.agent.hub import Hub
    from diag.cli.watch_target import find_target
    from diag.launch.command import columns
    from diag.outputs.output import OutputContext
    from diag.outputs.wiring import Outputs
    from diag.text.language import language_for

    is_to_end = _end_by_signal_or_after(args.seconds)
    settings = _settings(args)
    target = find_target(args)
    hub = Hub(
        settings,
        _make_run_dir(settings),
        stack_signal=target.stack_signal if target is not None else 0,
        stack_dir=args.run_dir,
        talk=_say,
        attached=args.run_dir is None,
    )
    lang = language_for(sys.stderr, settings.lang)
    outputs = Outputs(OutputContext(hub, _say, colour=wanted(2), width=columns, lang=lang))
    returncode = None
    try:
        if target is not None:
            returncode = _watch(hub, outputs, target, is_to_end)
        else:
            returncode = _await_and_watch(hub, outputs, is_to_end)
    finally:  # several jobs: the directory is no live run any more
        try:
            hub.finish(returncode)
        finally:
            outputs.close(returncode)
    return _report(hub, args)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _end_by_signal_or_after(seconds: float | None) -> Callable[[], bool]:
    stopped: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # process 1 of a container gets no other
        signal.signal(number, lambda signo, frame: stopped.append(signo))
    end = time.monotonic() + seconds if seconds else None
    return lambda: bool(stopped) or (end is not None and time.monotonic() > end)


def _settings(args: argparse.Namespace) -> Settings:
    """Raises DiagError where they cannot be used."""
    from diag.outputs.http.serving import refuse_taken_port
    from diag.settings import load, unread_variables

    settings = load(
        run_root=args.run_root,
        host=args.host,
        port=args.port,
        http=args.http,
        stack_seconds=args.stack_seconds,
        ras=args.ras,
        expected_net=args.expect_net,
        rules=args.rules,
        nodes=args.nodes,
        job_id=args.job_id,
        sd_file=args.sd_file,
    )
    refuse_taken_port(settings, asked_for="port" in settings.model_fields_set)
    for line in unread_variables(os.environ):
        _say(f"diag: {line}")
    return settings


def _make_run_dir(settings: Settings) -> RunDir | None:
    from diag.launch.rundir import RunDir

    try:
        run_dir, problems = RunDir.create(settings.run_root)
    except DiagError as error:
        _say(f"diag: {error}; watching without a journal")
        return None
    for problem in problems:
        _say(f"diag: {problem}")
    return run_dir


def _watch(hub: Hub, outputs: Outputs, target: WatchTarget, is_to_end: Callable[[], bool]) -> int | None:
    """The job that was named, until its end. Returns its exit code, if it may be known."""
    from diag.cli.watch_loop import watch_until_the_end
    from diag.cli.watch_target import cwd_of, nodes_of_job
    from diag.sources.host.exits import ExitWatch

    watch = ExitWatch(target.pid)
    hub.watch_job(target.words, target.pid, cwd_of(target.pid))
    outputs.start(target.words, target.pid)
    _say(f"diag {hub.version}: watching pid {target.pid}{outputs.places}")
    hub.cluster.join(nodes_of_job(target.words, target.pid, hub.settings.nodes))
    return watch_until_the_end(hub, watch, is_to_end)


def _await_and_watch(hub: Hub, outputs: Outputs, is_to_end: Callable[[], bool]) -> int | None:
    """The job that appears, until its end. Returns its exit code, if it may be known."""
    from diag.cli.watch_loop import await_job, watch_until_the_end
    from diag.cli.watch_target import cwd_of, nodes_of_job
    from diag.sources.host.exits import ExitWatch

    outputs.start((), os.getpid())
    _say(f"diag {hub.version}: waiting for a job among the processes seen here{outputs.places}")
    chosen = await_job(hub, hub.settings.lone_process_seconds, _say, is_to_end)
    if chosen is None:
        return None
    outputs.name_job(chosen.argv, chosen.pid)
    watch = None if chosen.root is None else ExitWatch(chosen.root)
    hub.watch_job(chosen.argv, chosen.pid, cwd_of(chosen.pid), among=chosen.processes)
    hub.cluster.join(nodes_of_job(chosen.argv, chosen.pid, hub.settings.nodes))
    if chosen.lone is not None:
        hub.add_rank(chosen.lone)
    return watch_until_the_end(hub, watch, is_to_end)


def _report(hub: Hub, args: argparse.Namespace) -> int:
    """What was found, printed at the end. Returns the exit code."""
    import json

    from diag.launch.command import columns
    from diag.model import found
    from diag.outputs.report import report
    from diag.outputs.terminal.text import report_text
    from diag.text.language import language_for

    document = report(hub.engine)
    if args.json:
        print(json.dumps(document, indent=1))
    else:
        lang = language_for(sys.stdout, hub.settings.lang)
        print(report_text(document, colour=wanted(1), width=columns(1), lang=lang))
    return 10 if found(document) and not args.exit_zero else 0
