"""What diag says of jobs that nobody who writes diag had seen."""
