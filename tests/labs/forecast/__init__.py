"""How well host-oom-forecast tells the save that will not fit: seeded runs of the bundled job, and the same
by calculation."""
