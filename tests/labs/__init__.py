"""Labs and benches: what measures diag, or makes evidence for its tests."""
