"""Fire drills of the real `megatron rlhf` on this machine's GPUs, and what diag costs it: `python -m
tests.labs.gpu`."""
