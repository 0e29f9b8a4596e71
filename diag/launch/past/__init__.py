"""The runs of the past: what is remembered of each, which one a person means, what is removed. Nothing here reads a
journal."""
