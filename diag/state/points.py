"""The numbers that a trainer prints for a step, by whatever names its framework has for them: one point for
each such line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from diag.model import Evidence
from diag.model.observations import BarMoved, Iteration, MetricsLogged
from diag.model.observations.base import Event
from diag.state.reducer import Reducer, Tell, takes

# ms-swift and transformers; Megatron-LM (pretrain_gpt.py); trl's and ms-swift's Megatron path take `loss`
_LOSS = ("loss", "lm loss")
_GRAD = ("grad_norm", "grad norm")
_RATE = ("learning_rate", "learning rate")
_SCALE = ("loss scale", "loss_scale")
# Losses of reinforcement learning (trl, ms-swift: GRPO, PPO) go round zero and show nothing of whether it
# learns.
_POLICY = (
    "reward",
    "rewards",
    "kl",
    "completions/mean_length",
    "objective/kl",
    "policy/approxkl_avg",
    "reward_std",
)


@dataclass(frozen=True, slots=True)
class Point(Event):
    """Sent by `Points`: one line of numbers; None for what it does not have. `iteration` is None where neither line nor bar
    shows it."""

    at: float
    iteration: int | None
    loss: float | None
    grad: float | None
    rate: float | None
    scale: float | None
    skipped: float
    margin: float | None  # rewards/margins of DPO and its kin
    text: str
    policy: bool  # a loss of reinforcement learning
    epoch: int | None = None  # where the line shows it, and the trainer is not known

    def evidence(self, longest: int = 500) -> Evidence:
        return Evidence("output", self.text[:longest], self.at)

    @property
    def where(self) -> str:
        """`at iteration 120 of epoch 3`."""
        if self.epoch is None:
            return format_iteration(self.iteration)
        return (
            f"in epoch {self.epoch}"
            if self.iteration is None
            else f"at iteration {self.iteration} of epoch {self.epoch}"
        )

    @property
    def finite_loss(self) -> bool:
        return self.loss is not None and math.isfinite(self.loss)

    @property
    def bad_grad(self) -> bool:
        return self.grad is not None and not math.isfinite(self.grad)


class Points(Reducer):
    """Announces each point. A step that is printed without its number gets that of the training's bar: the one of the most
    steps."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._bar: BarMoved | None = None

    @takes(BarMoved)
    def _bar_moved(self, at: float, fact: BarMoved) -> None:
        if self._bar is None or fact.total >= self._bar.total:
            self._bar = fact

    @takes(Iteration)
    def _iteration(self, at: float, fact: Iteration) -> None:
        if fact.metrics:
            self._see(at, fact.iteration, dict(fact.metrics), fact.text)

    @takes(MetricsLogged)
    def _metrics_logged(self, at: float, fact: MetricsLogged) -> None:
        self._see(at, self._bar.done if self._bar else None, dict(fact.metrics), fact.text)

    def _see(self, at: float, iteration: int | None, numbers: Mapping[str, float], text: str) -> None:
        loss, grad = _first(numbers, _LOSS), _first(numbers, _GRAD)
        if loss is None and grad is None and "number of skipped iterations" not in numbers:
            return
        point = Point(
            at, iteration, loss, grad, _first(numbers, _RATE), _first(numbers, _SCALE),
            max(numbers.get("number of skipped iterations", 0.0), 0.0), numbers.get("rewards/margins"), text,
            not numbers.keys().isdisjoint(_POLICY),
        )  # fmt: skip
        self._tell(at, point)


def _first(numbers: Mapping[str, float], names: Iterable[str]) -> float | None:
    for name in names:
        if name in numbers:
            return numbers[name]
    return None


def format_iteration(iteration: int | None) -> str:
    return "in a step whose number was not printed" if iteration is None else f"at iteration {iteration}"
