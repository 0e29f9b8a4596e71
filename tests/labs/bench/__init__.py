"""What diag costs a healthy job, beside what people use today: `python -m tests.labs.bench` prints one table."""
