"""Checkpoints: whether they are whole, and whether the disk holds them."""
