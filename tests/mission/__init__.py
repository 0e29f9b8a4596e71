"""What people had in their hands when their training failed, and what diag must tell them. The texts are written anew,
with the same facts.

A test module here has `CASES`; `python -m tests.mission.table` writes those of all modules into
docs/evidence/mission.md, and test_table.py holds the page and the tests together.
"""
