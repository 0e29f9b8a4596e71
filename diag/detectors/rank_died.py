"""A rank ended when it should not have: which was first, how, and what it printed last."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator

from diag.detectors.attempts import attempt_of, is_earlier
from diag.detectors.contract import Detector
from diag.detectors.echoed_errors import CASCADE
from diag.detectors.findings import finding, row, with_words
from diag.detectors.last_words import CRASHES, NAMED, SHELL_S_WORD, Heard, heard
from diag.detectors.remedies import remedy
from diag.model import Confidence, Evidence, Finding, NotChecked
from diag.model.observations import CgroupMemory, KernelOomKill
from diag.state.phases import NOT_KNOWN
from diag.state.rank_view import RankView
from diag.state.stack_activity import Activity
from diag.state.view import JobView
from diag.text.units import format_ranks

# torchelastic polls its workers ten times a second and then ends the others: who died first is known after
# this.
_SETTLE_SECONDS = 2.0

# A peer that lost the connection reports it at once, or when its next call comes: the longest step, roughly.
_LEFT_SECONDS = 60.0

# Between the death and the reading that shows the counter of kills risen.
_OOM_SECONDS = 10.0

_WORKER_KILLED = re.compile(
    r"DataLoader worker \(pid\(?s?\)? ?[\d, ]+\)? (?:is killed by signal|exited unexpectedly)"
)


# Of these a peer may die that only waited: its watchdog aborts it, or somebody ends it.
_SENT = (signal.SIGABRT, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

# What native code prints only while the interpreter ends: libstdc++ of a thread that was not joined; CPython
# (3.8-3.14).
#   Fatal Python error: _enter_buffered_busy: could not acquire lock for <...> at interpreter shutdown, possibly due to daemon ...
_AT_EXIT = (
    "terminate called without an active exception",
    "at interpreter shutdown",
    "Py_Finalize",
    "finalizing",
)

_LAST_WORDS = 6  # lines before an abort that may tell of it. Ours.

# No exit status was read: the process is gone, or its log ends with a traceback that no prefix of torch's
# tells to be uncaught, or with a shell's word for a process that is not named.
_GUESSED = ("vanished", "the traceback that the log ends with", "its last lines")


class RankDiedDetector(Detector):
    name = "rank-died"
    listens = (CgroupMemory, KernelOomKill)

    def __init__(self) -> None:
        self._oom_kills: dict[int | None, int] = {}
        self._grown_at = -1e9  # when a counter of kills in some rank's cgroup last rose
        self._killed: dict[int, str] = {}  # pid and name of processes that the kernel killed for memory

    def observe(self, at: float, fact: CgroupMemory | KernelOomKill) -> None:
        if isinstance(fact, CgroupMemory):
            if fact.oom_kills > self._oom_kills.setdefault(fact.rank, fact.oom_kills):
                self._grown_at = at
            self._oom_kills[fact.rank] = fact.oom_kills
        elif len(self._killed) < 4096:
            self._killed[fact.pid] = fact.comm

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        dead = [
            rank
            for rank in (*job.ranks.values(), *job.ranks.past)
            if rank.failed and not _is_over_for_ray(rank, job, now)
        ]
        if not dead:
            return
        if all(_asked_to_end(rank, job) for rank in dead):
            return
        first = min(rank.exited_at or now for rank in dead)
        if now - first < _SETTLE_SECONDS and job.returncode is None:
            return
        root = min(dead, key=lambda rank: _blame_order(rank, first, job))
        if root.was_ended:
            return  # every death was a SIGTERM: somebody ended the job, no rank failed
        left = _left_before(root, job)
        if left:
            yield _left_finding(left, root, job, heard(root, job, alone=True), now)
            return
        how, cause = _by_ray(root, job) or self._how(root)
        last = heard(root, job, alone=_alone(root, dead))
        again = is_earlier((root.rank,), root.exited_at or now, job)
        alike = [] if again else [one.rank for one in dead if _failed_alike(one, root, job)]
        after = _after(root, job, now) + attempt_of((root.rank,), root.exited_at or now, job)
        at_exit = _crashed_at_exit(root, last.error) and _trained_to_the_end(job)
        if at_exit:
            cause, after = "crash_at_exit", " at its exit, after the training had finished"
        for_memory = cause == "dataloader_worker_killed" and self._worker_for_memory(root)
        explained = job.gpu_faults.finding_of(root.rank, job.progress.iteration_at)
        if not explained and _by_watchdog(last.error, job):
            explained = "hang"
        guessed = root.exit is None or root.exit.how in _GUESSED
        yield finding(
            self.name,
            cause,
            subject=f"rank {root.rank}",
            confidence=Confidence.MEDIUM if guessed else None,
            ranks=(root.rank,),
            waiting_ranks=() if again else _others_involved(job, (root.rank, *alike)),
            since=root.exited_at or now,
            summary=f"rank {root.rank}{_format_pid(root)} {how}{after}{_so_did(alike)}; {last.sentence}",
            advice=_advice("oom_kill" if for_memory else cause, root, explained, last, _lost_it(root, dead)),
            evidence=(*_evidence(root, now, last), *_said_by_ray(root, job)),
        )

    def not_checked(self, job: JobView) -> Iterable[NotChecked]:
        unknown = [rank.rank for rank in job.ranks.values() if rank.exit and not rank.status_known]
        if unknown and job.returncode != 0:
            yield NotChecked(
                f"exit code of {format_ranks(unknown)}",
                "their launcher reaped them before it could be read, and printed none",
                "check the launcher's own log; Linux 6.15 and newer keep the code",
            )

    def _how(self, rank: RankView) -> tuple[str, str]:
        code = rank.exit
        assert code is not None
        if code.signal is not None:
            name = _signal_name(code.signal)
            if code.signal == signal.SIGKILL and self._for_memory(rank):
                return f"was killed by signal 9 ({name}) by the kernel's OOM killer", "oom_kill"
            return f"was killed by signal {code.signal} ({name})", f"signal_{code.signal}"
        by_worker = any(_WORKER_KILLED.search(line) for line in rank.tail)
        cause = "dataloader_worker_killed" if by_worker else f"exit_{code.exit_code}"
        return f"ended with exit code {code.exit_code}", cause

    def _for_memory(self, rank: RankView) -> bool:
        killed, name = self._killed.get(rank.placement.pid), rank.tree.main.comm if rank.tree else ""
        if killed is not None and killed == (name or killed):
            return True
        return abs((rank.exited_at or 0.0) - self._grown_at) <= _OOM_SECONDS

    def _worker_for_memory(self, rank: RankView) -> bool:
        named = filter(None, map(_WORKER_KILLED.search, rank.tail))
        pids = {int(pid) for match in named for pid in re.findall(r"\d+", match[0])}
        return not pids.isdisjoint(self._killed) or self._for_memory(rank)


_RAY_COMM = "ray::"  # of a worker's process, Ray 2.x
_READ_SECONDS = 30.0  # its logs are read within 20
_OUTLIVED_SECONDS = 20.0  # ours: it ends one actor after the other

# What Ray's own logs report of a worker's end.
_BY_RAY = {
    "killed": (
        "was ended by Ray: ray.kill was called on its actor, or no handle to it was left",
        "ray_killed",
    ),
    "memory": ("was killed by Ray, whose monitor found the node low on memory", "ray_memory"),
    "job_over": (
        "was ended by Ray, after its driver or whoever had started its actor had ended",
        "ray_job_over",
    ),
}


def _is_over_for_ray(rank: RankView, job: JobView, now: float) -> bool:
    """Ray ended its actor, as it does at the end of a training that went well (with exit code 1): it harms where the job fails,
    or peers of it live on. Of a worker of Ray's its logs are read before anything is said."""
    if job.returncode or rank.tree is None or not rank.tree.main.comm.startswith(_RAY_COMM):
        return False
    ago = now - (rank.exited_at or now)
    death = job.ray.deaths.get(rank.placement.pid)
    if death is None:
        return job.ray.seen is not None and job.ray.at <= (rank.exited_at or now) and ago < _READ_SECONDS
    if death.how not in ("killed", "job_over"):
        return False
    return ago < _OUTLIVED_SECONDS or not any(one.distributed for one in job.alive_ranks())


