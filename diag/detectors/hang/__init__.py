"""The hang detector: `detector` decides whether, `attribution` who as the stacks show, `corroborate` what other
evidence adds.

The state of each rank is in `rank_wait`, how long is waited in `patience`, the sentence and the advice in `messages`, by
the texts of `catalogue`. `collectives`, `watchdog`, `gpus`, `endless_kernel` and `core_dumps` each keep one more kind
of evidence and decide what it makes of a verdict; `ras` keeps its own for `corroborate`.
"""

from diag.detectors.hang.detector import HangDetector, judge, wants_closer_look

__all__ = ["HangDetector", "judge", "wants_closer_look"]
