"""Lines in which a program says that its numbers went wrong: fp16 overflows, nan and inf found by checks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from diag.model.observations import LossScaleReduced, NonFiniteReported, Observation

# DeepSpeed 0.9-0.16, runtime/fp16/loss_scaler.py (source; logs of users), rank 0 only:
#   [2023-08-02 00:41:17,526] [INFO] [loss_scaler.py:183:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted
#   loss scale: 4294967296, reducing to 2147483648
#   ... [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 4294967296, but hysteresis is 2. Reducing
#   hysteresis to 1
# DeepSpeed before 0.6: [deepscale] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 262144, reducing to
# 262144 Bare (bf16 or fp32 with the overflow check): [deepspeed] OVERFLOW! Rank 0 Skipping step.
_OVERFLOW = re.compile(
    r"OVERFLOW! Rank \d{1,7} Skipping step\.(?:.{0,80}?[Rr]educing (?:loss scale )?to (\d{1,20}(?:\.\d{1,6})?))?"
)
# The same file, an exception of every rank: Current loss scale already at minimum - cannot decrease scale
# anymore. Exiting run.
_MINIMUM = "Current loss scale already at minimum"

# Megatron-LM core_r0.10-0.16, rerun_state_machine.py (source, wheel 0.16.1), an exception of the rank that
# found it:
#   RuntimeError: Rank 3, node gpu-17, device 3, iteration 412: Unexpected result nan (message='found NaN in local grad norm for
#   bucket #0 in backward pass before data-parallel communication collective')
#   ... message='found NaN in local forward loss calculation'     ... message='found Inf in local forward loss calculation'
#   Unexpected result nan on rank 3 at iteration #412 invocation #7 (message='found NaN in local forward loss calculation')
# core_r0.4-0.9, an assertion:
#   AssertionError: Rank 13: found NaN in local grad norm in backward pass before data-parallel communication
#   collective. Device: 5, node: node-15-11
_FOUND = re.compile(
    r"found (?:NaN|Inf) in local (grad norm|forward loss)(?: for (bucket #\d{1,6}))?", re.IGNORECASE
)
_RANK = re.compile(r"\b[Rr]ank (\d{1,7})[:, ]")
# torch 1.8-2.13, autograd/engine.cpp and anomaly mode (source):
#   RuntimeError: Function 'ScaledDotProductEfficientAttentionBackward0' returned nan values in its 0th output.
_ANOMALY = re.compile(r"Function '(\w{1,120})' returned nan values in its (\d{1,4})th output")


# One of these stands in each line that tells something here: what a large log is searched for.
WORDS = ("OVERFLOW! Rank", _MINIMUM, " in local ", "returned nan values in its")


def read_line(text: str, rank: int | None) -> Iterator[Observation]:
    if "OVERFLOW! Rank" in text:
        if match := _OVERFLOW.search(text):
            yield LossScaleReduced(rank, float(match[1]) if match[1] else None, text.strip()[:300])
    elif _MINIMUM in text:
        yield LossScaleReduced(rank, None, text.strip()[:300], at_minimum=True)
    elif " in local " in text:
        if match := _FOUND.search(text):
            told = _RANK.search(text, 0, match.start())
            if told is None and rank is None:
                return  # each of these names its rank: somebody's words about it
            what = "loss" if "loss" in match[1].lower() else "grad"
            yield NonFiniteReported(int(told[1]) if told else rank, what, match[2] or "", text.strip()[:300])
    elif "returned nan values in its" in text and (match := _ANOMALY.search(text)):
        yield NonFiniteReported(rank, "grad", f"{match[1]}, output {match[2]}", text.strip()[:300])
