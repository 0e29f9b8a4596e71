"""How a job's ranks are laid out over pipeline stages, as its command line shows."""

from __future__ import annotations

import re

# megatron-core 0.12-0.18, ms-swift 3.7-4.6 (underscores), Megatron-LM (hyphens), the bundled job (--pp)
_PIPELINE = re.compile(r"--(?:pipeline[-_]model[-_]parallel[-_]size|pp)[= ](\d{1,5})\b")


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
