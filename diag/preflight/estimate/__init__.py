"""What a training command will need in GPU and host memory, by its own arguments, before it runs. Needs
neither torch nor a GPU.

>>> from diag.preflight.estimate import estimate
>>> e = estimate(["megatron", "sft", "--model", "Qwen/Qwen3-0.6B", "--max_length", "2048"], {"NPROC_PER_NODE": "1"})
>>> e.needs[0].terms[0].name, e.needs[0].terms[0].size_bytes
('weights', 1192099840)
"""

from diag.preflight.estimate.estimate import Estimate, estimate
from diag.preflight.estimate.machine import Machine, look, parse_size

__all__ = ["Estimate", "Machine", "estimate", "look", "parse_size"]
