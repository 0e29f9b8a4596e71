"""Real failures of distributed PyTorch programs on a CPU, each a small script and the command that breaks it.

`python -m tests.labs.log_lab.torch --list` shows the cases; README.md beside this file says how to add a version.
"""