def _by_ray(rank: RankView, job: JobView) -> tuple[str, str] | None:
    death = job.ray.deaths.get(rank.placement.pid)
    if death is None or death.how not in _BY_RAY:
        return None
    how, cause = _BY_RAY[death.how]
    again = "; Ray starts the actor again" if death.restarts else ""
    return f"{how}{again}", cause


def _by_watchdog(error: str, job: JobView) -> bool:
    """Torch's watchdog ended it, for a collective that another rank did not come to."""
    hung = job.log.ended is not None and job.log.ended.hung
    return hung and "Watchdog caught collective operation timeout" in error


def _alone(root: RankView, dead: list[RankView]) -> bool:
    """No other rank failed by itself."""
    return all(one is root or one.was_ended for one in dead)


def _failed_alike(one: RankView, root: RankView, job: JobView) -> bool:
    """It ended as the first did, by itself as far as is known: it waits for nobody. Signals that others send, or the
    watchdog of a rank that waits, tell nothing."""
    if one is root or one.exit is None or root.exit is None or one is not job.ranks.get(one.rank):
        return False
    if root.exit.signal in _SENT or any(CASCADE.search(line) for line in one.tail):
        return False
    if _by_ray(one, job) != _by_ray(root, job):
        return False  # Ray ends actors with one exit code, whatever the reason
    return (one.exit.signal, one.exit.exit_code) == (root.exit.signal, root.exit.exit_code)


