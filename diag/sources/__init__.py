"""One signal a module: where to look, and `parse(record)`, which is pure."""
