"""What is done to diag itself while it watches a job, hundreds of times: `python -m tests.labs.harm`. The job must
not notice."""
