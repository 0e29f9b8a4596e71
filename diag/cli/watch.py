"""`diag watch`: the same hub for a job that diag did not start. It only reads; the job does not notice.

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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diag.cli.chosen import run_path
from diag.cli.run import add_hub_options, hub_settings
from diag.text.colour import wanted
from diag.text.errors import DiagError

if TYPE_CHECKING:
    from diag.agent.hub import Hub
    from diag.agent.job_search import Chosen, JobSearch
    from diag.launch.launchers.nodes import JobNodes
    from diag.launch.rundir import RunDir
    from diag.outputs.wiring import Outputs
    from diag.settings import Settings
    from diag.sources.host.exits import ExitWatch


_SAY_AGAIN_SECONDS = 60.0
_SAY_FIRST_SECONDS = 5.0
_SEARCH_SECONDS = 1.0
# Without a living rank, and with no process that all of them hang below: the job is over. Ours.
_NO_RANK_SECONDS = 5.0


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pid",
        type=int,
        metavar="PID",
        help="the job's root process: torchrun, the CLI, or one rank (default: "
        "wait for a job among the processes seen here, as in a sidecar container or a second srun step)",
    )
    parser.add_argument(
        "--run-dir",
        type=run_path,
        metavar="DIR",
        help="the run directory of a `diag run` whose hub died (its id, or -1 for the last run)",
    )
    parser.add_argument(
        "--slurm",
        nargs="?",
        const="",
        metavar="STEP",
        help="a step of this Slurm job on this node, from a step "
        "beside it (srun --overlap); default: the job's first step that is not diag's own",
    )
    parser.add_argument(
        "--ray",
        action="store_true",
        help="the job of the Ray that runs on this machine: its driver and its actors, wherever they were started",
    )
    parser.add_argument("--seconds", type=float, metavar="S", help="stop watching after S seconds")
    parser.add_argument(
        "--exit-zero",
        action="store_true",
        help="exit with 0 whatever was found, for containers whose exit code would fail the pod",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON at the end")
    add_hub_options(parser)


def run(args: argparse.Namespace) -> int:
    from diag.agent.hub import Hub
    from diag.launch.command import columns
    from diag.outputs.output import OutputContext
    from diag.outputs.wiring import Outputs
    from diag.text.language import language_for

    is_to_end = _end_by_signal_or_after(args.seconds)
    settings = _settings(args)
    target = find_target(args)
    hub = Hub(
        settings,
        make_run_dir(settings),
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
    from diag.outputs.notify.output import problems as notify_problems
    from diag.settings import load, unread_variables

    settings = load(**hub_settings(args))
    refuse_taken_port(settings, asked_for="port" in settings.model_fields_set)
    for line in (
        *unread_variables(os.environ),
        *notify_problems(settings, given=args.notify and " ".join(args.notify)),
    ):
        _say(f"diag: {line}")
    return settings


def make_run_dir(settings: Settings) -> RunDir | None:
    """None where no place takes one: that is said."""
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
    from diag.sources.host.exits import ExitWatch

    watch = ExitWatch(target.pid)
    hub.watch_job(target.words, target.pid, cwd_of(target.pid))
    outputs.start(target.words, target.pid)
    _say(f"diag {hub.version}: watching pid {target.pid}{outputs.places}")
    hub.cluster.join(nodes_of_job(target.words, target.pid, hub.settings.nodes))
    return watch_until_the_end(hub, watch, is_to_end)


def _await_and_watch(hub: Hub, outputs: Outputs, is_to_end: Callable[[], bool]) -> int | None:
    """The job that appears, until its end. Returns its exit code, if it may be known."""
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


# --- which job


@dataclass(frozen=True, slots=True)
class WatchTarget:
    """The job's root process, its command line, and the signal by which its ranks dump their stacks (0: they
    were not started by diag)."""

    pid: int
    words: list[str]
    stack_signal: int = 0


def find_target(args: argparse.Namespace) -> WatchTarget | None:
    """None: what appears is to be watched. Raises DiagError where the job that was named is not there."""
    if args.slurm is not None:
        from diag.sources.host.slurm import find_step, root_of

        tasks = find_step(os.environ, args.slurm)
        return WatchTarget(root_of(tasks), _command_line(tasks[0].pid))
    if args.ray:
        from diag.agent.ray_tree import driver_on_this_machine

        driver = driver_on_this_machine()
        return WatchTarget(driver, _command_line(driver))
    if args.run_dir is not None:
        from diag.launch.inject import STACK_SIGNAL
        from diag.launch.runs import read_run

        data: dict[str, Any] = read_run(str(args.run_dir))
        pid = data.get("pid")
        if not isinstance(pid, int) or not Path(f"/proc/{pid}").is_dir():
            raise DiagError(
                f"the job of {args.run_dir} has ended", hint=f"diag replay {args.run_dir}", exit_code=2
            )
        return WatchTarget(pid, _command_line(pid), STACK_SIGNAL)
    if args.pid is None:
        return None
    if not Path(f"/proc/{args.pid}").is_dir():
        raise DiagError(
            f"no process has pid {args.pid}", hint="give the pid of the launcher or of a rank", exit_code=2
        )
    return WatchTarget(args.pid, _command_line(args.pid))


def _command_line(pid: int) -> list[str]:
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return [f"pid {pid}"]
    return [word.decode("utf-8", "replace") for word in raw.split(b"\0") if word]


def cwd_of(pid: int) -> str:
    """The working directory by the process's own name for it; empty where it cannot be read."""
    from diag.sources.host.job_files import JobFiles

    try:
        with JobFiles(pid) as files:
            return files.cwd()
    except OSError:  # it has ended, or is another user's
        return ""


