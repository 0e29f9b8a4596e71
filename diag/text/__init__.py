"""Text for people: numbers with their units, ranks, times and paths. Pure, and of the standard library only."""
