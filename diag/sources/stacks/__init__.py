"""Stacks of processes."""
