"""Is the job hung, or slow, compiling, saving, preprocessing? If hung: which rank, in what, and who waits for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from diag.detectors.hang_collectives import Collectives
from diag.detectors.hang_words import advice_for, describe, evidence_of
from diag.detectors.verdict import Verdict
from diag.jobstate import JobState
from diag.model import JOB, Confidence, Finding, NotChecked, Severity, format_ranks
from diag.observations import Observation, StackSample
from diag.rankstate import CHANNELS, RankState
from diag.stacks import Activity, is_idle_worker, read_stack
from diag.waitgraph import Explanation

__all__ = ["HangDetector", "Verdict", "judge", "wants_closer_look"]

# Seconds without any progress before a rank that blocks outside of a collective is called hung. Steady state: training
# steps of seconds, so five steps or 15 s, whichever is more (NVRx's factor). Elsewhere, first batch, first
# communicator, first kernel: twice that. A save waits for disks.
_STEADY_SECONDS = 15.0
_STEADY_STEPS = 3.0
_PATIENCE = {"ckpt_save": 40.0, "teardown": 60.0, "eval": 40.0}
_OTHER_PHASES_SECONDS = 30.0
# When every rank seen waits for its peers or its GPU, nobody is visibly to blame: a long kernel, a slow first
# communicator and a real hang look the same for longer (SGLang, NCCLX: minutes at scale).
_SYMMETRIC_SECONDS = 300.0
_SYMMETRIC_STEPS = 10.0
# Ranks that never appeared may still be scheduled: elastic's own store waits this long for a first sign.
_MISSING_RANKS_SECONDS = 120.0
# Children or IO that keep moving without any step, stack or log line moving (a side process, a service).
_BUSY_WITHOUT_PROGRESS = {"steady": 600.0}
_BUSY_WITHOUT_PROGRESS_SECONDS = 7200.0  # DLRover's ceiling for the first step
_SAMPLES = 3  # equal stacks needed before a rank may be blamed by its stack
_STRONG = ("log", "stack", "cpu")  # channels whose movement means that the job itself moves

# How a rank stands that waits for others. On a GPU the wait for a peer's kernel shows as a wait for the GPU.
_WAITS = ("joined", "gpu", "rendezvous", "comm_init")
_BLOCKED = {
    Activity.DATA: "data_loading",
    Activity.PREPROCESS: "preprocess_wait",
    Activity.CHECKPOINT: "checkpoint_io",
    Activity.COMPILE: "compile_wait",
    Activity.FILE_LOCK: "lock_deadlock",
    Activity.LOCK: "lock_deadlock",
    Activity.TEARDOWN: "teardown",
    Activity.SERVICE: "resource_wait",
}
# Rollout servers and downloads answer late for good reasons.
_SERVICE_SECONDS = 300.0
# An fsync of many GB to a network file system moves no counter of the process until it is done.
_DISK_SECONDS = 300.0
# In these phases a lone process is known to train; before, an idle one may be a launcher, a server, a poller.
_TRAINING_PHASES = ("first_step", "steady", "eval", "ckpt_save")


class HangDetector:
    """Meaning: no rank of the job has made progress for longer than its phase allows.

    Evidence: the main thread's stack of each rank (unchanged over samples), CPU, IO and memory of the rank and its
    children, the job's log, process states. Two independent channels must stand still.

    What to do: the advice follows the class; `diag dump --all-ranks` shows all stacks merged.

    False alarms: a wait for a service outside of the job looks like a hang of class peer_not_joined or unknown.
    """

    name = "hang"

    def __init__(self) -> None:
        self._collectives = Collectives()

    def observe(self, at: float, fact: Observation) -> None:
        """Of all else that this detector needs the job state keeps track."""
        self._collectives.observe(at, fact)

    def check(self, now: float, job: JobState) -> Iterator[Finding]:
        verdict = judge(now, job, self._collectives)
        if verdict is None:
            return
        yield Finding(
            id="hang",
            subject=JOB,
            klass=verdict.klass,
            severity=Severity.CRITICAL,
            confidence=verdict.confidence,
            ranks=verdict.culprits,
            waiting_ranks=verdict.waiting,
            since=verdict.since,
            cause=verdict.cause,
            summary=describe(verdict, job, now),
            advice=advice_for(verdict, job),
            evidence=tuple(evidence_of(verdict, job, now)),
        )

    def not_checked(self, job: JobState) -> Iterable[NotChecked]:
        blind = [rank.rank for rank in job.alive_ranks() if rank.stack is None and rank.tree is not None
                 and job.started_at is not None and rank.tree_at - rank.found_at > 30.0]
        if blind and not job.failed_sources:
            yield NotChecked(
                f"hang class of ranks {format_ranks(blind)}",
                "no Python stack could be read yet",
                "run `diag dump --all-ranks` to see the reason",
            )


def judge(now: float, job: JobState, collectives: Collectives | None = None) -> Verdict | None:
    """None while the job moves, might still move, or is not a job yet."""
    alive = job.alive_ranks()
    if job.returncode is not None or job.interrupted_at is not None or not alive:
        return None
    dead = [rank for rank in job.ranks.values() if rank.exit is not None and rank.exit.exit_code != 0]
    since = max([rank.last_moved(_STRONG) for rank in alive] + [job.log_moved_at or 0.0])
    weak_since = max([rank.last_moved(CHANNELS) for rank in alive] + [since])
    quiet = now - weak_since
    if quiet < _STEADY_SECONDS:
        ceiling = _BUSY_WITHOUT_PROGRESS.get(job.phase, _BUSY_WITHOUT_PROGRESS_SECONDS)
        if now - since < ceiling or job.phase in ("data_prep", "model_load", "compile", "ckpt_save"):
            return None
        quiet = now - since
    else:
        since = weak_since
    if not _well_seen(alive, now, quiet):
        return None
    standing = {rank.rank: _standing(rank) for rank in alive}
    verdict = _blame(job, alive, dead, standing, since)
    if collectives is not None:
        verdict = _with_collectives(verdict, collectives.explain(now, job), standing)
    if now - verdict.since < _patience(job, verdict) or _may_be_idle(job, alive, verdict):
        return None
    return verdict


def _may_be_idle(job: JobState, alive: list[RankState], verdict: Verdict) -> bool:
    """A command without ranks that stands still is hung only if it trains, or waits where nobody waits by intent."""
    if any(rank.distributed for rank in alive) or job.phase in _TRAINING_PHASES:
        return False
    return verdict.klass not in ("stopped", "rendezvous", "comm_init") and verdict.cause != "stale_file_lock"


def wants_closer_look(now: float, job: JobState) -> bool:
    """Whether samples should come faster and include children: progress is overdue, though nothing is proven."""
    if job.returncode is not None or not job.alive_ranks():
        return False
    overdue = max(5.0, 2.0 * (job.step_p95() or 0.0))
    # A rank that spins in a wait looks busy until its stack was seen twice: the log knows better when it is late.
    reporting = job.phase == "steady" and job.line_seconds and job.log_moved_at is not None
    if reporting and now - (job.log_moved_at or now) > max(5.0, 3.0 * max(job.line_seconds)):
        return True
    return now - job.last_progress() > overdue or any(rank.stopped for rank in job.alive_ranks())


def _well_seen(alive: list[RankState], now: float, quiet: float) -> bool:
    """Enough independent looks during the silence: a verdict needs eyes, not only silence."""
    for rank in alive:
        if rank.tree is None or now - rank.tree_at > 15.0:
            return False  # /proc itself was not read lately: diag is starved, not the job
        if rank.stopped:
            continue
        if rank.stack is None:
            if quiet < 120.0:
                return False
        elif rank.stack_samples < _SAMPLES or now - rank.stack_at > 30.0:
            return False
    return True


def _standing(rank: RankState) -> str:
    """How a living rank stands: stopped, joined (waits for peers), gpu, init, blind, or a class it is blocked in."""
    if rank.stopped:
        return "stopped"
    if rank.reading is None:
        return "blind"
    activity, context = rank.reading.activity, rank.reading.context
    if activity is Activity.COLLECTIVE:
        return "joined"
    if activity is Activity.BACKWARD:
        return "joined"
    if activity is Activity.GPU_SYNC:
        return "gpu"
    if activity is Activity.RENDEZVOUS:
        return "rendezvous"
    if activity is Activity.COMM_INIT:
        return "comm_init"
    if _resource_starved(rank):
        return "resource_wait"
    if _holds_gil_idle(rank):
        return "gil_deadlock"
    if activity in (Activity.LOCK, Activity.OTHER):
        if context is Activity.CHECKPOINT:
            return "checkpoint_io"
        if context is Activity.TEARDOWN:
            return "teardown"
        if _deadlocked_threads(rank):
            return "lock_deadlock"
        return "lock_deadlock" if activity is Activity.LOCK else "outside"
    return _BLOCKED[activity]


def _blame(
    job: JobState, alive: list[RankState], dead: list[RankState], standing: dict[int, str], since: float
) -> Verdict:
    """The least joined ranks hold up the rest. Dead outranks stopped outranks blocked outranks not yet initialised."""
    everyone = tuple(rank.rank for rank in alive)
    seen_all = job.ranks_seen >= job.world_size
    if dead:
        culprits = tuple(sorted(rank.rank for rank in dead))
        since = max([since, *(rank.exited_at or since for rank in dead)])  # they moved until they died
        return Verdict("peer_lost", culprits, everyone, "rank_exited", since, Confidence.HIGH)
    stopped = tuple(rank for rank in everyone if standing[rank] == "stopped")
    if stopped:
        return Verdict("stopped", stopped, _others(everyone, stopped), "sigstop", since, Confidence.HIGH)
    blocked = [rank for rank in everyone if standing[rank] not in (*_WAITS, "blind")]
    joining = [rank for rank in everyone if standing[rank] in ("rendezvous", "comm_init")]
    if blocked:
        return _blocked_verdict(job, blocked, everyone, joining, standing, since)
    if joining:
        klass = "rendezvous" if any(standing[rank] == "rendezvous" for rank in joining) else "comm_init"
        late = _others(everyone, tuple(joining))
        missing = tuple(rank for rank in range(job.world_size) if rank not in job.ranks)
        if missing and len(missing) <= 4096:
            return Verdict(klass, missing, everyone, "ranks_missing", since, Confidence.MEDIUM)
        return Verdict(klass, late, tuple(joining), "not_all_joined", since,
                       Confidence.MEDIUM if late else Confidence.LOW)
    blind = tuple(rank for rank in everyone if standing[rank] == "blind")
    if blind and len(blind) < len(everyone):
        return Verdict("unknown", blind, _others(everyone, blind), "no_stack", since, Confidence.LOW)
    gone = tuple(sorted(rank.rank for rank in job.ranks.values() if not rank.alive))
    if gone:
        return Verdict("peer_lost", gone, everyone, "rank_left_early", since, Confidence.MEDIUM)
    cause = "all_ranks_wait" if seen_all else "culprit_not_seen"
    return Verdict("unknown", (), everyone, cause, since, Confidence.LOW)


def _blocked_verdict(  # noqa: PLR0917 - one caller, beside it
    job: JobState, blocked: list[int], everyone: tuple[int, ...], joining: list[int], standing: dict[int, str],
    since: float,
) -> Verdict:
    # Ranks blocked in several ways at once: a class that explains itself outranks "outside of any known wait".
    order = ("resource_wait", "gil_deadlock", "lock_deadlock", "data_loading", "checkpoint_io", "preprocess_wait",
             "compile_wait", "outside", "teardown")
    klass = min((standing[rank] for rank in blocked), key=order.index)
    culprits = tuple(rank for rank in blocked if standing[rank] == klass)
    waiting = _others(everyone, culprits)
    cause, child = _cause(job.ranks[culprits[0]], klass)
    certain = bool(waiting) and all(standing[rank] in _WAITS for rank in waiting)
    confidence = Confidence.HIGH if certain and job.ranks_seen >= job.world_size else Confidence.MEDIUM
    if klass == "resource_wait" and cause == "external_service":
        confidence = Confidence.MEDIUM
    if klass == "outside":
        klass = "rendezvous" if joining else ("peer_not_joined" if waiting else "unknown")
    return Verdict(klass, culprits, waiting, cause, since, confidence, child)


def _with_collectives(verdict: Verdict, found: Explanation | None, standing: dict[int, str]) -> Verdict:
    """Stacks say where ranks stand, the Flight Recorder who has not come: two channels that should agree.

    A rank that died, stopped or is stuck in its shutdown outranks what it did not call; so does a block that explains
    itself (data, a lock, a save). The recorder decides where the stacks see all ranks waiting alike.
    """
    if found is None or verdict.klass in ("peer_lost", "stopped", "teardown", "rendezvous"):
        return verdict
    everyone = (*verdict.culprits, *verdict.waiting)
    all_wait = all(standing.get(rank) in (*_WAITS, "blind") for rank in everyone)
    if found.kind == "mismatch" and all_wait:
        sure = Confidence.HIGH if 2 * len(found.culprits) < len(everyone) else Confidence.MEDIUM
        return _decided(verdict, found, "collective_mismatch", "calls_differ", sure)
    if found.kind == "order_cycle" and all_wait:
        sure = Confidence.HIGH if found.certain else Confidence.MEDIUM
        return _decided(verdict, found, "collective_order_deadlock", "groups_in_opposite_order", sure)
    if found.kind == "absent_rank":
        if all_wait:
            return _decided(verdict, found, "peer_not_joined", "not_in_collective", Confidence.MEDIUM)
        agreed = tuple(rank for rank in verdict.culprits if rank in found.culprits)
        if agreed:
            return replace(verdict, collectives=found)
    return verdict


def _decided(verdict: Verdict, found: Explanation, klass: str, cause: str, confidence: Confidence) -> Verdict:
    everyone = tuple(sorted((*verdict.culprits, *verdict.waiting)))
    return replace(
        verdict, klass=klass, cause=cause, confidence=confidence, culprits=found.culprits,
        waiting=_others(everyone, found.culprits), blamed_child=None, collectives=found,
    )


def _cause(rank: RankState, standing: str) -> tuple[str, int | None]:
    """The closed word for why, and the child process that is to blame, when one is."""
    if standing == "data_loading":
        stopped = _stopped_child(rank)
        if stopped is not None:
            return "dataloader_worker_stopped", stopped
        child = busy_child(rank)
        if child is not None:
            return "dataloader_worker_blocked", child.pid
        return "dataloader_main_process", None
    if standing == "checkpoint_io":
        child = busy_child(rank)
        return ("checkpoint_writer_blocked", child.pid) if child is not None else ("checkpoint_write_blocked", None)
    if standing == "lock_deadlock":
        if rank.activity is Activity.FILE_LOCK:
            return "stale_file_lock", None
        return ("threads_wait_for_each_other" if _deadlocked_threads(rank) else "lock_not_released"), None
    return {
        "resource_wait": _starved_of(rank) or "external_service",
        "gil_deadlock": "gil_held",
        "outside": "not_in_collective",
        "preprocess_wait": "preprocess_blocked",
        "compile_wait": "compiler_stalled",
        "teardown": "teardown_blocked",
    }.get(standing, "unknown"), None


def busy_child(rank: RankState) -> StackSample | None:
    """The child process whose stack is not that of an idle worker: the one that has something it cannot finish."""
    best: tuple[int, int] | None = None
    chosen: StackSample | None = None
    alive = {child.pid for child in rank.tree.children} if rank.tree else set()
    for pid, (_, sample) in sorted(rank.child_stacks.items()):
        if pid not in alive or is_idle_worker(sample) or sample.main is None:
            continue
        inside = any(read_stack(thread).activity in (Activity.DATA, Activity.CHECKPOINT) for thread in sample.threads)
        score = (int(inside), len(sample.main.frames))
        if best is None or score > best:
            best, chosen = score, sample
    return chosen


def _stopped_child(rank: RankState) -> int | None:
    """A DataLoader worker in state T: its own name is pt_data_worker from torch 2.6 on, the rank's before."""
    if rank.tree is None:
        return None
    for child in rank.tree.children:
        if child.state in "Tt" and child.comm in ("pt_data_worker", rank.tree.main.comm):
            return child.pid
    return None


