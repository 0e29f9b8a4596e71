"""GPUs: memory that ran out, faults, links, clocks."""
