"""InfiniBand and interfaces."""
