"""Small changes to the code that judges hangs, for each of which a test has to fail: `python -m tests.labs.mutation`."""
