"""diag left running: an hour beside a busy node, and a day of told time. `python -m tests.labs.soak`."""