def _so_did(alike: list[int]) -> str:
    return f", and likewise {format_ranks(sorted(alike))}" if alike else ""


def _others_involved(job: JobView, ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Those that wait for them, or failed with them."""
    involved = {rank.rank for rank in job.ranks.values() if rank.alive or rank.failed}
    return tuple(sorted(involved.difference(ranks)))


def _after(root: RankView, job: JobView, now: float) -> str:
    iteration = job.progress.iteration_then(root.exited_at or now)
    if iteration is not None:
        now_words = iteration == job.iteration and job.progress.step_words()
        return f" after {now_words or f'iteration {iteration}'}"
    if is_earlier((root.rank,), root.exited_at or now, job):
        return ""  # the phase is that of the attempt since
    phase = job.phases.shown(root.exited_at or now)
    return "" if phase in ("ended", NOT_KNOWN) else f" in phase {phase}"


def _left_before(root: RankView, job: JobView) -> list[RankView]:
    """Ranks that ended well, shortly before one failed for a peer that was gone: theirs was the connection
    that closed."""
    reports_loss = any(CASCADE.search(line) for line in root.tail)
    if not reports_loss or any(not CASCADE.search(line) for line in root.tail if NAMED.match(line)):
        return []
    died = root.exited_at or 0.0
    ended_well = [rank for rank in job.ranks.values() if rank.exit is not None and rank.exit.exit_code == 0]
    return [rank for rank in ended_well if died - _LEFT_SECONDS <= (rank.exited_at or 0.0) <= died + 1.0]


def _left_finding(left: list[RankView], root: RankView, job: JobView, last: Heard, now: float) -> Finding:
    ranks = tuple(sorted(rank.rank for rank in left))
    after = f" after {job.progress.step_words()}" if job.iteration is not None else ""
    return finding(
        "rank-died",
        "rank_left_early",
        subject=f"rank {ranks[0]}",
        ranks=ranks,
        waiting_ranks=_others_involved(job, ranks),
        since=min(rank.exited_at or now for rank in left),
        summary=f"{format_ranks(ranks)} ended with exit code 0 while its peers still trained{after}; rank {root.rank} then failed "
        f"for the lost connection; {last.sentence}",
        words={"ranks": format_ranks(ranks)},
        evidence=(*_evidence(left[0], now), *_evidence(root, now)),
    )


def _asked_to_end(rank: RankView, job: JobView) -> bool:
    asked, ended = job.interrupted_at, rank.exited_at
    return asked is not None and ended is not None and ended >= asked - 0.5


def _blame_order(rank: RankView, first: float, job: JobView) -> tuple[int, int, float]:
    """Ended by the launcher < reports somebody else's loss < its own failure; then who was first."""
    cascade = any(CASCADE.search(line) for line in rank.tail)
    near = (rank.exited_at or first) - first < 1.0  # within a second the order of our looks means nothing
    death = job.ray.deaths.get(rank.placement.pid)
    kind = 2 if rank.was_ended or (death is not None and death.how == "job_over") else 1 if cascade else 0
    return (kind, 0 if near else 1, rank.exited_at or first)


def _trained_to_the_end(job: JobView) -> bool:
    """The trainer reported it, or the last step that was planned is made and its checkpoint written."""
    if job.phases.marked == "teardown":
        return True
    last = job.saves.log.saves[-1] if job.saves.log.saves else None
    if last is None or last.ended is None or last.cut_off or job.saves.log.unwritten is not None:
        return False
    return last.iteration == job.iteration and 0 < job.progress.total_iterations <= (job.iteration or 0)


def _crashed_at_exit(rank: RankView, error: str) -> bool:
    """Native code aborted while the interpreter was ending: by what it printed, or by where the main thread last
    stood."""
    code = rank.exit
    crashed = code is not None and (code.signal or (code.exit_code or 0) - 128) in CRASHES
    leaving = rank.reading is not None and rank.reading.context is Activity.TEARDOWN
    return crashed and (leaving or any(words in error for words in _AT_EXIT))


def _format_pid(rank: RankView) -> str:
    """A log need not have it."""
    return f" (pid {rank.placement.pid})" if rank.placement.pid else ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"real-time signal {number}"


def _evidence(rank: RankView, now: float, last: Heard | None = None) -> Iterator[Evidence]:
    assert rank.exit is not None
    code = rank.exit.exit_code if rank.exit.signal is None else f"signal {rank.exit.signal}"
    pid = f"pid {rank.exit.pid}: " if rank.exit.pid else "exit code " if rank.exit.signal is None else ""
    yield Evidence("exit", f"{pid}{code}, reported by {rank.exit.how}", rank.exited_at or now, rank.rank)
    short = (
        last is not None and len(rank.tail) == 1
    )  # a shell's word for it, and what the program said is above
    lines = [line for line in (last.lines if last and (last.error or short) else rank.tail) if line.strip()]
    if last and last.error in lines:  # launchers go on below it for pages
        end = len(lines) - lines[::-1].index(last.error)
        lines = lines[: min(len(lines), end + 2)] if last.lines else lines
    lines = lines[-8:]
    if lines:
        yield Evidence("output", "\n".join(lines), rank.exited_at or now, rank.rank)


def _said_by_ray(rank: RankView, job: JobView) -> Iterator[Evidence]:
    death = job.ray.deaths.get(rank.placement.pid)
    if death is not None:
        yield Evidence("ray", death.line, rank.exited_at or job.ray.at, rank.rank)


def _lost_it(root: RankView, dead: list[RankView]) -> bool:
    """Another rank reports a lost peer: where all raise the same by themselves, nothing follows from one of them."""
    return any(one is not root and any(CASCADE.search(line) for line in one.tail) for one in dead)


def _advice(cause: str, rank: RankView, explained: str, last: Heard, followed: bool) -> str:
    known = row("rank-died", cause)
    lost, silent = CASCADE.search(last.error) and "lost", not last.error and "silent"
    kinds = ("always", explained and "explained", "unexplained", lost, silent, "advice")
    kind = next(kind for kind in kinds if kind and kind in known)
    text = known[kind]
    if kind == "advice" and last.error:
        text = remedy(last.lines, last.error) or text
    elif not last.error and kind != "explained":  # who aborts, or gives up, may say why just before
        only_died = len(rank.tail) == 1 and SHELL_S_WORD.match(rank.tail[0])
        words = [*((not only_died and rank.tail) or last.lines)][-_LAST_WORDS:]
        told = (remedy([line], line, general=False) for line in reversed(words))
        text = next(filter(None, told), text)
    text += known["follows"] if followed and kind not in ("always", "lost") else ""
    return with_words(text, {"rank": str(rank.rank), "subject": f"rank {rank.rank}", "finding": explained})
