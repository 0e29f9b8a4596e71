"""Faults, and honest long work, in parts of a run that are no training step: groups, evaluation, the
optimizer."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ..after_import import after_import
from .runtime import Runtime

ON_EVERY_RANK = ("eval-hang", "long-eval", "slow-step", "cpu-optimizer")
IN_OPTIMIZER = ("optimizer-hang", "cpu-optimizer")
_EVAL_BATCHES = 3


def hook_groups(runtime: Runtime) -> None:
    """Before the first group besides the default one, where the other ranks will wait for this one."""

    def wrap(module: ModuleType) -> None:
        genuine: Any = module.initialize_model_parallel

        @functools.wraps(genuine)
        def initialize_model_parallel(*args: Any, **kwargs: Any) -> Any:
            runtime.announce()
            runtime.wait_for_release()
            return genuine(*args, **kwargs)

        module.initialize_model_parallel = initialize_model_parallel  # type: ignore[attr-defined]

    after_import("megatron.core.parallel_state", wrap)


def hook_optimizer(runtime: Runtime) -> None:
    """Inside of `step` of the optimizer that Megatron takes: TransformerEngine's, else Apex's, else torch's."""
    strike = _offloaded if runtime.fault.name == "cpu-optimizer" else _blocked

    def wrap(module: ModuleType) -> None:
        for name in ("Adam", "AdamW", "FusedAdam"):
            optimizer: Any = getattr(module, name, None)
            if optimizer is not None and "step" in vars(optimizer):
                optimizer.step = _wrapped(optimizer.step, runtime, strike)

    # megatron-core 0.16.1 to 0.18.2, optimizer/__init__.py; TransformerEngine 2.16.1
    for module in (
        "transformer_engine.pytorch.optimizers.fused_adam",
        "apex.optimizers.fused_adam",
        "torch.optim.adam",
        "torch.optim.adamw",
    ):
        after_import(module, wrap)


def _wrapped(
    genuine: Callable[..., Any], runtime: Runtime, strike: Callable[[Runtime], None]
) -> Callable[..., Any]:
    struck = False

    @functools.wraps(genuine)
    def step(*args: Any, **kwargs: Any) -> Any:
        nonlocal struck
        if runtime.step > runtime.fault.step and not struck:
            struck = True
            strike(runtime)
        return genuine(*args, **kwargs)

    return step


def _blocked(runtime: Runtime) -> None:
    runtime.announce()
    runtime.wait_for_release()


def _offloaded(runtime: Runtime) -> None:
    """Adam's arithmetic on host memory, again and again: what an offloaded optimizer does with many more
    parameters."""
    import torch

    if runtime.is_culprit:
        runtime.announce()
    until = time.monotonic() + runtime.fault.option("seconds")
    weight, gradient, first, second = (torch.zeros(1 << 20) for _ in range(4))
    while time.monotonic() < until:
        first.mul_(0.9).add_(gradient, alpha=0.1)
        second.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
        weight.addcdiv_(first, second.sqrt().add_(1e-8), value=-1e-4)


def _evaluate(runtime: Runtime, count: int) -> None:
    assert runtime.schedule is not None
    for _ in range(count):
        runtime.schedule(forward_only=True)


def _eval_hang(runtime: Runtime) -> None:
    _evaluate(runtime, _EVAL_BATCHES)
    if runtime.is_culprit:
        _compute_metrics(runtime)


def _compute_metrics(runtime: Runtime) -> None:
    runtime.announce()
    runtime.wait_for_release()


def _long_eval(runtime: Runtime) -> None:
    if runtime.is_culprit:
        runtime.announce()
    _evaluate(runtime, int(runtime.fault.option("factor")))


def _slow_step(runtime: Runtime) -> None:
    assert runtime.schedule is not None
    if runtime.is_culprit:
        runtime.announce()
    for _ in range(int(runtime.fault.option("factor")) - 1):
        runtime.schedule()


def _nan_loss(runtime: Runtime) -> None:
    """In a norm's weight, which every sample goes through; of an embedding only one row would be ill."""
    import torch

    schedule: Any = runtime.schedule
    runtime.announce()
    with torch.no_grad():
        weights = [weight for weight in schedule.keywords["model"][0].parameters() if weight.dim() == 1]
        weights[-1][0] = float("nan")


STRIKES: dict[str, Callable[[Runtime], None]] = {
    "eval-hang": _eval_hang,
    "long-eval": _long_eval,
    "slow-step": _slow_step,
    "nan-loss": _nan_loss,
}