def _holds_gil_idle(rank: RankState) -> bool:
    """The main thread owns the GIL in every sample and burns no CPU: it sleeps in C code without giving it up."""
    main = rank.stack.main if rank.stack else None
    if main is None or not main.owns_gil or rank.tree is None:
        return False
    return (rank.main_cpu_ratio or 0.0) < 0.1


def _deadlocked_threads(rank: RankState) -> bool:
    """The main thread and another thread of the user's both wait on a futex, in code that is no known idle loop."""
    if rank.stack is None or rank.tree is None or not rank.tree.main.wchan.startswith("futex"):
        return False
    main = rank.stack.main
    return any(
        thread is not main and _may_hold_a_lock(thread.name) and read_stack(thread).activity is Activity.OTHER
        and len(thread.frames) > 2 and not _idle_loop(thread.frames[-1].function, thread.frames[-1].file)
        for thread in rank.stack.threads
    )


def _may_hold_a_lock(name: str) -> bool:
    return not name.startswith(("pt_", "gloo", "asyncio", "QueueFeederThread"))


def _idle_loop(function: str, file: str) -> bool:
    return "/tqdm/" in file or "torch/_inductor" in file or "concurrent/futures" in file or "selectors.py" in file or (
        function in ("_pin_memory_loop", "_monitor_loop", "_async_loop")
    )


