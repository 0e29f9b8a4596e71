"""The report as text."""
