"""What a culprit does of which neither a known function nor the kernel says what it waits for: it computes, or its
GPU does."""

from __future__ import annotations

from dataclasses import replace

from diag.detectors.hang.verdict import Verdict
from diag.state.rank_view import RankView
from diag.state.stack_activity import Activity, read_stack
from diag.state.view import JobView

_COMPUTES_CPU_RATIO = 0.05  # of a crowded machine that is all that one may get


def with_work(verdict: Verdict, job: JobView) -> Verdict:
    ranks = [job.ranks[rank] for rank in verdict.culprits if rank in job.ranks]
    if verdict.cause != "not_in_collective" or not ranks:
        return verdict
    if all(map(_synchronizes, ranks)):
        return replace(verdict, klass="gpu_side", cause="waits_for_gpu")
    if not all(map(_computes, ranks)):
        calls = all(rank.reading is not None and rank.reading.own is not None for rank in ranks)
        return replace(verdict, cause="call_does_not_return") if calls else verdict
    in_c = all(rank.activity is Activity.GPU_SYNC for rank in ranks)
    return replace(verdict, cause="busy_in_c" if in_c else "busy", busy=True)


def _synchronizes(rank: RankView) -> bool:
    """By its frames. One that spins in C without any may as well compute."""
    judged = rank.judged
    return judged is not None and read_stack(judged).activity is Activity.GPU_SYNC


def _computes(rank: RankView) -> bool:
    runs = rank.tree is not None and rank.tree.main.state == "R"
    return runs or (rank.main_cpu_ratio or 0.0) > _COMPUTES_CPU_RATIO