def nodes_of_job(words: list[str], pid: int, given: str) -> JobNodes:
    """What our own environment has, as a manifest gives it to the sidecar, and above it that of the job."""
    from diag.launch.launchers.nodes import nodes_of
    from diag.sources.host.job_files import JobFiles
    from diag.sources.host.process_tree import read_environ

    environment = {**os.environ, **(read_environ(pid) or {})}
    if given not in ("auto", "off"):
        return nodes_of(words, environment, given)  # a file that was given to diag itself
    try:
        with JobFiles(pid) as files:
            return nodes_of(words, environment, given, read_text=files.read_text)
    except OSError:  # it has ended: it is not known any more whose files it names
        return nodes_of(words, environment, given, read_text=lambda path: None)


# --- along with it


def await_job(
    hub: Hub, lone_seconds: float, say: Callable[[str], None], is_to_end: Callable[[], bool]
) -> Chosen | None:
    """None when it is to end before there was a job. Raises DiagError where several jobs run."""
    from diag.agent.job_search import JobSearch
    from diag.sources.host import run as run_source
    from diag.text.units import format_ranks

    search = JobSearch(hub.host, lone_seconds)
    waiting = _Waiting(hub, search, say)
    chosen: Chosen | None = None
    due = 0.0

    def is_found() -> bool:
        nonlocal chosen, due
        if is_to_end():
            return True
        if time.monotonic() >= due:
            chosen = search.look()
            due = time.monotonic() + _SEARCH_SECONDS
            if chosen is None:
                waiting.report()
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
        else format_ranks(list(chosen.ranks))
        if chosen.ranks
        else "no rank yet"
    )
    of = "" if chosen.root is None else f"pid {chosen.pid} "
    say(f"diag: found the job: {of}({' '.join(chosen.argv)[:200]}), {ranks}")
    return chosen


class _Waiting:
    """Reports what is seen while no rank is: soon, when it changes, and each minute."""

    def __init__(self, hub: Hub, search: JobSearch, say: Callable[[str], None]) -> None:
        self._hub = hub
        self._search = search
        self._say = say
        self._began = time.monotonic()
        self._at = 0.0
        self._reported: tuple[str, bool] = ("", False)

    def report(self) -> None:
        from diag.sources.host import run as run_source

        now = time.monotonic()
        if now - self._began < _SAY_FIRST_SECONDS:
            return
        state, remedy = self._search.state()
        state_now = (remedy, "unreadable" in state)
        if state_now == self._reported and now - self._at < _SAY_AGAIN_SECONDS:
            return
        if state_now != self._reported or not self._at:
            self._hub.put(run_source.failed("ranks", state, remedy, host=self._hub.host))
        self._reported, self._at = state_now, now
        self._say(f"diag: {state}" + (f"; {remedy}" if remedy else ""))


def watch_until_the_end(hub: Hub, watch: ExitWatch | None, is_to_end: Callable[[], bool]) -> int | None:
    """Until the job's root process ended, or without one its last rank. Its exit code, if it may be known."""
    if watch is None:
        silent_since: float | None = None

        def is_over() -> bool:
            nonlocal silent_since
            if not hub.engine.job.ranks or hub.engine.job.alive_ranks():
                silent_since = None
                return is_to_end()
            silent_since = silent_since or time.monotonic()
            return is_to_end() or time.monotonic() - silent_since >= _NO_RANK_SECONDS

        hub.loop(is_over)
        return None
    hub.loop(lambda: is_to_end() or watch.wait(0) is not None)
    ended = watch.wait(0)
    hub.settle(1.0, lambda: ended is None or not hub.engine.job.alive_ranks())
    return _returncode(ended)


def _returncode(ended: Any) -> int | None:
    """An exit status as the shell says it; None while it lives or when it could not be read."""
    if not isinstance(ended, dict) or ended.get("status") is None:
        return None
    code = os.waitstatus_to_exitcode(int(ended["status"]))
    return code if code >= 0 else 128 - code
