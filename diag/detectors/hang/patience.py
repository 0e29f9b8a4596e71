"""How long nothing may move before it is called a hang, by phase and by what the rank is blocked in."""

from __future__ import annotations

from diag.detectors.hang.catalogue import entry_of
from diag.detectors.hang.time_limits import patience_to_end
from diag.detectors.hang.verdict import Verdict
from diag.state.rank_view import RankView
from diag.state.view import JobView

# Seconds without any progress before a rank that blocks outside of a collective is called hung. Steady state:
# training steps of seconds, so three steps or 15 s, whichever is more. Elsewhere, first batch, first
# communicator, first kernel: twice that. A save waits for disks.
STEADY_SECONDS = 15.0
_STEADY_STEPS = 3.0
_PATIENCE = {"ckpt_save": 40.0, "teardown": 60.0, "eval": 40.0}
_OTHER_PHASES_SECONDS = 30.0
# When every rank seen waits for its peers or its GPU, no rank is visibly to blame: a long kernel, a slow first
# communicator and a real hang look the same for longer (SGLang, NCCLX: minutes at scale).
_SYMMETRIC_SECONDS = 300.0
_SYMMETRIC_STEPS = 10.0
# An fsync of many GB to a network file system moves no counter of the process until it is done.
_DISK_SECONDS = 300.0
# In these phases a lone process is known to train; before, an idle one may be a launcher, a server, a poller.
_TRAINING_PHASES = ("first_step", "steady", "eval", "ckpt_save")


# What the job itself has shown, of phases that come again: so many times the longest silence that it came
# through, or as long as such a phase took at most, if that is less than NVRx's factor of 5 times the silences
# in it.
_SILENCES = 2.0
_CHILD_SECONDS = 60.0  # ours: a worker or a child of the culprit computes: what it prepares may take its time
_SILENCES_OF_WHOLE_PHASE = 5.0
_REPEATED_PHASES = ("steady", "training", "eval", "ckpt_save")


def patience(job: JobView, verdict: Verdict) -> float:
    """Seconds of silence before the verdict is reported. The defaults grow from what this job has shown, and
    never shrink."""
    return max(
        _default(job, verdict), _learned(job, verdict), _come_through(job, verdict), patience_to_end(verdict)
    )


def learned_rhythm(job: JobView) -> float:
    """Seconds of the longest pause that is normal for this job in its phase; 0 where it has shown none."""
    lines = max(job.progress.line_seconds, default=0.0) if job.phase == "steady" else 0.0
    return max(job.silences.longest(job.phase, job.iteration), job.progress.step_p95() or 0.0, lines)


def _learned(job: JobView, verdict: Verdict) -> float:
    """A job whose every tenth step is silent for a minute has shown so the first time; a save, by the one
    before."""
    if job.phase not in _REPEATED_PHASES and not verdict.is_of("come_through_before"):
        return 0.0
    silence = job.silences.longest(job.phase, job.iteration)
    whole = job.silences.longest_phase(job.phase) if job.phase in ("eval", "ckpt_save") else 0.0
    return max(_SILENCES * silence, min(whole, _SILENCES_OF_WHOLE_PHASE * silence))


def _come_through(job: JobView, verdict: Verdict) -> float:
    """Of ranks that wait for busy ones: as long as they did before, and went on."""
    if not verdict.busy:
        return 0.0
    waiting = job.ranks.known(verdict.waiting)
    culprits = job.ranks.known(verdict.culprits)
    works = any(rank.last_moved(("child_cpu",)) > verdict.since for rank in culprits)
    return max(
        _SILENCES * max((rank.came_through for rank in waiting), default=0.0),
        _CHILD_SECONDS if works else 0.0,
    )


def _default(job: JobView, verdict: Verdict) -> float:
    step = job.progress.step_p95() or 0.0
    if (seconds := entry_of(verdict.cause).report_after) is not None:
        return seconds
    if verdict.klass == "checkpoint_io" and _waits_for_disk(job, verdict):
        return _DISK_SECONDS
    if not verdict.culprits or verdict.is_of("like_a_slow_one"):
        if job.phase == "steady" and step:
            return max(60.0, _SYMMETRIC_STEPS * step)
        return _SYMMETRIC_SECONDS
    if verdict.klass == "teardown" and len(verdict.culprits) == len(job.alive_ranks()):
        # all are leaving; one that leaves while others wait for it is another matter
        return _PATIENCE["teardown"]
    if job.phase == "steady":
        return max(STEADY_SECONDS, _STEADY_STEPS * step)
    return _PATIENCE.get(job.phase, _OTHER_PHASES_SECONDS)


def may_be_idle(job: JobView, alive: list[RankView], verdict: Verdict) -> bool:
    """A command without ranks that stands still is hung only if it trains, or waits where no process waits by
    intent; one that a person pointed at is to go on, whatever it is."""
    if any(rank.distributed for rank in alive) or job.phase in _TRAINING_PHASES or job.run.pointed_at:
        return False
    return verdict.klass not in ("stopped", "rendezvous", "comm_init") and not verdict.is_of("never_meant")


def _waits_for_disk(job: JobView, verdict: Verdict) -> bool:
    """A culprit, or the writer below it, is in state D: in the kernel's hands, where slow and dead look the
    same."""
    for number in verdict.culprits:
        tree = job.ranks[number].tree if number in job.ranks else None
        if tree is not None and "D" in tree.main.state + "".join(child.state for child in tree.children):
            return True
    return False
