"""`diag dump --pid`: attaches to a job that diag did not start, looks twice or more, dumps and leaves. Without a pid it
looks which jobs there are, and takes the only one.

It serves nothing and tells nobody: what it makes is the text and the bundle.
"""

from __future__ import annotations

import os
import pwd
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from diag.text.errors import DiagError
from diag.text.units import format_count, format_ranks, format_seconds

if TYPE_CHECKING:
    import argparse

    from diag.agent.hub import Hub
    from diag.agent.job_search import Chosen, JobSearch, SeenJobs
    from diag.settings import Settings

# A hang is told after 15 s in steps, and after 30 s before the first and where diag knows no step (patience.py), counted
# from our first look; a job that moves has shown so long before.
SECONDS = 40.0
_MOVING_SECONDS = 20.0
_LOOKS = 2
# So much longer after a critical finding, for what is read only of ranks that are suspected.
_CLOSER_SECONDS = 1.5
# A process that lives for so long has started its ranks, if it does that; one that has started nothing by then is itself
# what trains.
_STARTED_SECONDS = 60.0
_CHILDLESS_SECONDS = 10.0
_LONE_SECONDS = 3.0
_MOST_NAMED = 20  # processes
_WHERE_ELSE = (
    "of a job in a container, run diag inside of it; of a process that you know: diag dump --pid PID; "
    "of a job that died: diag replay LOG"
)


def dump_of_pids(args: argparse.Namespace) -> dict[str, Any]:
    """The dump of the job that has these processes, with its text as `screen`. Raises DiagError where there is no such
    job, or more than one."""
    from diag.sources.host.process_tree import is_python

    pids = list(dict.fromkeys(pid for word in args.pid for pid in word))
    for pid in pids:
        _check(pid)
    search = _search()
    seen = search.seen()
    below = {pid: _below(pid) for pid in pids}
    jobs = {job.pid: job for pid in pids for job in seen.holding(below[pid])}
    loose = [pid for pid in pids if not seen.holding(below[pid])]
    if jobs:  # `pgrep -f train.py` gives the editor too
        loose = [pid for pid in loose if is_python(pid)]
    if len(jobs) > 1 or (jobs and loose):
        found = [*jobs.values(), *(_as_it_is(search, [pid]) for pid in loose)]
        _refuse_to_choose(args, f"these pids are of {len(found)} jobs", found)
    job = next(iter(jobs.values())) if jobs else _as_it_is(search, pids)
    head = "" if job.pid in pids else f"pid {', '.join(map(str, pids))} is of the job of "
    return _dump(args, job, head)


def dump_of_the_only_job(args: argparse.Namespace) -> dict[str, Any]:
    """The same of the job that runs here. Raises DiagError where there is none, or more than one."""
    seen = _search().seen()
    chosen = seen.jobs or seen.others
    if len(chosen) == 1:
        if seen.jobs and seen.others:
            pids = ", ".join(str(one.pid) for one in seen.others[:_MOST_NAMED])
            _say(f"not looked at, without a rank: pid {pids}")
        what = "one job runs here: " if seen.jobs else "no rank runs here; this process may train: "
        return _dump(args, chosen[0], what)
    if seen.jobs:
        _refuse_to_choose(args, f"{len(chosen)} jobs run here, and none was chosen", chosen)
    if chosen:
        why = f"no rank runs here, but {len(chosen)} processes that may train: none was chosen"
        _refuse_to_choose(args, why, chosen)
    _refuse_none(seen)


def _refuse_none(seen: SeenJobs) -> NoReturn:
    if seen.foreign:
        shown = seen.foreign[:_MOST_NAMED]
        whose = ", ".join(f"pid {pid} of {_name(uid)}" for pid, uid in shown)
        raise DiagError(
            f"no job of this user runs here; launchers of other users may not be read: {whose}",
            hint="\n".join(_as_other(pid, uid) for pid, uid in shown),
        )
    if seen.hidden:
        raise DiagError(
            "this user has no live run of diag on this machine, and no process that trains was found among those "
            f"that may be read; {seen.hidden} of other users may not be",
            hint=_WHERE_ELSE,
        )
    raise DiagError(
        "this user has no live run of diag on this machine, and no process that trains was found",
        hint=_WHERE_ELSE,
    )


