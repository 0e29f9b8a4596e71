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
from typing import TYPE_CHECKING, Any

from diag.text.colour import wanted
from diag.text.errors import DiagError

if TYPE_CHECKING:
    from diag.agent.hub import Hub
    from diag.agent.job_search import Chosen, JobSearch
    from diag.launch.launchers.nodes import JobNodes
    from diag.sources.host.exits import ExitWatch

__all__ = ["add", "run"]

_SAY_AGAIN_SECONDS = 60.0
_SAY_FIRST_SECONDS = 5.0
_SEARCH_SECONDS = 1.0
_NO_RANK_SECONDS = (
    5.0  # without a living rank, and with no process that all of them hang below: the job is over. Ours.
)


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
    import json

    from diag.agent.hub import Hub
    from diag.agent.publish import publish, start_sd_file
    from diag.launch.command import columns
    from diag.launch.rundir import RunDir
    from diag.model import found
    from diag.outputs.http.serving import Serving, refuse_taken_port
    from diag.outputs.report import report
    from diag.outputs.terminal.text import panel, report_text
    from diag.settings import load, unread_variables
    from diag.sources.host.exits import ExitWatch
    from diag.text.language import language_for

    stopped: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # process 1 of a container gets no other
        signal.signal(number, lambda signo, frame: stopped.append(signo))
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
        print(f"diag: {line}", file=sys.stderr)
    target = _target(args)
    pid, stack_signal, words_pid = target if target is not None else (None, 0, 0)
    words = _command_line(words_pid) if pid is not None else []
    run_dir = None
    try:
        run_dir, problems = RunDir.create(settings.run_root)
        for problem in problems:
            print(f"diag: {problem}", file=sys.stderr)
    except DiagError as error:
        print(f"diag: {error}; watching without a journal", file=sys.stderr)
    colour = wanted(2)
    lang = language_for(sys.stderr, settings.lang)

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    hub = Hub(
        settings,
        run_dir,
        stack_signal=stack_signal,
        stack_dir=args.run_dir,
        talk=say,
        attached=args.run_dir is None,
        on_change=lambda change: say(panel(change, colour=colour, width=columns(), lang=lang)),
    )
    end = time.monotonic() + args.seconds if args.seconds else None

    def is_told_to_end() -> bool:
        return bool(stopped) or (end is not None and time.monotonic() > end)

    def tell() -> None:
        publish(hub, run_dir, serving.url, words, pid or os.getpid())

    watch = None
    if pid is not None:
        watch = ExitWatch(pid)
        hub.watch_job(words, pid)
    serving = Serving(hub, settings, say, tell)
    serving.start()  # of a job that is still to come: a startup probe asks for the page
    hub.open_to_nodes = serving.open_to_nodes
    sd_file = start_sd_file(hub, settings, say)
    where = (f", page {serving.page}" if serving.page else "") + (
        f", run directory {run_dir.path}" if run_dir else ""
    )
    where += f", settings of {settings.file}" if settings.file else ""
    returncode = None
    try:
        if watch is not None and pid is not None:
            say(f"diag {hub.version}: watching pid {pid}{where}")
            tell()
            hub.join(_nodes(words, pid, settings.nodes))
            returncode = _until_the_end(hub, watch, is_told_to_end)
        else:
            say(f"diag {hub.version}: waiting for a job among the processes seen here{where}")
            tell()
            chosen = _await_job(hub, settings.lone_process_seconds, say, is_told_to_end)
            if chosen is not None:
                pid, words = chosen.pid, chosen.argv
                tell()
                watch = None if chosen.root is None else ExitWatch(chosen.root)
                hub.watch_job(words, pid, among=chosen.processes)
                hub.join(_nodes(words, pid, settings.nodes))
                if chosen.lone is not None:
                    hub.add_rank(chosen.lone)
                returncode = _until_the_end(hub, watch, is_told_to_end)
    finally:  # several jobs: the directory is no live run any more
        if sd_file is not None:
            sd_file.close()
        hub.finish(returncode)
        publish(hub, run_dir, None, words, pid or os.getpid(), ended=0)
        serving.stop()
    document = report(hub.engine)
    if args.json:
        print(json.dumps(document, indent=1))
    else:
        print(
            report_text(
                document, colour=wanted(1), width=columns(1), lang=language_for(sys.stdout, settings.lang)
            )
        )
    return 10 if found(document) and not args.exit_zero else 0


