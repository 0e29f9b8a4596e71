"""Faults on the bundled job, several seeds each, under a real `diag run`; beside it what other tools say of
the same hangs."""
