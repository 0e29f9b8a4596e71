"""Laboratories that make the logs under tests/captures/logs anew: real programs, really broken."""
