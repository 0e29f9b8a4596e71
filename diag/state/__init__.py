"""What is known of the job now, from observations. Judges nothing, reads no clock or file.

`job` holds it all; the others are its parts: ranks, progress and steps, saves, memory, networks, NCCL, GPUs.
"""
