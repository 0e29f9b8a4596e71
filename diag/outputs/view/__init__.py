"""What all faces of a run show, as plain data."""
