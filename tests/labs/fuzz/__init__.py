"""Hostile input for all that diag reads: what strangers wrote, what is torn, what was made to hurt. See
`__main__`."""