def _resource_starved(rank: RankState) -> bool:
    return bool(_starved_of(rank))


def _starved_of(rank: RankState) -> str:
    tree = rank.tree
    if tree is None:
        return ""
    # Linux 6.1 and 6.18, cgroup v2 above memory.high: state D, wchan mem_cgroup_handle_over_high
    if tree.main.wchan == "mem_cgroup_handle_over_high":
        return "memory_high"
    files = rank.limits.get("Max open files") if rank.limits else None
    if files and tree.open_files is not None and tree.open_files >= 0.98 * files:
        return "open_files"
    if rank.shm is not None and rank.shm.size_bytes > 0 and rank.shm.available_bytes < 64 * 1024:
        return "dev_shm_full"
    return ""


def _patience(job: JobState, verdict: Verdict) -> float:
    step = job.step_p95() or 0.0
    if verdict.cause == "ranks_missing":
        return _MISSING_RANKS_SECONDS
    if verdict.cause == "external_service":
        return _SERVICE_SECONDS
    if verdict.klass == "checkpoint_io" and _waits_for_disk(job, verdict):
        return _DISK_SECONDS
    if not verdict.culprits:
        if job.phase == "steady" and step:
            return max(60.0, _SYMMETRIC_STEPS * step)
        return _SYMMETRIC_SECONDS
    if verdict.klass == "teardown" and len(verdict.culprits) == len(job.alive_ranks()):
        return _PATIENCE["teardown"]  # all are leaving; one that leaves while others wait for it is another matter
    if job.phase == "steady":
        return max(_STEADY_SECONDS, _STEADY_STEPS * step)
    return _PATIENCE.get(job.phase, _OTHER_PHASES_SECONDS)


def _waits_for_disk(job: JobState, verdict: Verdict) -> bool:
    """A culprit, or the writer below it, is in state D: in the kernel's hands, where slow and dead look the same."""
    for number in verdict.culprits:
        tree = job.ranks[number].tree if number in job.ranks else None
        if tree is not None and "D" in tree.main.state + "".join(child.state for child in tree.children):
            return True
    return False


def _others(everyone: tuple[int, ...], culprits: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(rank for rank in everyone if rank not in culprits)
