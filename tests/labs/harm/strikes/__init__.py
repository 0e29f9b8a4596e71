"""What the faults do, by what they do it to."""