# --- which processes


def run_of_pids(pids: Sequence[Sequence[int]]) -> str | None:
    """The directory of this user's live run that watches one of these processes already and can be asked."""
    from diag.cli.chosen import run_root
    from diag.launch.runs import live_in, places
    from diag.sources.host.process_tree import descendants

    wanted = {pid for word in pids for pid in word}
    for path, run in live_in(places(run_root())):
        watched = int(run.get("pid") or 0)
        if run.get("url") and wanted & {
            int(run["hub_pid"]),
            watched,
            *(descendants(watched) if watched else ()),
        }:
            _say(f"{path} watches it already, and is asked")
            return path
    return None


def _search() -> JobSearch:
    from diag.agent.job_search import JobSearch

    return JobSearch(os.uname().nodename, float("inf"))


def _below(pid: int) -> set[int]:
    from diag.sources.host.process_tree import descendants

    return {pid, *descendants(pid)}


def _check(pid: int) -> None:
    """Raises DiagError where it is none, or may not be read."""
    from diag.sources.host.process_tree import read_environ, read_process

    process = read_process(pid)
    if process is None:
        raise DiagError(
            f"no process has pid {pid}",
            hint="`diag dump` without a pid names the jobs that run here",
            exit_code=2,
        )
    if process.state in "ZX":
        raise DiagError(
            f"pid {pid} ({process.comm}) has ended and was not yet waited for by its parent, pid {process.parent}",
            hint=f"diag dump --pid {process.parent}",
            exit_code=2,
        )
    if read_environ(pid) is None and read_process(pid) is not None:
        owner = _owner(pid)
        raise DiagError(
            f"pid {pid} is a process of {_name(owner)}, and may not be read",
            hint=_as_other(pid, owner),
            exit_code=2,
        )


