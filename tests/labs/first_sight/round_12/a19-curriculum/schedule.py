def shortest(step, first=16, grow=8, every=60, last=96):
    """Minimal length of a record at this step."""
    return min(last, first + grow * (step // every))
