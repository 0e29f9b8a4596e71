"""What detectors of a training's numbers share."""

from __future__ import annotations

from diag.detectors.contract import Detector
from diag.state.points import Point


class LossDetector(Detector):
    """One that is handed each point with a loss, but for losses of reinforcement learning."""

    listens = (Point,)

    def observe(self, at: float, fact: Point) -> None:
        if fact.loss is not None and not fact.policy:
            self._see(fact, fact.loss)

    def _see(self, point: Point, loss: float) -> None:
        """Take it in."""
        raise NotImplementedError


def digits(value: float | None) -> str:
    """Five of them, as a trainer prints its numbers.

    >>> digits(0.69314718), digits(float("nan")), digits(None)
    ('0.69315', 'nan', '?')
    """
    return "?" if value is None else f"{value:.5g}"
