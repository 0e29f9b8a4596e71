"""Checkpoints and the disks they go to."""
