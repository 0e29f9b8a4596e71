"""What is done to diag itself while it watches a job, hundreds of times: `python -m tests.harm`. The job must
not notice."""
