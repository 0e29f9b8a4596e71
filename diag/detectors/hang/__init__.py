"""The hang detector: `detector` decides whether, `blame` who as the stacks tell, `joined` what other evidence
adds.

How each rank stands is in `standing`, how long is waited in `patience`, the sentence in `words`, the remedy
in `advice`; `collectives`, `ras`, `gpus`, `network` and `watchdog` each keep one more kind of evidence.
"""

from diag.detectors.hang.detector import HangDetector, judge, wants_closer_look

__all__ = ["HangDetector", "judge", "wants_closer_look"]