def _owner(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None


def _name(uid: int | None) -> str:
    if uid is None:
        return "another user"
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _as_other(pid: int, uid: int | None) -> str:
    as_user = f"-u {_name(uid)} " if uid and not _name(uid).startswith("uid ") else ""
    return f'sudo {as_user}"$(command -v diag)" dump --pid {pid}'


def _as_it_is(search: JobSearch, pids: Sequence[int]) -> Chosen:
    """Processes without a rank that the namespace shows: what they are, the search below them finds out."""
    from diag.agent.job_search import Chosen
    from diag.launch.launchers.secrets import redacted
    from diag.sources.host.process_tree import Tree, Trees, read_argv

    argv = redacted([word for word in read_argv(pids[0]) if word]) or [f"pid {pids[0]}"]
    processes = Tree(pids[0]) if len(pids) == 1 else Trees(pids)
    return Chosen(pids[0], pids[0] if len(pids) == 1 else None, argv, (), processes, members=frozenset(pids))


def _told(job: Chosen) -> str:
    return f"pid {job.pid} ({job.words}), {_ranks(job)}"


def _ranks(job: Chosen) -> str:
    return format_ranks(list(job.ranks)) if job.ranks else "no rank"


def _commands(jobs: Sequence[Chosen]) -> str:
    """A line a job, to be typed as it stands."""
    return "\n".join(
        f"  diag dump --pid {job.pid}   # {_ranks(job)}, for {format_seconds(_age(job.pid))}: {job.words}"
        for job in jobs[:_MOST_NAMED]
    )


def _refuse_to_choose(args: argparse.Namespace, why: str, jobs: Sequence[Chosen]) -> NoReturn:
    """With --json the jobs are data too (diag.jobs/1)."""
    if args.json:
        import json

        rows = [
            {
                "pid": job.pid,
                "ranks": list(job.ranks),
                "argv": job.argv,
                "command": f"diag dump --pid {job.pid}",
            }
            for job in jobs
        ]
        print(json.dumps({"schema": "diag.jobs/1", "jobs": rows}, indent=1))
    raise DiagError(why, hint=f"type one of\n{_commands(jobs)}", exit_code=2)


# --- looking


def _say(text: str) -> None:
    print(f"diag: {text}", file=sys.stderr, flush=True)


@dataclass(eq=False)
class _Look:
    """When enough was seen, and the line while it is not. `is_interrupted`: the person wants what there is now."""

    hub: Hub
    seconds: float
    is_interrupted: Callable[[], bool]
    _began: float = field(default_factory=time.monotonic)
    _ranks: int = 0
    _ranks_at: float = 0.0  # when there were so many for the first time
    _told_at: float | None = None  # that something critical stands

    def is_over(self) -> bool:
        waited = self.waited()
        if self.is_interrupted() or waited >= self.seconds:
            return True
        with self.hub.lock:
            job = self.hub.engine.job
            alive = job.alive_ranks()
            ended = bool(job.ranks) and not alive
            stands = any(finding.severity.name == "CRITICAL" for finding in self.hub.engine.active())
            looked = bool(alive) and all(len(rank.series) >= _LOOKS for rank in alive)
        if len(alive) != self._ranks:
            self._ranks, self._ranks_at = len(alive), time.monotonic()
        if stands or ended:
            self._told_at = self._told_at or time.monotonic()
            return time.monotonic() - self._told_at >= _CLOSER_SECONDS
        return self.watched() >= _MOVING_SECONDS and looked and not self.is_suspicious()

    def waited(self) -> float:
        return time.monotonic() - self._began

    def watched(self) -> float:
        """Seconds for which all ranks that are known now were: a process without a rank is taken for one after a while."""
        return time.monotonic() - self._ranks_at if self._ranks else 0.0

    def is_suspicious(self) -> bool:
        """Something is overdue, or told and not critical yet."""
        with self.hub.lock:
            return self.hub.closer or any(finding.id == "held-up" for finding in self.hub.engine.active())

    def silence(self) -> float:
        """Seconds for which nothing of the job was seen to move."""
        with self.hub.lock:
            return max(0.0, self.hub.clock() - self.hub.engine.job.last_progress())

    def line(self, seconds: float) -> str:
        ranks = len(self.hub.engine.job.ranks)
        whom = format_count(ranks, "rank") if ranks else "no rank yet"
        return (
            f"diag: {whom}, looking for {format_seconds(seconds)} of at most {format_seconds(self.seconds)}; "
            f"nothing seen to move for {format_seconds(self.silence())}"
        )


def _dump(args: argparse.Namespace, job: Chosen, head: str) -> dict[str, Any]:
    """`head` stands before the job in the line that says what is looked at."""
    from diag.agent.hub import Hub
    from diag.cli.watch import cwd_of, make_run_dir, nodes_of_job
    from diag.launch.command import columns
    from diag.outputs.files import FindingsFile, RunJson
    from diag.outputs.output import OutputContext
    from diag.outputs.terminal.text import dump_text
    from diag.outputs.wiring import Outputs
    from diag.text.colour import wanted
    from diag.text.language import language_for
    from diag.text.ticker import Ticker

    settings = _settings(args, job)
    stopped = _ask_to_stop()
    hub = Hub(
        settings, make_run_dir(settings), talk=lambda text: _say(text.removeprefix("diag: ")), attached=True
    )
    lang = language_for(sys.stdout, settings.lang)
    outputs = Outputs(OutputContext(hub, _say, tuple(job.argv), job.pid), (FindingsFile, RunJson))
    seconds = args.seconds or SECONDS
    try:
        _say(f"{head}{_told(job)}")
        _say(f"looking for {format_seconds(seconds)} at most; the job is not touched, Ctrl-C ends the look")
        hub.watch_job(job.argv, job.pid, cwd_of(job.pid), among=job.processes, pointed_at=bool(args.pid))
        nodes = nodes_of_job(job.argv, job.pid, "auto")
        if nodes.count > 1:
            hub.cluster.of_several = True
            _say(
                f"the job has {nodes.count} nodes: this look sees the ranks of this one; do the same on the others"
            )
        look = _Look(hub, seconds, lambda: bool(stopped))
        with Ticker(look.line):
            hub.loop(look.is_over)
            _note_what_stays_open(look, job)
            document = _take(hub, args)
        if document["next_command"] == "diag dump --native":
            document["next_command"] += f" --pid {job.pid}"
        document["screen"] = dump_text(document, colour=wanted(1), width=columns(1), lang=lang)
        document["looked_seconds"] = round(look.waited(), 1)
    finally:
        try:
            hub.finish(None)
        finally:
            outputs.close(None)
    return document


def _settings(args: argparse.Namespace, job: Chosen) -> Settings:
    from diag.settings import load

    settings = load(lang=args.lang, http=False, nodes="off", auto_evidence=False)
    started = _STARTED_SECONDS if len(_below(job.pid)) > 1 else _CHILDLESS_SECONDS
    lone = _LONE_SECONDS if _age(job.pid) > started else _MOVING_SECONDS
    return settings.model_copy(update={"lone_process_seconds": min(settings.lone_process_seconds, lone)})


def _age(pid: int) -> float:
    """Seconds since the process was started."""
    from diag.sources.host.process_tree import read_process, read_raw

    process = read_process(pid)
    up = float((read_raw("/proc/uptime") or b"0").split()[0])
    return up - process.ticks / os.sysconf("SC_CLK_TCK") if process is not None else 0.0


def _ask_to_stop() -> list[int]:
    """Signals that came: the first one ends the look, a second one diag."""
    came: list[int] = []

    def stop(number: int, frame: object) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    return came


def _note_what_stays_open(look: _Look, job: Chosen) -> None:
    """Said before the dump, for the report, the bundle and its replay alike: what this look could not settle."""
    from diag.sources.host import run as run_source

    hub = look.hub
    with hub.lock:
        ranks = len(hub.engine.job.ranks)
        told = any(finding.id in ("hang", "held-up") for finding in hub.engine.active())
    if not ranks:
        reason = f"no rank was found below pid {job.pid}"
        remedy = "a launcher that waits for other nodes has none; else give the pid of a process that trains"
        hub.put(run_source.failed("ranks", reason, remedy, host=hub.host))
    elif not told and (unsettled := _unsettled(look)):
        remedy = f"look for longer: diag watch --pid {job.pid}"
        hub.put(run_source.failed("whether the job is stuck", unsettled, remedy, host=hub.host))


def _unsettled(look: _Look) -> str:
    """Why the look does not tell that the job moves; empty where it does."""
    if look.is_suspicious():
        return (
            f"no progress was seen for {format_seconds(look.silence())} (steps, collectives, another line of code): "
            "a slow step, save or start may take as long"
        )
    if look.watched() < _MOVING_SECONDS:
        return f"the look ended after {format_seconds(look.watched())}"
    return ""


def _take(hub: Hub, args: argparse.Namespace) -> dict[str, Any]:
    """The dump, made beside the hub's loop, which takes what the sidecars send for it."""
    from diag.cli.client.endpoint import DUMP_SECONDS, NATIVE_SECONDS

    made: list[dict[str, Any]] = []
    failed: list[BaseException] = []

    def make() -> None:
        try:
            deadline = NATIVE_SECONDS if args.native else DUMP_SECONDS
            made.append(hub.dumps.take(deadline, native=args.native))
        except Exception as error:  # on a thread of its own: said below
            failed.append(error)
        finally:
            ended.set()
            hub.hurry()

    ended = threading.Event()
    thread = threading.Thread(target=make, name="dump", daemon=True)
    thread.start()
    hub.loop(ended.is_set)
    if failed:
        raise DiagError(f"the dump failed: {type(failed[0]).__name__}: {failed[0]}"[:300])
    return made[0]
