"""Text for people: numbers with their units, ranks, times and paths, sentences of tables. Of the standard library
only, but for the YAML of tables."""
