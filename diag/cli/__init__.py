"""The commands: one module each, found by `diag.cli.main`."""
