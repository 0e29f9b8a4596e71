"""Diagnostics for distributed training: which rank, why, on what evidence, and what to change."""

__version__ = "0.1.0"
