"""Logs that others committed in public, as pointers with blind labels: how often `diag replay` names the root."""