def _await_job(
    hub: Hub, lone_seconds: float, say: Callable[[str], None], is_told_to_end: Callable[[], bool]
) -> Chosen | None:
    """None when told to end before there was a job. Raises DiagError where several jobs run."""
    from diag.agent.job_search import JobSearch
    from diag.model import rank_words
    from diag.sources.host import run as run_source

    search = JobSearch(hub.host, lone_seconds)
    waiting = _Waiting(hub, search, say)
    chosen: Chosen | None = None
    due = 0.0

    def is_found() -> bool:
        nonlocal chosen, due
        if is_told_to_end():
            return True
        if time.monotonic() >= due:
            chosen = search.look()
            due = time.monotonic() + _SEARCH_SECONDS
            if chosen is None:
                waiting.tell()
        return chosen is not None

    hub.loop(is_found)
    if chosen is None:
        state, remedy = search.state()
        hub.put(run_source.failed("ranks", f"no job was seen: {state}", remedy, host=hub.host))
        return None
    hub.put(run_source.works("ranks", host=hub.host))
    ranks = (
        "one process, which has no rank"
        if chosen.lone
        else rank_words(list(chosen.ranks))
        if chosen.ranks
        else "no rank yet"
    )
    of = "" if chosen.root is None else f"pid {chosen.pid} "
    say(f"diag: found the job: {of}({' '.join(chosen.argv)[:200]}), {ranks}")
    return chosen


class _Waiting:
    """Says what is seen while no rank is: soon, when it changes, and each minute."""

    def __init__(self, hub: Hub, search: JobSearch, say: Callable[[str], None]) -> None:
        self._hub = hub
        self._search = search
        self._say = say
        self._began = time.monotonic()
        self._at = 0.0
        self._told: tuple[str, bool] = ("", False)

    def tell(self) -> None:
        from diag.sources.host import run as run_source

        now = time.monotonic()
        if now - self._began < _SAY_FIRST_SECONDS:
            return
        state, remedy = self._search.state()
        told = (remedy, "unreadable" in state)
        if told == self._told and now - self._at < _SAY_AGAIN_SECONDS:
            return
        if told != self._told or not self._at:
            self._hub.put(run_source.failed("ranks", state, remedy, host=self._hub.host))
        self._told, self._at = told, now
        self._say(f"diag: {state}" + (f"; {remedy}" if remedy else ""))


def _until_the_end(hub: Hub, watch: ExitWatch | None, is_told_to_end: Callable[[], bool]) -> int | None:
    """Until the job's root process ended, or without one its last rank. Its exit code, if it may be known."""
    if watch is None:
        silent_since: float | None = None

        def is_over() -> bool:
            nonlocal silent_since
            if not hub.engine.job.ranks or hub.engine.job.alive_ranks():
                silent_since = None
                return is_told_to_end()
            silent_since = silent_since or time.monotonic()
            return is_told_to_end() or time.monotonic() - silent_since >= _NO_RANK_SECONDS

        hub.loop(is_over)
        return None
    hub.loop(lambda: is_told_to_end() or watch.wait(0) is not None)
    ended = watch.wait(0)
    hub.settle(1.0, lambda: ended is None or not hub.engine.job.alive_ranks())
    return _returncode(ended)


def _nodes(words: list[str], pid: int, given: str) -> JobNodes:
    """What our own environment says, as a manifest gives it to the sidecar, and above it that of the job."""
    from diag.launch.launchers.nodes import nodes_of
    from diag.sources.host.job_files import JobFiles
    from diag.sources.host.process_tree import read_environ

    environment = {**os.environ, **(read_environ(pid) or {})}
    if given not in ("auto", "off"):
        return nodes_of(words, environment, given)  # a file that we were told of ourselves
    try:
        with JobFiles(pid) as files:
            return nodes_of(words, environment, given, read_text=files.read_text)
    except OSError:  # it has ended: nobody knows any more whose files it names
        return nodes_of(words, environment, given, read_text=lambda path: None)


def _target(args: argparse.Namespace) -> tuple[int, int, int] | None:
    """The pid to watch, the signal by which its ranks dump their stacks (0: they were not started by diag),
    and the pid whose command line is the job's. None: what appears is to be watched."""
    if args.slurm is not None:
        from diag.sources.host.slurm import find_step, root_of

        tasks = find_step(os.environ, args.slurm)
        return root_of(tasks), 0, tasks[0].pid
    if args.run_dir is not None:
        from diag.launch.inject import STACK_SIGNAL
        from diag.launch.rundir import read_run

        data: dict[str, Any] = read_run(args.run_dir)
        pid = data.get("pid")
        if not isinstance(pid, int) or not Path(f"/proc/{pid}").is_dir():
            raise DiagError(
                f"the job of {args.run_dir} has ended", hint=f"diag replay {args.run_dir}", exit_code=2
            )
        return pid, STACK_SIGNAL, pid
    if args.pid is None:
        return None
    if not Path(f"/proc/{args.pid}").is_dir():
        raise DiagError(
            f"there is no process {args.pid}", hint="give the pid of the launcher or of a rank", exit_code=2
        )
    return args.pid, 0, args.pid


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
