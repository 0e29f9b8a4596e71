"""How `diag watch` goes along with a job that it did not start: waits for one, watches it, knows when it is
over."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diag.agent.hub import Hub
    from diag.agent.job_search import Chosen, JobSearch
    from diag.sources.host.exits import ExitWatch

_SAY_AGAIN_SECONDS = 60.0
_SAY_FIRST_SECONDS = 5.0
_SEARCH_SECONDS = 1.0
_NO_RANK_SECONDS = (
    5.0  # without a living rank, and with no process that all of them hang below: the job is over. Ours.
)


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
    """Says what is seen while no rank is: soon, when it changes, and each minute."""

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
    """An exit status as the shell says it; None while it lives or when nobody could read it."""
    if not isinstance(ended, dict) or ended.get("status") is None:
        return None
    code = os.waitstatus_to_exitcode(int(ended["status"]))
    return code if code >= 0 else 128 - code
