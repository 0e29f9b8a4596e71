"""The longest sequences with which a plan fits."""

from __future__ import annotations

from dataclasses import replace

from diag.preflight.estimate.gpu import gpu_needs
from diag.preflight.estimate.plan import Plan
from diag.preflight.estimate.states import state_terms

_ROUND = 64  # tokens: kernels like it, and the estimate is no finer


def longest_length(plan: Plan, gpu_bytes: int, margin: float) -> int:
    """Tokens of the longest sequence with which each rank needs `gpu_bytes` at most, up to the plan's own; 0 where
    there is none of 64 tokens. `margin`: of what is not weights, gradients and optimizer, whose sizes are exact."""
    low, high = 0, max(1, plan.batch.sequence // _ROUND)
    while low < high:
        middle = (low + high + 1) // 2
        if _needs(plan, middle * _ROUND, margin) <= gpu_bytes:
            low = middle
        else:
            high = middle - 1
    return low * _ROUND


def _needs(plan: Plan, sequence: int, margin: float) -> float:
    other = replace(plan, batch=replace(plan.batch, sequence=sequence))
    needs = []
    for need in gpu_needs(other):
        exact = sum(term.size_bytes for term in state_terms(other, need.stage))
        needs.append(exact + (need.total - exact) * (1 + margin))
    return max(needs, default=0.0)
