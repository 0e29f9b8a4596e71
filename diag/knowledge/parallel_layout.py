"""How a job's ranks are laid out over pipeline stages and within them, as its command line shows."""

from __future__ import annotations

import math
import re

# megatron-core 0.12-0.18, ms-swift 3.7-4.6 (underscores), Megatron-LM (hyphens), the bundled job (--pp)
_PIPELINE = re.compile(r"--(?:pipeline[-_]model[-_]parallel[-_]size|pp)[= ](\d{1,5})\b")


# Of one batch each rank has a part of every tensor (TP), or of the sequence (CP).
_TENSOR = re.compile(r"--(?:tensor[-_]model[-_]parallel[-_]size|tp)[= ](\d{1,5})\b")
_CONTEXT = re.compile(r"--(?:context[-_]parallel[-_]size|cp)[= ](\d{1,5})\b")


def ranks_of_one_batch(command: str) -> int:
    """How many ranks compute on one batch together, and exchange parts of it in every layer; 1 where the command
    does not say.

    >>> ranks_of_one_batch("megatron sft --tensor_model_parallel_size 2 --cp 2"), ranks_of_one_batch("train.py")
    (4, 1)
    """
    sizes = [int(found[1]) for found in (_TENSOR.search(command), _CONTEXT.search(command)) if found]
    return max(1, math.prod(sizes))


def pipeline_parallel_size(command: str) -> int | None:
    """None when the command does not say: then there may be one stage, or a layout that is set elsewhere.

    >>> pipeline_parallel_size("megatron rlhf --pipeline_model_parallel_size 4"), pipeline_parallel_size("train.py")
    (4, None)
    """
    match = _PIPELINE.search(command)
    return int(match[1]) if match else None


def peer_stage(rank: int, world_size: int, stages: int, step: int) -> int | None:
    """The rank `step` stages further that holds the same part: Megatron lets the pipeline vary slowest. None:
    no such layout.

    >>> peer_stage(1, 4, 2, 1), peer_stage(3, 4, 2, 1), peer_stage(0, 6, 4, 1)
    (3, 1, None)
    """
    if stages < 2 or world_size % stages:
        return None
    return (rank + step * (world_size // stages)) % world_size
