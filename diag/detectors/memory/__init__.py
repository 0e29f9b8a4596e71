"""Host memory and the limits beside it: what ran out, what will."""
