"""Hostile input for all that diag reads: what strangers wrote, what is torn, what was made to hurt. `python -m tests.fuzz --help`."""
